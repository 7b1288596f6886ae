"""Memory of a worker and of the switch while large tensors pass through."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from worker_lib import Session
from worker_lib.embedded import start_embedded

from .harness import processes

pytestmark = pytest.mark.usefixtures("either_transport")

TENSOR = 64 << 20  # bytes
LIMIT = 32 << 20


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def reduces(session: Session, bits: int, density: float) -> int:
    """Bytes by which this process grows while it all-reduces 64 MB."""
    x = np.zeros(TENSOR // 4, np.float32)
    x[:] = 0.0
    rng = np.random.default_rng(session.rank)
    for block in range(0, x.size, 1 << 20):  # no large temporaries
        part = x[block : block + (1 << 20)].reshape(-1, 64)
        part[rng.random(len(part)) < density] = session.rank + 1
    before = resident()
    session.allreduce(x, bits=bits)
    return resident() - before


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "density"), [(32, 1.0), (8, 1.0), (32, 0.01)])
def test_a_worker_and_the_switch_stay_small(bits: int, density: float) -> None:
    with start_embedded() as embedded:
        switch = psutil.Process(embedded.pid)
        with processes(embedded.controller, 2, reduces, bits, density, timeout=60.0) as ranks:
            for rank in ranks:
                grown = rank.finish().get()
                print(f"worker: {grown / 2**20:+.1f} MB")
                assert grown < LIMIT
        before = switch.memory_info().rss
        with processes(embedded.controller, 2, reduces, bits, density, timeout=60.0) as ranks:
            for rank in ranks:
                rank.finish().get()
        grown = switch.memory_info().rss - before
        print(f"switch, from the second job on: {grown / 2**20:+.1f} MB")
        assert grown < 4 << 20
