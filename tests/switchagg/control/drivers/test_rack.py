"""Workers on hosts of their own, a switch between interfaces, the controller and its driver, all at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from tests.switchagg.control.drivers.rack import compiled, has_namespaces, in_namespace

pytestmark = pytest.mark.skipif(
    not has_namespaces(), reason="no network namespaces with bridges here (unshare, nsenter, ip, ethtool)"
)


@pytest.fixture(scope="module", params=["p4", "bmv2", "native"])
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[dict[str, Any]]]]:
    """The output of each scenario's workers."""
    folder: Path = tmp_path_factory.mktemp("rack")
    if request.param == "bmv2":
        if not (shutil.which("simple_switch_grpc") and shutil.which("p4c-bm2-ss")):
            pytest.skip("simple_switch_grpc or p4c-bm2-ss is not on PATH")
        compiled(folder)
    found: dict[str, list[list[dict[str, Any]]]] = in_namespace(
        "tests.switchagg.control.drivers.rack_jobs", request.param, str(folder)
    )
    return found


def _turns(said: list[dict[str, Any]]) -> int:
    """Returns the number of a worker's sums, all of them exact."""
    turns = [each for each in said if "turn" in each]
    assert all(each["exact"] for each in turns)
    return len(turns)


def test_four_workers(seen: dict[str, list[list[dict[str, Any]]]]) -> None:
    assert len(seen["after"]) == 4
    (turns,) = {_turns(each) for each in seen["after"]}
    assert turns >= 5
    assert not any("error" in each[-1] for each in seen["after"])


def test_a_worker_that_dies_is_named_to_the_others(seen: dict[str, list[list[dict[str, Any]]]]) -> None:
    for rank in (0, 1, 3):
        said = seen["killed"][rank]
        assert (said[-1]["error"], said[-1]["ranks"]) == ("WorkerLostError", [2])
        assert _turns(said) >= 5


def test_a_job_survives_the_restart_of_its_only_switch(
    seen: dict[str, list[list[dict[str, Any]]]],
) -> None:
    for said in seen["restarted"]:
        assert "error" not in said[-1], said[-1]
        assert all(turn["exact"] for turn in said)
        assert _turns(said) >= 20


def test_the_slots_are_free_in_the_end(seen: dict[str, list[list[dict[str, Any]]]]) -> None:
    assert seen["left"] == []
