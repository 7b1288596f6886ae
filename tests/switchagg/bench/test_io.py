"""`switchagg bench io`: real packets between namespaces, and arguments that cannot work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from switchagg.bench.io import TRANSPORTS, Figure, Settings, table
from switchagg.errors import UsageError
from tests.switchagg.cli.processes import outcome
from tests.switchagg.devices.networks import why_no_xdp


@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_each_end_of_each_transport_has_figures_and_a_floor(tmp_path: Path) -> None:
    file = tmp_path / "io.json"
    options = ["--transport", "udp-single,udp,xdp", "--seconds", "0.05", "--repeat", "1", "--json", str(file)]
    status, out, err = outcome("bench", "io", *options, seconds=120)
    assert status == 0, out + err
    figures = json.loads(file.read_text())
    wanted = {
        (transport, direction, floor)
        for transport in ("udp-single", "udp", "xdp")
        for direction in ("send", "receive")
        for floor in (False, True)
    }
    assert {(each["transport"], each["direction"], each["floor"]) for each in figures} == wanted, out
    for each in figures:
        assert each["bytes"] == each["packets"] * 1424, each
        assert each["packets"] > 0
        assert 0 < each["processor"] <= each["seconds"] * 1.1


def test_the_table_has_medians_and_reasons() -> None:
    figures = [Figure("udp", "send", False, packets, packets * 100, 1.0, 0.5) for packets in (10, 30, 20)]
    figures.append(Figure("udp", "send", True, 40, 4000, 1.0, 0.25))
    made = table(figures, {"xdp": "no permission"})
    [row] = made.rows
    assert list(row) == ["udp", "send", 20, 40, 2e-6, 25_000_000, 6_250_000, 40.0]
    assert made.note == "xdp: no permission"


def test_arguments_that_cannot_work() -> None:
    for wrong in ({"transports": ("tcp",)}, {"words": 365}, {"seconds": 0.0}, {"repeat": 0}):
        with pytest.raises(UsageError, match="accepted"):
            Settings(**wrong)  # type: ignore[arg-type]
    assert Settings().transports == TRANSPORTS


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root")
def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from switchagg.bench import io

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="run it as root"):
        io.measure(Settings())
