"""Whoever makes the state folder first gets nothing from it, and gives nothing to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from switchagg.control.jobs.records import Quota, Tenant
from switchagg.control.store import Store
from switchagg.errors import UsageError

STRANGER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def prepared(folder: Path) -> Path:
    """A folder with the database of an earlier controller."""
    store = Store(folder)
    store.put_tenant(Tenant("mallory", True, Quota()))
    store.close()
    return folder


@pytest.mark.parametrize("serving", [True, False])
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: os.chown(folder, STRANGER, -1), f"it belongs to user {STRANGER}"),
        (lambda folder: os.chown(folder / "controller.db", STRANGER, -1), "controller.db belongs to user"),
        (lambda folder: os.chown(folder / "controller.lock", STRANGER, -1), "controller.lock belongs to"),
    ],
)
@needs_root
def test_what_belongs_to_somebody_else_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], why: str, serving: bool
) -> None:
    spoil(prepared(tmp_path / "state"))
    with pytest.raises(UsageError, match=why):
        Store(tmp_path / "state", serving=serving)


@pytest.mark.parametrize("name", ["", "controller.db", "controller.lock"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_what_others_can_write_to_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    folder = prepared(tmp_path / "state")
    (folder / name).chmod(mode)
    with pytest.raises(UsageError, match=rf"others can write to .* \(mode {mode:o}\); accepted"):
        Store(folder)


@pytest.mark.parametrize("name", ["controller.db", "controller.db-wal", "controller.lock"])
def test_no_link_is_followed_out_of_the_folder(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for make in (os.symlink, os.link):
        folder = tmp_path / make.__name__
        folder.mkdir(mode=0o700)
        make(victim, folder / name)
        with pytest.raises(UsageError, match=f"{name} is no plain file"):
            Store(folder)
    assert victim.read_text() == "precious"


@needs_root
def test_a_strangers_link_to_the_folder_is_refused_and_ones_own_is_not(tmp_path: Path) -> None:
    prepared(tmp_path / "state")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "state")
    os.lchown(link, STRANGER, -1)
    with pytest.raises(UsageError, match=f"the link belongs to user {STRANGER}"):
        Store(link)
    os.lchown(link, os.geteuid(), -1)
    store = Store(link)
    assert [tenant.name for tenant in store.tenants()] == ["mallory"]
    store.close()


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store(tmp_path / "a" / "state").close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert modes["state"] == 0o700
    assert {mode for name, mode in modes.items() if name != "state"} == {0o600}
