"""A native switch between interfaces, as a controller's configuration describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.control.switch_specs import NativeSpec, parse_switch, read_configuration, wiring
from switchagg.errors import UsageError
from switchagg.p4program.program import Station, SwitchAddress

_URL = "rack=native?address=10.0.255.1&interface=1=eth1&interface=2=eth2&station=10.0.0.1,02:00:00:00:00:01,1"


def test_a_switch_between_interfaces() -> None:
    spec = parse_switch(_URL)
    assert isinstance(spec, NativeSpec)
    assert spec.interfaces == {1: "eth1", 2: "eth2"}
    assert spec.own == SwitchAddress(0x02000A00FF01, "10.0.255.1", 48879)
    assert spec.stations == {"10.0.0.1": Station(1, 0x020000000001)}


def test_the_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(
        '[switch.rack]\nurl = "native"\naddress = "10.0.255.1"\ninterfaces = ["1=eth1", "2=eth2"]\n'
        'stations = ["10.0.0.1,02:00:00:00:00:01,1"]\n'
    )
    assert read_configuration(file).switches["rack"] == parse_switch(_URL)


def test_workers_are_at_the_stations_that_are_no_switches() -> None:
    leaf = parse_switch(
        _URL.replace("rack=", "leaf=") + "&station=10.0.255.2,02:00:0a:00:ff:02,2&parent=root"
    )
    root = parse_switch(
        "root=native?address=10.0.255.2&interface=1=eth3&station=10.0.255.1,02:00:0a:00:ff:01,1&host=10.0.255.2"
    )
    made = wiring({"leaf": leaf, "root": root})
    assert [str(each) for each in made["leaf"].hosts or ()] == ["10.0.0.1/32"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("native?threads=65", "threads is '65'; accepted: 1..64"),
        ("native?bandwidth=fast", "switch rack: bandwidth is 'fast'; accepted: a number and bit"),
        ("p4runtime://10.0.0.2:1?bandwidth=5", "switch rack: bandwidth is '5'; accepted: a number and bit"),
        ("native?threads=auto", "threads is 'auto'; accepted: 1..64"),
        ("native?threads=2&address=10.0.0.1&interface=1=eth1", "threads is 2; accepted between interfaces"),
        ("native?interface=1=eth1", "address is missing"),
        ("native?address=10.0.0.1&interface=eth1", "interface is 'eth1'; accepted: PORT=NAME"),
        ("native?address=10.0.0.1&interface=512=eth1", "port is 512; accepted: 0..511"),
        ("native?address=10.0.0.1&interface=1=a&interface=1=b", "port 1 is given twice"),
        ("native?address=10.0.0.1&interface=1=a&station=10.0.0.2", "station is '10.0.0.2'; accepted"),
        ("native?address=10.0.0.1&interface=1=a&mac=red", "mac is 'red'; accepted"),
        ("native?address=10.0.0.1&station=10.0.0.2,02:00:00:00:00:01,1", "station without an interface"),
    ],
)
def test_what_cannot_work(url: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_switch(f"rack={url}")


def test_the_bandwidth_of_a_switch() -> None:
    texts = {
        "a": "native",
        "b": "native:64?bandwidth=2.5Gbit",
        "c": "p4runtime://10.0.0.2:1?bandwidth=400Gbit",
    }
    made = wiring({name: parse_switch(f"{name}={text}") for name, text in texts.items()})
    assert [each.bandwidth for each in made.values()] == [1e9, 2.5e9, 4e11]
    for text in ("0bit", "2000Tbit"):
        with pytest.raises(
            UsageError, match=r"switch a: bandwidth is .* bit/s; accepted: 10kbit to 1000Tbit"
        ):
            wiring({"a": parse_switch(f"a=native?bandwidth={text}")})


def test_threads_of_a_native_switch() -> None:
    one, three = parse_switch("a=native"), parse_switch("b=native:256?threads=3")
    assert isinstance(one, NativeSpec)
    assert isinstance(three, NativeSpec)
    assert (one.threads, three.threads, three.slots) == (1, 3, 256)
