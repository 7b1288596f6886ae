"""Every method through a switch that loses, doubles and reorders packets: in threads, and in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import processes, together
from worker_lib import Session
from worker_lib.compress import (
    EF21,
    EF21SGDM,
    Compressor,
    Differences,
    Dithering,
    ErrorFeedback,
    IntSGD,
    Marina,
    Modular,
    PowerSGD,
    RandomBlocks,
    Rotation,
    SharedExponent,
    Signs,
    StochasticRounding,
    Threshold,
    TopBlocks,
    chain,
)

from .table import Table

Array = npt.NDArray[Any]
SIZE = 5003
WORDS = 352
PACKET = 16 + 4 * WORDS  # bytes, at most
ROUNDS = 4
METHODS: dict[str, Callable[[], Compressor]] = {
    "wide": SharedExponent,
    "narrow": lambda: SharedExponent(8),
    "fixed": lambda: StochasticRounding(2.0**-5, bits=12),
    "dithering": lambda: Dithering(levels=8),
    "dithering by block": lambda: Dithering(bits=6, p=2, block=256),
    "rotation": lambda: Rotation(bits=8),
    "rotation, 4 bits, feedback": lambda: ErrorFeedback(Rotation(bits=4, block=256)),
    "signs, feedback": lambda: ErrorFeedback(Signs(block=512), decay=0.9),
    "intsgd": lambda: IntSGD(8),
    "modular": Modular,
    "power, narrow": lambda: ErrorFeedback(PowerSGD(rank=2, shapes=[(70, 70), (100,), (3,)], bits=16)),
    "power": lambda: PowerSGD(rank=3),
    "random": lambda: RandomBlocks(tau=0.2),
    "random, quantized": lambda: chain(RandomBlocks(tau=0.2), Dithering(bits=8)),
    "random, narrow": lambda: chain(RandomBlocks(tau=0.2), SharedExponent(16)),
    "independent": lambda: RandomBlocks(tau=0.2, independent=True),
    "top": lambda: TopBlocks(tau=0.1),
    "top, quantized": lambda: chain(TopBlocks(tau=0.1), Dithering(bits=8)),
    "top, narrow": lambda: chain(TopBlocks(tau=0.1), SharedExponent(8)),
    "threshold": lambda: chain(Threshold(3.0), Dithering(levels=3)),
    "feedback, narrow": lambda: ErrorFeedback(chain(TopBlocks(tau=0.1), SharedExponent(8))),
    "ef21, averaged": lambda: EF21SGDM(TopBlocks(tau=0.1), eta=0.3),
    "marina": lambda: Marina(chain(RandomBlocks(tau=0.5), Dithering(levels=8)), p=0.3),
    "ef21": lambda: EF21(TopBlocks(tau=0.1)),
    "diana": lambda: Differences(chain(RandomBlocks(tau=0.5), Dithering(levels=8))),
    "diana, narrow": lambda: Differences(SharedExponent(8)),
}


def vector(seed: int, rank: int, turn: int, dtype: Any) -> Array:
    x = np.random.default_rng((seed, rank, turn)).standard_normal(SIZE)
    x[1000:2000] = 0  # nobody has anything there
    return x.astype(dtype)


class Recorder(Compressor):
    """Keeps what each round's `own` was."""

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        self.inner = inner
        self.owns: list[Array] = []

    def check(self, size: int, round: Any) -> None:
        self.inner.prepare(size, round)

    def share(self, x: Array, round: Any) -> Any:
        return self.inner.share(x, round)

    def encode(self, x: Array, shared: Any, round: Any) -> Any:
        return self.inner.encode(x, shared, round)

    def own(self, message: Any, shared: Any, round: Any) -> Array:
        return self.inner.own(message, shared, round)

    def decode(self, total: Any, message: Any, shared: Any, round: Any) -> Array:
        self.owns.append(np.array(self.inner.own(message, shared, round), np.float64))
        return self.inner.decode(total, message, shared, round)


def run_all(session: Session, seed: int) -> dict[str, tuple[list[Array], list[Array]]]:
    """Each method, in both types: results, and what this rank's messages alone said."""
    out = {}
    for name, make in METHODS.items():
        for dtype in (np.float32, np.float64):
            recorder = Recorder(make())
            results = [
                session.allreduce(vector(seed, session.rank, turn, dtype), compressor=recorder)
                for turn in range(ROUNDS)
            ]
            out[f"{name}, {np.dtype(dtype).name}"] = results, recorder.owns
    return out


@pytest.fixture(scope="module")
def lossy() -> Iterator[EmbeddedController]:
    with EmbeddedController(
        faults=Faults(loss=0.02, duplicate=0.02, reorder=0.02, seed=seed_of_this_run())
    ) as controller:
        yield controller


def check(every: list[dict[str, tuple[list[Array], list[Array]]]]) -> None:
    for name in every[0]:
        results = [each[name][0] for each in every]
        owns = np.array([each[name][1] for each in every])
        for other in results[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(other, results[0], strict=True)), name
        summed = owns.sum(axis=0)
        scale = float(np.abs(summed).max())
        tolerance = 1e-13 if name.endswith("64") and "narrow" not in name else 2e-6
        assert np.allclose(np.array(results[0]), summed, rtol=0, atol=tolerance * scale), name
        assert scale > 1, name


def test_the_sum_of_what_was_sent_through_a_bad_network(lossy: EmbeddedController) -> None:
    check(together(lossy.url, 3, run_all, seed_of_this_run()))


def test_in_processes_as_in_one(lossy: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", "udp")
    seed = seed_of_this_run()
    with processes(lossy.url, 2, run_all, seed) as ranks:
        every = [rank.finish().get() for rank in ranks]
    check(every)
    # Messages without the session's own lanes are the same to the bit as words added by hand.
    for name in (
        "fixed",
        "dithering",
        "dithering by block",
        "rotation",
        "random, quantized",
        "top, quantized",
    ):
        table = Table([METHODS[name]() for _ in range(2)])
        for turn in range(ROUNDS):
            total, _ = table.round([vector(seed, rank, turn, np.float32) for rank in range(2)])
            assert np.array_equal(total, every[0][f"{name}, float32"][0][turn]), name


def traffic(session: Session, name: str) -> int:
    """Bytes that a rank sends in a round, without what a slow computer sends again; the least of some."""
    c = METHODS[name]()
    x = np.random.default_rng(session.rank).standard_normal(200_000).astype(np.float32)
    session.allreduce(x.copy(), compressor=c)
    sent = []
    for _ in range(8):
        before = session.stats()
        session.allreduce(x.copy(), compressor=c)
        after = session.stats()
        again = after["retransmissions"] - before["retransmissions"]
        sent.append(int(after["bytes_sent"] - before["bytes_sent"]) - again * PACKET)
    return min(sent)


def test_what_it_saves() -> None:
    with EmbeddedController() as host:
        sent = {
            name: together(host.url, 2, traffic, name, words=WORDS)[0]
            for name in ("intsgd", "modular", "random", "random, quantized", "top, quantized")
        }
    full = 200_000 * 4
    assert sent["intsgd"] < 0.27 * full
    assert sent["modular"] < 0.27 * full
    assert sent["random"] < 0.22 * full
    assert sent["random, quantized"] < 0.06 * full
    assert sent["top, quantized"] < 0.06 * full
