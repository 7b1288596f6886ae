"""Compressors in DDP's communication hook: training, checkpoints, and buckets that are cut anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import worker_lib
from tests.worker_lib.compress.table import Table
from tests.worker_lib.torch.models import batches, loss_of, train
from tests.worker_lib.torch.test_ddp import STEPS, wrapped
from tests.worker_lib.torch.worlds import run
from worker_lib.compress import (
    EF21,
    Compressor,
    Differences,
    Dithering,
    ErrorFeedback,
    IntSGD,
    PowerSGD,
    RandomBlocks,
    Rotation,
    Signs,
    TopBlocks,
    chain,
)
from worker_lib.torch import State, allreduce_hook
from worker_lib.torch.memories import BucketCompressors

COMPRESSORS: list[tuple[Compressor, float]] = [
    (Dithering(bits=8, block=256), 0.1),
    (ErrorFeedback(chain(TopBlocks(tau=0.3, block=16), Dithering(bits=8))), 0.5),
    (IntSGD(bits=8), 0.5),
    (ErrorFeedback(Rotation(bits=8, block=64)), 0.1),
    (ErrorFeedback(PowerSGD(rank=2)), 0.5),
    (ErrorFeedback(Signs(block=64)), 0.5),
    (Differences(chain(RandomBlocks(tau=0.5, block=16), Dithering(bits=8))), 0.5),
]


def _hooked() -> None:
    theirs = train("classifier", wrapped("classifier"), STEPS)
    for compressor, tolerance in COMPRESSORS:
        model = wrapped("classifier")
        with State(model, compressor=compressor) as state:
            model.register_comm_hook(state, allreduce_hook)
            ours = train("classifier", model, STEPS, check=dist.group.WORLD)
            assert state.session.stats()["collectives"] >= STEPS
        assert ours == pytest.approx(theirs, rel=tolerance), compressor.describe()


def test_training_as_with_gloo() -> None:
    run(2, _hooked, backend="gloo")


def _step(model: Any) -> list[torch.Tensor]:
    """Averaged gradients of this rank's first batch; nothing is updated."""
    x, target = next(batches("classifier", dist.get_rank(), 1))
    model.zero_grad()
    loss_of("classifier", model(x), target).backward()
    return [p.grad.clone() for p in model.parameters()]


def _resumed() -> None:
    compressor = EF21(chain(TopBlocks(tau=0.3, block=16), Dithering(levels=200, bits=16)))
    model = wrapped("classifier")
    state = State(model, compressor=compressor)
    model.register_comm_hook(state, allreduce_hook)
    for _ in range(4):
        _step(model)
    saved = copy.deepcopy(state.state_dict())
    expected = _step(model)
    again = wrapped("classifier")  # whose first step has buckets of another cut
    fresh = State(again, compressor=compressor)
    again.register_comm_hook(fresh, allreduce_hook)
    fresh.load_state_dict(saved)
    theirs = _step(again)
    # Other buckets have other blocks, so not the same ones are sent; but what is known of the gradients is
    # there. Without it, this step would know a third of their blocks.
    off = sum(float((a - b).square().sum()) for a, b in zip(expected, theirs, strict=True))
    assert off < 0.05 * sum(float(a.square().sum()) for a in expected)
    with pytest.raises(worker_lib.UsageError, match="a State with a compressor"):
        State(again).load_state_dict(saved)
    with pytest.raises(worker_lib.UsageError, match="a State without a compressor"):
        fresh.load_state_dict(State(again).state_dict())
    with pytest.raises(worker_lib.UsageError, match="state is of 'EF21'; needed: 'ErrorFeedback'"):
        State(again, compressor=ErrorFeedback(TopBlocks(tau=0.5))).load_state_dict(saved)
    for options, said in (
        ({"bits": 8}, "it decides on these itself"),
        ({"density": 0.5}, "it decides on these itself"),
        ({"error_feedback": True}, "it decides on these itself"),
    ):
        with pytest.raises(worker_lib.UsageError, match=said):
            State(again, compressor=compressor, **options)
    with pytest.raises(worker_lib.UsageError, match="pass the model"):
        State(compressor=compressor)
    with pytest.raises(worker_lib.UsageError, match="compressor is a str"):
        State(again, compressor="top")


def test_a_state_moves_to_another_cut_and_wrong_ones_are_refused() -> None:
    run(2, _resumed)


# ---------------------------------------------------------------------- without DDP


def model_of(sizes: Sequence[int]) -> dict[nn.Parameter, str]:
    return {nn.Parameter(torch.zeros(size)): f"p{i}" for i, size in enumerate(sizes)}


def reduced(compressor: Compressor, gradients: Sequence[np.ndarray[Any, Any]]) -> None:
    Table([compressor]).round([np.concatenate(gradients)])


def test_memories_follow_their_parameters() -> None:
    names = model_of([30, 50, 7, 100])
    ps = list(names)
    buckets = BucketCompressors(ErrorFeedback(TopBlocks(k=1, block=5)), names)
    rng = np.random.default_rng(0)
    gradients = {p: rng.standard_normal(p.numel()) for p in ps}
    for cut in ([ps[3]], [ps[0], ps[1], ps[2]]):
        compressor = buckets.of(cut)
        assert buckets.of(cut) is compressor
        reduced(compressor, [gradients[p] for p in cut])
        reduced(compressor, [gradients[p] for p in cut])

    def left(p: nn.Parameter) -> np.ndarray[Any, Any]:
        compressor, at = buckets._where[names[p]]
        return compressor.memories()["residual"][at : at + p.numel()].copy()

    before = {p: left(p) for p in ps}
    saved = buckets.state_dict()
    for cut in ([ps[2], ps[3]], [ps[1], ps[0]]):
        compressor = buckets.of(cut)
        assert compressor.step == 2
        for p in cut:
            assert np.array_equal(left(p), before[p])
        reduced(compressor, [gradients[p] for p in cut])
    assert len(buckets.state_dict()) == 2  # nothing is left of the old cut
    assert len({c.stream for c in buckets._of.values()}) == 2
    fresh = BucketCompressors(ErrorFeedback(TopBlocks(k=1, block=5)), names)
    fresh.load_state_dict(saved)
    buckets = fresh
    buckets.of([ps[1], ps[3]])
    assert np.array_equal(left(ps[1]), before[ps[1]])
    assert np.array_equal(left(ps[0]), before[ps[0]])


def test_wrong_states_change_nothing() -> None:
    names = model_of([30, 50])
    buckets = BucketCompressors(ErrorFeedback(TopBlocks(k=1, block=5)), names)
    reduced(buckets.of(list(names)), [np.ones(80)])
    before = buckets.state_dict()
    for other, said in (
        (model_of([30, 51]), "state has 81 elements of 'residual'"),
        (model_of([30, 50, 2]), "no such parameter"),
    ):
        its = BucketCompressors(ErrorFeedback(TopBlocks(k=1, block=5)), other)
        reduced(its.of(list(other)), [np.ones(sum(p.numel() for p in other))])
        with pytest.raises(worker_lib.UsageError, match=said):
            buckets.load_state_dict(its.state_dict())
    assert np.array_equal(
        buckets.state_dict()[0]["state"]["memories"]["residual"], before[0]["state"]["memories"]["residual"]
    )
    with pytest.raises(worker_lib.UsageError, match="not of the model"):
        buckets.of([nn.Parameter(torch.zeros(30))])
