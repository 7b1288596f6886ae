"""Compressed Adam and LAMB: the originals in the warm-up, the phase after, equal at all ranks under loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session, UsageError
from worker_lib.adam import CompressedAdam, CompressedLamb
from worker_lib.compress import ErrorFeedback, Rotation, SharedExponent

Array = npt.NDArray[np.float32]
SIZES = (300, 700)
RANKS = 3


def start(rank: int) -> list[Array]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal(size).astype(np.float32) for size in SIZES]


def gradients(x: list[Array], seed: int, rank: int, step: int) -> list[Array]:
    """Towards a point of this rank, with noise."""
    goals = np.random.default_rng((seed, rank))
    noise = np.random.default_rng((seed, rank, step))
    return [
        each - goals.standard_normal(each.size).astype(np.float32)
        + 0.1 * noise.standard_normal(each.size).astype(np.float32)
        for each in x
    ]  # fmt: skip


def formulas(seed: int, steps: int, warm_up: int, rate: float, lamb: bool) -> Array:
    """All ranks in one process, moments summed exactly; LAMB's coefficients as the paper has them."""
    x = np.concatenate(start(0)).astype(np.float64)
    m, v, fresh = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    means, factors = [0.0] * len(SIZES), [1.0] * len(SIZES)
    tensors = np.split(np.arange(x.size), np.cumsum(SIZES)[:-1])
    for step in range(steps):
        parts = np.split(x.astype(np.float32), np.cumsum(SIZES)[:-1])
        each = [np.concatenate(gradients(parts, seed, rank, step)).astype(float) for rank in range(RANKS)]
        mean = np.mean(each, axis=0)
        m = 0.9 * m + 0.1 * mean
        fresh = 0.999 * fresh + 0.001 * mean**2
        if step < warm_up:
            v = fresh
        root = np.sqrt(v / (1 - 0.999 ** min(step + 1, warm_up))) + 1e-8
        ahead = m / (1 - 0.9 ** (step + 1)) / root
        moved = ahead + 0.01 * x
        for i, at in enumerate(tensors if lamb else ()):
            if step < warm_up:
                c = np.clip(np.linalg.norm(x[at]) / np.linalg.norm(moved[at]), 0.01, 10)
                means[i] = 0.9 * means[i] + 0.1 * c
            else:
                ratio = (root / (np.sqrt(fresh / (1 - 0.999 ** (step + 1))) + 1e-8))[at].max()
                share = min(1, np.linalg.norm(ahead[at]) / np.linalg.norm(moved[at]))
                bounded = np.clip(ratio * share + 1 - share, 0.5, 4)
                factors[i] = np.clip(bounded, 0.9 * factors[i], 1.1 * factors[i])
                c = factors[i] * means[i] / (1 - 0.9**warm_up)
            moved[at] *= c
        x -= rate * moved
    return x.astype(np.float32)


KINDS = pytest.mark.parametrize("kind", [CompressedAdam, CompressedLamb])


@KINDS
def test_both_phases_are_the_formulas(lossy: EmbeddedController, kind: type[CompressedAdam]) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[Array, bytes]:
        x = start(session.rank)
        adam = kind(session, x, rate=0.01, warm_up=6, weight_decay=0.01, compressor=SharedExponent(32))
        for step in range(16):
            adam.step(gradients(x, seed, session.rank, step))
        return np.concatenate(x), np.concatenate(x).tobytes()

    found = together(lossy.url, RANKS, call)
    assert len({digest for _, digest in found}) == 1
    expected = formulas(seed, 16, 6, 0.01, kind is CompressedLamb)
    assert np.allclose(found[0][0], expected, atol=1e-4)
    assert not np.allclose(found[0][0], formulas(seed, 16, 6, 0.01, kind is CompressedAdam), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "compressor"),
    [
        (CompressedAdam, None),
        (CompressedAdam, ErrorFeedback(Rotation(bits=4, block=256))),
        (CompressedLamb, None),
    ],
)
def test_compressed_it_still_finds_the_mean(
    lossy: EmbeddedController, kind: type[CompressedAdam], compressor: Any
) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[bytes, float]:
        x = start(session.rank)
        adam = kind(
            session, x, rate=0.05, warm_up=30, compressor=None if compressor is None else compressor.fork(0)
        )
        for step in range(150):
            adam.rate = 0.05 * (1 - step / 150)
            adam.step(gradients(x, seed, session.rank, step))
        goals = [
            np.concatenate([rng.standard_normal(size) for size in SIZES])
            for rng in (np.random.default_rng((seed, rank)) for rank in range(RANKS))
        ]
        off = np.linalg.norm(np.concatenate(x) - np.mean(goals, axis=0))
        first = np.linalg.norm(np.concatenate(start(0)) - np.mean(goals, axis=0))
        return np.concatenate(x).tobytes(), float(off / first)

    found = together(lossy.url, RANKS, call)
    assert len({digest for digest, _ in found}) == 1
    assert found[0][1] < 0.35


