"""Sealed jobs through the programs, on each device; bmv2's too, where it is installed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from switchagg.rules.slots import Address, JobEntry, WorkerEntry
from tests.seeds import seed_of_this_run
from tests.worker_lib.generations import DONE, SECOND, WORDS, Cluster
from tests.worker_lib.lying_switch import Lies, LyingSwitch
from worker_lib import _native
from worker_lib.plan import DType, Kind, ReduceOp

from .conftest import DEVICES
from .engine import P4Engine, install_switch
from .fuzz.open_device import open_device

RANKS = 3


class DeviceSwitch(LyingSwitch):
    """A device on a UDP socket. Workers, which have one address here, have one each for the device."""

    def __init__(self, engine: P4Engine) -> None:
        super().__init__(Lies())
        self._engine = engine
        self._there: dict[Address, Address] = {}

    def add_job(self, entry: JobEntry) -> None:
        workers = []
        for worker in entry.workers:
            ip = f"10.0.0.{worker.bit + 1}"
            self._there[worker.address] = ip, worker.address[1]
            workers.append(WorkerEntry(worker.bit, ip, worker.address[1], worker.token))
        with self.lock:
            self._engine.add_job(
                JobEntry(entry.job, entry.base, entry.slots, entry.words, entry.result_token, tuple(workers))
            )

    def packet_out(self, packet: bytes) -> bool:
        with self.lock:
            return bool(self._engine.receive(packet, None))

    def _receive(self, packet: bytes, source: Address) -> list[tuple[Address, bytes]]:
        here = {there: address for address, there in self._there.items()}
        outs = self._engine.receive(packet, self._there[source])
        return [(here[address], out) for address, out in outs if address is not None]


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[P4Engine]:
    with open_device(request.param, WORDS, tmp_path_factory.mktemp("sealed")) as dut:
        yield P4Engine(dut, install_switch(dut), 1024)


def test_a_sealed_sum_and_a_sealed_broadcast(engine: P4Engine) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(700).astype(np.float32) for _ in range(RANKS)]
    sums, moves = ([np.zeros(700, np.float32) for _ in range(RANKS)] for _ in range(2))
    secret = random.Random(seed_of_this_run()).randbytes(32)
    with Cluster(RANKS, switch=DeviceSwitch(engine), secret=secret) as cluster:
        works = []
        for r, native in cluster.engines.items():
            what = {"workers": RANKS, "rank": r, "count": 700, "fingerprint_count": 700, "bits": 32}
            add = _native.Call(
                kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=DType.F32, sparse=True, block=16, zero_fill=True,
                input=xs[r].ctypes.data, in_end=700, output=sums[r].ctypes.data, out_end=700, **what,
            )  # fmt: skip
            move = _native.Call(
                kind=Kind.BROADCAST, op=ReduceOp.OR, dtype=DType.RAW, root=1, sparse=False, zero_fill=True,
                input=xs[r].ctypes.data, in_end=700 if r == 1 else 0, output=moves[r].ctypes.data,
                out_end=700, **what,
            )  # fmt: skip
            for call in (add, move):
                work = native.submit(call, 120 * SECOND, True, native.generation)
                assert work is not None
                works.append((native, work))
        for native, work in works:
            assert native.wait(work, 120 * SECOND) == DONE
            assert native.stats()["results_damaged"] == 0
    assert all((each == sums[0]).all() for each in sums)
    np.testing.assert_allclose(sums[0], np.sum(xs, axis=0), atol=1e-5)
    assert all((each == xs[1]).all() for each in moves)
    engine.close()
