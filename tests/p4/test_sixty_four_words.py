"""The programs as they are deployed: K = 64, each word in its own place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from switchagg.wire.header import Op
from tests.switchagg.conformance.scenario import Job

from .conftest import DEVICES
from .engine import P4Engine, install_switch
from .fuzz.open_device import open_device

K = 64


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[P4Engine]:
    with open_device(request.param, K, tmp_path_factory.mktemp("words")) as dut:
        yield P4Engine(dut, install_switch(dut), 64)


def test_every_word_has_its_place(engine: P4Engine) -> None:
    rng = np.random.default_rng(64)
    values = rng.integers(0, 2**32, (4, K), np.uint32)
    job = Job(engine, 3, size=K)
    job.send(0, 0, values[0])
    job.send(1, 0, values[1])
    total = values[:3].sum(axis=0, dtype=np.uint32)
    assert job.send(2, 0, values[2]) == job.multicast(seq=0, slot=8, payload=total)
    assert job.send(1, 0, values[3]) == job.unicast(1, seq=0, slot=8, payload=total)
    assert job.send(0, 0) == job.unicast(0, seq=0, slot=8, payload=total)
    job.send(0, 1, values[0], Op.OR)
    job.send(1, 1, values[1], Op.OR)
    assert job.send(2, 1) == job.multicast(seq=1, slot=9, payload=values[0] | values[1])
    job.send(0, 2)
    job.send(1, 2)
    assert job.send(2, 2, values[3]) == job.multicast(seq=2, slot=10, payload=values[3])
    stored = engine.slot(8).words
    assert stored is not None
    assert np.array_equal(stored, total)
    engine.close()