def test_elements_without_a_gradient_stay(lossy: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[bool, bool]:
        x = start(0)
        adam = CompressedAdam(session, x, rate=0.05, warm_up=3)
        for step in range(10):
            these = gradients(x, seed, session.rank, step)
            these[0][:100] = 0 if step < 6 else 1
            adam.step(these)
        return np.array_equal(x[0][:100], start(0)[0][:100]), np.array_equal(x[0][100:], start(0)[0][100:])

    for still, all_still in together(lossy.url, 2, call):
        assert still
        assert not all_still


@KINDS
def test_a_checkpoint(lossy: EmbeddedController, kind: type[CompressedAdam]) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[bytes, bytes]:
        x = start(0)
        adam = kind(session, x, rate=0.05, warm_up=3)
        for step in range(8):
            adam.step(gradients(x, seed, session.rank, step))
        saved = adam.state_dict()
        y = start(1)
        other = kind(session, y, rate=0.05, warm_up=3)
        other.load_state_dict(saved)
        for each, run in ((x, adam), (y, other)):
            for step in range(8, 12):
                run.step(gradients(each, seed, session.rank, step))
        with pytest.raises(UsageError, match="x in state has 1000 elements; here: 5"):
            kind(session, [np.zeros(5, np.float32)], rate=1, warm_up=1).load_state_dict(saved)
        another = CompressedLamb if kind is CompressedAdam else CompressedAdam
        with pytest.raises(UsageError, match=f"; needed: one of a {another.__name__}, with "):
            another(session, start(0), rate=1, warm_up=1).load_state_dict(saved)
        if kind is CompressedLamb:
            whole = [np.zeros(1000, np.float32)]  # as many elements in one tensor
            with pytest.raises(UsageError, match=r"mean in state has . elements; here: 1"):
                kind(session, whole, rate=1, warm_up=1).load_state_dict(saved)
        return np.concatenate(x).tobytes(), np.concatenate(y).tobytes()

    for mine, again in together(lossy.url, 2, call):
        assert mine == again


def test_tensors_as_torch_has_it(lossy: EmbeddedController) -> None:
    torch = pytest.importorskip("torch")

    def call(session: Session) -> list[list[Any]]:
        torch.manual_seed(session.rank)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        adam = CompressedAdam(session, model.parameters(), rate=0.01, warm_up=100)
        other = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        other.load_state_dict(model.state_dict())
        theirs = torch.optim.Adam(other.parameters(), lr=0.01)
        data = torch.randn(32, 8, generator=torch.Generator().manual_seed(5))
        for _ in range(20):  # all ranks have the same data, so that the mean is everyone's gradient
            for net, optimizer in ((model, adam), (other, theirs)):
                net.zero_grad()
                net(data).square().mean().backward()
                optimizer.step()
        return [[p.detach().numpy().copy() for p in net.parameters()] for net in (model, other)]

    for mine, theirs in together(lossy.url, 2, call):
        for a, b in zip(mine, theirs, strict=True):
            assert np.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"warm_up": 0}, "warm_up is 0; accepted: steps from 1"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"parameters": []}, "there are no parameters"),
        ({"parameters": [np.zeros(3)]}, "parameter 0 has type float64; accepted: float32"),
    ],
)
def test_what_is_refused(lossy: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    def call(session: Session) -> None:
        given = {"parameters": start(0), "rate": 0.1, "warm_up": 5, **arguments}
        with pytest.raises(UsageError, match=words):
            CompressedAdam(session, **given)

    together(lossy.url, 1, call)


def test_gradients_that_do_not_fit(lossy: EmbeddedController) -> None:
    def call(session: Session) -> None:
        adam = CompressedAdam(session, start(0), rate=0.1, warm_up=5)
        with pytest.raises(UsageError, match="1 gradients; needed: 2"):
            adam.step([np.zeros(300, np.float32)])
        with pytest.raises(UsageError, match="gradient 1 has 3 elements; its parameter has 700"):
            adam.step([np.zeros(300, np.float32), np.zeros(3, np.float32)])
        with pytest.raises(UsageError, match="gradient 0 has type float64"):
            adam.step([np.zeros(300), np.zeros(700, np.float32)])
        assert adam.steps == 0

    together(lossy.url, 1, call)
