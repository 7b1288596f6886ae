"""The wiring of switches in an operator's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.control.switch_specs import parse_switch, read_configuration, wiring
from switchagg.errors import UsageError
from switchagg.rules.wiring import Attachment, checked, parse_hosts


def made(*texts: str) -> dict[str, Attachment]:
    specs = [parse_switch(text) for text in texts]
    return wiring({spec.name: spec for spec in specs})


def test_leaves_and_their_hosts() -> None:
    found = made(
        "root=native",
        "a=native?parent=root&host=10.0.1.0/24&host=10.0.9.9",
        "b=native?parent=root",
        "c=native",
    )
    assert {name: (each.parent, each.shown) for name, each in found.items()} == {
        "root": (None, "none"),
        "a": ("root", "10.0.1.0/24, 10.0.9.9"),
        "b": ("root", "any"),
        "c": (None, "any"),
    }
    assert [found["a"].takes(each) for each in ("10.0.1.77", "10.0.9.9", "10.0.9.8")] == [True, True, False]
    assert found["b"].takes("1.2.3.4")
    assert not found["root"].takes("10.0.1.1")


def test_a_root_with_workers_of_its_own() -> None:
    found = made("root=native?host=10.0.0.0/24", "a=native?parent=root")
    assert (found["root"].takes("10.0.0.1"), found["root"].takes("10.0.1.1")) == (True, False)


def test_over_p4runtime_stations_are_hosts_unless_they_are_switches(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        """
        [switch.root]
        url = "p4runtime://127.0.0.1:1"
        address = "10.0.0.254"
        stations = ["10.0.1.254, 02:00:0a:00:01:fe, 1"]
        [switch.leaf]
        url = "p4runtime://127.0.0.1:2"
        address = "10.0.1.254"
        parent = "root"
        stations = ["10.0.1.1, 02:00:0a:00:01:01, 1", "10.0.0.254, 02:00:0a:00:00:fe, 9"]
        [switch.native]
        url = "p4runtime://127.0.0.1:3"
        parent = "root"
        hosts = ["10.0.2.0/24"]
        """
    )
    found = wiring(read_configuration(file).switches)
    assert {name: (each.parent, each.shown) for name, each in found.items()} == {
        "root": (None, "none"),
        "leaf": ("root", "10.0.1.1"),
        "native": ("root", "10.0.2.0/24"),
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["a=native?parent=a"],
            "switch a: parent is 'a'; accepted: another switch: none, it is the only one",
        ),
        (["a=native?parent=c", "b=native"], "switch a: parent is 'c'; accepted: another switch: b"),
        (
            ["a=native", "b=native?parent=a", "c=native?parent=b"],
            "switch c: its parent 'b' has a parent itself, 'a'; accepted: two levels",
        ),
        (["a=native?parent=b", "b=native?parent=a"], "has a parent itself"),
        (
            ["root=native", *(f"l{n}=native?parent=root" for n in range(33))],
            "switch root is the parent of 33 switches; accepted: up to 32",
        ),
    ],
)
def test_trees_that_cannot_be(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(*texts)


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "fd00::1/64", "::1%lo/128", "ten", "", "10.0.0"]
)
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(UsageError, match=r"switch a: host is .*; accepted: an address or a network"):
        parse_hosts("switch a", [text])
    with pytest.raises(UsageError):
        parse_switch(f"a=p4runtime://127.0.0.1:1?host={text}")


def test_hosts_in_a_file_are_a_list(tmp_path: Path) -> None:
    for url in ("native", "p4runtime://127.0.0.1:1"):
        for value in ('"10.0.0.0/8"', "[7]"):
            file = tmp_path / "c.toml"
            file.write_text(f'[switch.a]\nurl = "{url}"\nhosts = {value}\n')
            with pytest.raises(UsageError, match=r"host(s)? is .*; accepted: "):
                read_configuration(file)


def test_what_nobody_says_is_anybody() -> None:
    assert checked({"a": Attachment()}) == {"a": Attachment(None, None)}
    assert Attachment().takes("10.0.0.1")
