"""`switchagg predict`: its bytes against those that a session counts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.cli.main import main
from switchagg.cli.predict import predictions
from switchagg.emulator.rates import wire_bytes
from tests.switchagg.cli.processes import outcome

_COUNT = """
import json, sys
import numpy as np, worker_lib
elements, density, blocks = json.loads(sys.argv[1])
with worker_lib.connect(transport="udp", words=352) as session:
    x = np.zeros(elements, np.float32).reshape(-1, 64)
    draw = np.random.default_rng(0 if blocks == "all" else session.rank)
    x[draw.random(len(x)) < density] = 1
    before = session.stats()
    session.allreduce(x.ravel(), bits=32)
    after = session.stats()
    if session.rank == 0:
        names = [f"{what}_{way}" for what in ("packets", "bytes") for way in ("sent", "received")]
        names += ["retransmissions"]
        print(json.dumps({name: after[name] - before[name] for name in names}))
"""


def _counted(elements: int, density: float, overlap: str) -> dict[str, Any]:
    """Returns what rank 0 of four counted of one all-reduce."""
    import sys

    words = json.dumps([elements, density, overlap])
    status, said, errors = outcome("run", "-n", "4", "--no-prefix", "--", sys.executable, "-c", _COUNT, words)
    assert status == 0, errors
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize(
    ("density", "overlap"),
    [
        pytest.param(1.0, "all", marks=pytest.mark.long),
        pytest.param(0.1, "all", marks=pytest.mark.long),
        (0.1, "random"),
        pytest.param(0.01, "random", marks=pytest.mark.long),
    ],
)
def test_bytes_are_those_that_a_session_sends(density: float, overlap: str) -> None:
    elements = 1 << 20
    counted = _counted(elements, density, overlap)
    expected = predictions(
        elements=elements,
        element_bytes=4,
        density=density,
        overlap=overlap,
        workers=4,
        rate=1e9,
        round_trip=1e-3,
    )[0]
    more = wire_bytes(0)  # of each packet
    sent = counted["bytes_sent"] + more * counted["packets_sent"]
    received = counted["bytes_received"] + more * counted["packets_received"]
    # A busy computer makes many retransmissions, and each may be answered.
    again = counted["retransmissions"] * wire_bytes(16 + 4 * 352)
    for predicted, found in ((expected.sent, sent), (expected.received, received)):
        # Headers of collectives, and chance in random blocks.
        assert 0.85 * found - again <= predicted <= 1.15 * found


def test_ring_and_tree() -> None:
    _, ring, tree = predictions(
        elements=1 << 20, element_bytes=4, density=1, overlap="all", workers=4, rate=8e6, round_trip=0.1
    )
    whole = (1 << 22) * 1538 / 1448
    assert (ring.sent, tree.sent) == (pytest.approx(1.5 * whole), pytest.approx(2 * whole))
    assert ring.seconds == pytest.approx(1.5 * whole / 1e6 + 0.3)
    assert tree.seconds == pytest.approx(2 * whole / 1e6 + 0.2)


def test_an_empty_tensor_costs_the_plan() -> None:
    switch = predictions(
        elements=1 << 20, element_bytes=4, density=0, overlap="random", workers=4, rate=1e9, round_trip=0
    )[0]
    assert 0 < switch.sent == switch.received < 4000


def test_a_gradient_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gradient = np.zeros((100, 64), np.float32)
    gradient[:25, 3] = 1
    np.save(tmp_path / "g.npy", gradient)
    assert main(["predict", "--gradient", str(tmp_path / "g.npy"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["elements"], said["density"]) == (6400, 0.25)
    assert [each["way"] for each in said["ways"]] == ["switch", "ring", "tree"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--workers", "1"], "workers is 1; accepted: 2 to 32"),
        (["--density", "2"], "density is 2.0; accepted: 0 to 1"),
        (["--density", "nan"], "density is nan; accepted: 0 to 1"),
        (["--link", "fast"], "rate is 'fast'; accepted"),
        (["--size", "1"], "size is 1; accepted"),
        (["--words", "15"], "words is 15; accepted"),
        (["--gradient", "/dev/null/a"], "gradient /dev/null/a"),
    ],
)
def test_what_cannot_be(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words]) == 2
    assert problem in capsys.readouterr().err
