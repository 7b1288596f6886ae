"""Lists and dicts of arrays that are reduced and broadcast as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.errors import MismatchError, UsageError
from tests.seeds import seed_of_this_run
from worker_lib import Session, tree

from .harness import together, try_together

RANKS = 3


def _tree(seed: int, rank: int) -> dict[str, Any]:
    rng = np.random.default_rng((seed, rank))
    whole = rng.standard_normal((40, 60)).astype(np.float32)
    parts = {
        "weights": [whole[::2, 5:50], whole[1::2].T, np.array(rng.standard_normal(), np.float32)],
        "counts": (rng.integers(0, 9, 7), np.zeros((0, 3))),
        "double": rng.standard_normal((5, 5))[::-1],
    }
    keys = sorted(parts, reverse=bool(rank % 2))  # the order of a dict's keys does not matter
    return {key: parts[key] for key in keys}


def _arrays(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return [each for key in sorted(part) for each in _arrays(part[key])]
    return [each for one in part for each in _arrays(one)] if isinstance(part, list | tuple) else [part]


def test_a_tree_is_summed_as_its_arrays_are(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        mine = _tree(seed, session.rank)
        wanted = [np.array(each, order="C") for each in _arrays(mine)]
        for each in wanted:
            if each.size:
                session.allreduce(each, accuracy="exact")
        arrays = _arrays(mine)
        assert tree.allreduce(session, mine, accuracy="exact") is mine
        for found, each, before in zip(_arrays(mine), wanted, arrays, strict=True):
            assert found is before
            assert found.tobytes() == each.tobytes()

    together(host.url, RANKS, call)


def test_a_tree_is_broadcast(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        mine = _tree(seed, session.rank)
        tree.broadcast(session, mine, root=2)
        assert [each.tolist() for each in _arrays(mine)] == [
            each.tolist() for each in _arrays(_tree(seed, 2))
        ]

    together(host.url, RANKS, call)


def test_torch_tensors_of_any_strides(host: EmbeddedController) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")

    def call(session: Session) -> None:
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(session.rank)
        tree.allreduce(session, [parameter.t() for parameter in model.parameters()], op="avg")
        assert all((parameter == 1).all() for parameter in model.parameters())

    together(host.url, RANKS, call)


def test_other_trees_of_the_same_size_are_told_apart(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        shapes = [(2, 3), (6,)] if session.rank else [(6,), (2, 3)]
        arrays = [np.full(shape, 1.0) for shape in shapes]
        try:
            tree.allreduce(session, arrays)
        finally:
            assert all((each == 1).all() for each in arrays)

    outcomes = try_together(host.url, RANKS, call)
    for each in outcomes:
        with pytest.raises(MismatchError, match="have trees of other keys, shapes or types"):
            each.get()


def test_what_cannot_be(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.ones(3)
        fixed = np.ones(3)
        fixed.flags.writeable = False
        for wrong, options, problem in (
            ({"a": [x, 3.0]}, {}, "/'a'/1 is a float; accepted: lists"),
            ({1: x}, {}, "key 1 at the top is no string"),
            ([fixed], {}, "/0 is read-only"),
            (None, {}, "the tree is a NoneType"),
            ([x], {"blocks": "dense"}, "blocks is of one array"),
        ):
            with pytest.raises(UsageError, match=problem):
                tree.allreduce(session, wrong, **options)
        assert tree.allreduce(session, []) == []
        with pytest.raises(UsageError):
            tree.allreduce(session, [x, np.ones(3, np.complex64)])
        assert (x == 1).all()

    together(host.url, RANKS, call)
