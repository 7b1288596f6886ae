"""The process group against gloo's answers, in processes."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import worker_lib
import worker_lib.torch
from switchagg.control.client import ControllerClient
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads
from tests.worker_lib.torch import worlds
from tests.worker_lib.torch.worlds import OWN_SWITCH, attempt, rest, run
from worker_lib.torch import Options, SwitchGroup, gloo

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64]
OTHERS = [torch.uint8, torch.int8, torch.int16, torch.bool, torch.complex64]
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (0, 3), (3,), (5, 7), (2, 3, 4), (70_001,)]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, which every type can add without an error."""
    generator = torch.Generator().manual_seed(seed + 1000 * dist.get_rank())
    return torch.randint(0, 8, shape, generator=generator).to(dtype)


def outcome(call: Callable[[], Any]) -> tuple[Any, bool]:
    try:
        return call(), True
    except Exception:
        return None, False


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def in_place(operation: Callable[..., Any], **more: Any) -> Callable[[torch.Tensor, Any], Any]:
    def call(x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        operation(x, group=group, **more)
        return x

    return call


def gather_list(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x, group=group)
    return out


def gather_into(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.reshape(-1)
    out = torch.empty(dist.get_world_size() * x.numel(), dtype=x.dtype)
    dist.all_gather_into_tensor(out, x, group=group)
    return out


def scatter_tensor(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = torch.stack([x.reshape(-1) + r for r in range(dist.get_world_size())])
    out = torch.empty(x.shape[1], dtype=x.dtype)
    dist.reduce_scatter_tensor(out, x.reshape(-1), group=group)
    return out


def asynchronous(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.clone()
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert work.is_completed()
    return x


def through_future(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.clone()
    return dist.all_reduce(x, group=group, async_op=True).get_future().then(lambda f: f.value()[0]).wait()


def reduced(x: torch.Tensor, group: Any) -> torch.Tensor:
    result = x.clone()
    dist.reduce(result, dst=0, group=group)
    if dist.get_rank() == 0:
        return result
    if group is dist.group.WORLD and x.dtype in FLOATS + INTEGERS:
        assert torch.equal(result, x)  # gloo leaves what it has added so far
    return x


CALLS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "sum": in_place(dist.all_reduce),
    "max": in_place(dist.all_reduce, op=dist.ReduceOp.MAX),
    "product": in_place(dist.all_reduce, op=dist.ReduceOp.PRODUCT),
    "broadcast": in_place(dist.broadcast, src=1),
    "reduce": reduced,
    "min": in_place(dist.all_reduce, op=dist.ReduceOp.MIN),
    "all_gather": gather_list,
    "all_gather_into_tensor": gather_into,
    "reduce_scatter_tensor": scatter_tensor,
    "async": asynchronous,
    "future": through_future,
}


def _like_gloo(seed: int) -> list[str]:
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    different = []
    for name, call in CALLS.items():
        for dtype in FLOATS + INTEGERS + OTHERS:
            for shape in SHAPES[:-1] if dtype in OTHERS else SHAPES:
                x = drawn(shape, dtype, seed)
                (mine, worked), (theirs, expected) = (
                    outcome(lambda c=call, x=x: c(x, ours)),
                    outcome(lambda c=call, x=x: c(x, gloo)),
                )
                # We may do what gloo cannot; never the other way.
                if (expected and not worked) or (expected and not same(mine, theirs)):
                    different.append(f"{name} {dtype} {shape}: {mine} {theirs}")
    return different


def _by_the_switch() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    session = dist.group.WORLD.session
    x = torch.tensor([float(r), -0.0 if r else 0.0, float("nan") if r == 1 else 1.0, -float(r)])
    for op, expected in ((dist.ReduceOp.MAX, [n - 1.0, 0.0]), (dist.ReduceOp.MIN, [0.0, 1 - n])):
        before = session.stats()["collectives"]
        y = x.clone()
        dist.all_reduce(y, op=op)
        assert session.stats()["collectives"] == before + 1
        assert [y[0].item(), y[3].item()] == expected
        assert torch.signbit(y[1]).item() is (op == dist.ReduceOp.MIN)
        assert y[2].isnan()
        y = x.clone()
        dist.reduce(y, 1, op)
        assert session.stats()["collectives"] == before + 2
        assert (y[0].item() == expected[0]) if r == 1 else torch.equal(y[:1], x[:1])
    large = torch.full((1 << 18,), float(r))
    before = session.stats()["elements"]
    dist.all_reduce(large, op=dist.ReduceOp.MAX)  # through gloo; the switch has a mark
    assert session.stats()["elements"] - before < 100
    assert (large == n - 1).all()


def test_maxima_and_minima_that_are_not_large_go_through_the_switch() -> None:
    run(3, _by_the_switch)


def test_every_operation_on_every_type_is_what_gloo_says() -> None:
    seed = seed_of_this_run() % 2**31
    assert run(3, _like_gloo, seed) == [[], [], []]


def _futures_like_gloos() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    x = torch.full((3,), float(r))
    sources = [x.clone() for _ in range(n)] if r == 0 else None
    calls: list[Callable[[Any], Any]] = [
        lambda group: dist.all_reduce(x.clone(), group=group, async_op=True),
        lambda group: dist.all_reduce(x.to(torch.int8), group=group, async_op=True),
        lambda group: dist.broadcast(x.clone(), 1, group=group, async_op=True),
        lambda group: dist.all_gather([x.clone() for _ in range(n)], x, group=group, async_op=True),
        lambda group: dist.reduce(x.clone(), 1, dist.ReduceOp.PRODUCT, group=group, async_op=True),
        lambda group: dist.scatter(x.clone(), sources, 0, group=group, async_op=True),
        lambda group: dist.barrier(group=group, async_op=True),
    ]
    gloo = dist.new_group(backend="gloo")
    for call in calls:
        ours, theirs = (call(group).get_future().wait() for group in (dist.group.WORLD, gloo))
        assert len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    rest()


def test_futures_hold_what_gloos_do() -> None:
    run(3, _futures_like_gloos)


def _averages() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    for dtype in FLOATS:
        x = torch.full((9,), float(2 * r), dtype=dtype)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert (x == n - 1).all()
    for dtype in INTEGERS:  # as NCCL has it: the quotient of the exact sum, towards zero
        x = torch.tensor([r, -r, 2**30 if dtype is torch.int64 else 5], dtype=dtype)
        expected = [int(n * (n - 1) / 2 / n), -int(n * (n - 1) / 2 / n), x[2].item()]
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert x.tolist() == expected
        out = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(out, torch.full((2 * n,), 3 * r - 4, dtype=dtype), op=dist.ReduceOp.AVG)
        assert out.tolist() == [int(sum(3 * k - 4 for k in range(n)) / n)] * 2
    with pytest.raises(RuntimeError, match=r"cast|AVG"):  # gloo says it, by release
        dist.all_reduce(torch.ones(3, dtype=torch.int8), op=dist.ReduceOp.AVG)


def _strided() -> None:
    n = dist.get_world_size()
    base = torch.zeros(6, 8)
    for view in (base.t(), base[:, ::2], base[1:3, 2:5], base[::3]):
        base.fill_(1)
        dist.all_reduce(view)
        assert (view == n).all()
        assert int((base == n).sum()) == view.numel()  # and nothing beside it
        view.fill_(dist.get_rank())
        work = dist.broadcast(view, src=1, async_op=True)
        while not work.is_completed():
            time.sleep(0.001)
        assert (view == 1).all()
    rows = [torch.zeros(8, 6).t() for _ in range(n)]
    dist.all_gather(rows, torch.full((6, 8), float(dist.get_rank())))
    assert [row.unique().tolist() for row in rows] == [[r] for r in range(n)]
    out = torch.zeros(4, 2 * n)[:, ::2]
    dist.reduce_scatter(out, [torch.full((4, n), float(r)) for r in range(n)])
    assert (out == n * dist.get_rank()).all()


def _leaves_and_views() -> None:
    n = dist.get_world_size()
    parameter = torch.nn.Parameter(torch.ones(5))
    dist.all_reduce(parameter.data)
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert (parameter == n * n).all()
    z = torch.full((4,), 1 + 2j)
    dist.all_reduce(z)
    assert (z == n * (1 + 2j)).all()
    negative = torch.full((4,), complex(0, 1 + dist.get_rank())).conj().imag  # a view whose sign is a flag
    dist.all_reduce(negative)
    assert (negative == -n * (n + 1) / 2).all()


def _coalesced() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    xs = [torch.full((k,), float(r)) for k in (3, 0, 5000)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert all((x == n * (n - 1) / 2).all() for x in xs)
    outs = [torch.empty(n * k) for k in (2, 7)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // n,), float(r)))
    manager.wait()
    assert all(out.view(n, -1).eq(torch.arange(n)[:, None]).all() for out in outs)
    pieces = [torch.empty(k) for k in (2, 7)]
    with dist._coalescing_manager():
        for piece in pieces:
            dist.reduce_scatter_tensor(piece, torch.arange(n).repeat_interleave(piece.numel()).float())
    assert all((piece == n * r).all() for piece in pieces)
    products = [torch.empty(k) for k in (2, 7)]
    with dist._coalescing_manager():  # through gloo
        for piece in products:
            own = torch.arange(n).repeat_interleave(piece.numel()).float()
            dist.reduce_scatter_tensor(piece, own, op=dist.ReduceOp.PRODUCT)
    assert all((piece == float(r) ** n).all() for piece in products)
    dist.all_reduce_coalesced(xs)
    assert (xs[0] == n * n * (n - 1) / 2).all()
    # Given twice, by one rank alone: gloo flattens what it is given, so nothing is summed twice.
    first, second = torch.full((7,), float(r)), torch.full((7,), float(r))
    dist.all_reduce_coalesced([first, first if r == 0 else second])
    assert (first == n * (n - 1) / 2).all()
    assert (second == (r if r == 0 else n * (n - 1) / 2)).all()


def _many_in_flight() -> None:
    n = dist.get_world_size()
    xs = [torch.full((1000 * k + 1,), 1.0) for k in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    twos = [torch.full((3,), 2) for _ in range(5)]
    works += [dist.all_reduce(two, op=dist.ReduceOp.PRODUCT, async_op=True) for two in twos]  # through gloo
    works.append(dist.barrier(async_op=True))
    for work in reversed(works):
        work.wait()
    assert all((x == n).all() for x in xs)
    assert all((two == 2**n).all() for two in twos)


def _rest_through_gloo() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    objects: list[Any] = [None] * n
    dist.all_gather_object(objects, {"rank": r})
    assert objects == [{"rank": k} for k in range(n)]
    gathered = [torch.empty(2) for _ in range(n)] if r == 0 else None
    dist.gather(torch.full((2,), float(r)), gathered, dst=0)
    assert gathered is None or [g[0].item() for g in gathered] == list(range(n))
    mine = torch.empty(2)
    dist.scatter(mine, [torch.full((2,), float(k)) for k in range(n)] if r == 0 else None, src=0)
    assert (mine == r).all()
    out = torch.empty(n)
    dist.all_to_all_single(out, torch.full((n,), float(r)))
    assert out.tolist() == list(range(n))
    parts = [torch.empty(k + r, 2, dtype=torch.int16).t() for k in range(n)]  # from each rank, strided
    sent = [torch.full((2, k + r), r, dtype=torch.int16) for k in range(n)]
    exchanged = dist.all_to_all(parts, sent, async_op=True)
    exchanged.wait()
    assert all((part == k).all() for k, part in enumerate(parts))
    assert exchanged.result() == parts
    if r == 0:
        dist.send(torch.ones(3), 1)
    elif r == 1:
        dist.recv(out[:3], 0)
        assert (out[:3] == 1).all()
    said = [f"from {r}"]
    dist.broadcast_object_list(said, src=2)
    assert said == ["from 2"]


def _tensors_that_only_gloo_holds() -> None:
    """Gloo's threads free them while the next operation is handed to gloo."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine, out = torch.empty(2), torch.empty(n)
    for _ in range(300):
        dist.scatter(mine, [torch.full((2,), float(k)) for k in range(n)] if r == 0 else None, src=0)
        dist.all_to_all_single(out, torch.full((n,), float(r)))
        assert out.tolist() == list(range(n))


def test_gloo_frees_tensors_while_it_is_called() -> None:
    run(3, _tensors_that_only_gloo_holds)


def _all_of_these() -> None:
    for check in (
        _averages, _strided, _leaves_and_views, _coalesced, _many_in_flight, _rest_through_gloo
    ):  # fmt: skip
        check()
        dist.barrier()


def test_averages_strides_coalescing_and_what_gloo_does() -> None:
    run(3, _all_of_these)


def _groups() -> Any:
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    alone = [dist.new_group([r]) for r in range(4)]
    mixed = dist.new_group([3, 1], backend="switchagg", pg_options=Options(bits=16))
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x, group=pairs[rank // 2])
    assert (x == (1 if rank < 2 else 5)).all()
    dist.all_reduce(x, group=alone[rank])
    dist.broadcast(x, src=rank, group=alone[rank])
    dist.barrier(group=alone[rank])
    assert (x == (1 if rank < 2 else 5)).all()
    if rank in (1, 3):
        y = torch.full((5,), float(rank))
        dist.all_reduce(y, op=dist.ReduceOp.AVG, group=mixed)
        assert (y - 2).abs().max() < 0.01
        dist.broadcast(y, src=3, group=mixed)
        dist.destroy_process_group(mixed)
    world = dist.group.WORLD
    assert isinstance(world, SwitchGroup)
    assert dist.get_backend() == "switchagg"
    dist.all_reduce(x)
    assert (x == 12).all()
    return x[0].item()


def test_groups_have_slots_of_their_own_and_one_rank_needs_none() -> None:
    assert run(4, _groups, environment=OWN_SWITCH) == [12] * 4


def _split() -> float:
    world, rank = dist.group.WORLD, dist.get_rank()
    named = {"timeout": timedelta(seconds=20), "group_name": f"half {rank % 2}"}
    with pytest.raises(worker_lib.UsageError, match="needs a group_name"):
        world.split_group([0, 2])
    with pytest.raises(worker_lib.UsageError, match="pg_options is a _Options; accepted"):
        world.split_group([rank], opts=dist.ProcessGroupGloo._Options(), group_name="alone")
    assert world.split_group([(rank + 1) % 4], group_name="others") is None
    half = world.split_group(
        [2, 0] if rank % 2 == 0 else [3, 1],
        opts=Options(bits=16, transport="udp", congestion="shared"),
        **named,
    )
    assert (half.group_name, half.size(), half.rank()) == (named["group_name"], 2, 1 - rank // 2)
    assert (half.settings.bits, half.session.timeout) == (16, 20.0)
    assert half.session.stats()["window"] < 64, "it starts with ten packets"
    x = torch.full((10,), 2, dtype=torch.int64) ** rank
    half.allreduce([x]).wait()
    half.shutdown()
    return x[0].item()


def test_a_group_is_split() -> None:
    assert run(4, _split) == [5, 10, 5, 10]


def _destroyed() -> list[str]:
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
    within = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(10), group=within)
    dist.destroy_process_group()
    with pytest.raises(worker_lib.SessionBrokenError, match="destroyed"):
        group.allreduce([torch.ones(3)])
    with pytest.raises(worker_lib.SessionBrokenError, match="destroyed"):
        group.allreduce([torch.ones(3, dtype=torch.int8)])
    with pytest.raises(worker_lib.SessionBrokenError, match="destroyed"):
        group.barrier()
    group.shutdown()
    del group, within
    gc.collect()
    return [t.name for t in threading.enumerate()]


def test_destroy_leaves_nothing() -> None:
    plain = run(2, _nothing_left_of_gloo, backend="gloo")
    for threads in run(2, _destroyed, environment=OWN_SWITCH):
        assert threads == ["MainThread"]
    run(2, _left, max(each[0] for each in plain), max(each[1] for each in plain), environment=OWN_SWITCH)


def _busy() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def _nothing_left_of_gloo() -> tuple[int, int]:
    dist.all_reduce(torch.ones(3))
    rest()
    dist.destroy_process_group()
    gc.collect()
    return _busy()


def _left(tasks: int, files: int) -> None:
    """No more is left than `tasks` and `files`, once threads that have been joined are gone."""
    dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    _nothing_left_of_gloo()
    eventually(lambda: _busy()[0] <= tasks and _busy()[1] <= files)


def _mismatch() -> str:
    with pytest.raises(worker_lib.MismatchError) as caught:
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    x = torch.ones(3)
    dist.all_reduce(x)  # and on it goes
    assert (x == 2).all()
    return str(caught.value)


def test_ranks_that_disagree_are_told_so() -> None:
    for said in run(2, _mismatch):
        assert "elements" in said
        assert "allreduce(float32" in said


def _late(seconds: float) -> None:
    """Rank 1 stays away until rank 0 has given up."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["timed out"], timedelta(seconds=60))
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    with pytest.raises(worker_lib.CollectiveTimeout, match=f"within {seconds:g} s"):
        work.wait(timedelta(seconds=seconds))
    with pytest.raises(worker_lib.CollectiveTimeout):
        work.wait()
    assert isinstance(work.exception(), worker_lib.CollectiveTimeout)
    assert work.is_completed()
    assert not work.is_success()
    store.set("timed out", "")


def test_a_timeout_is_honoured() -> None:
    run(2, _late, 0.5)


def _dies() -> str:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["0 waits", "2 waits"], timedelta(seconds=100))
        os.kill(os.getpid(), 9)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    store.set(f"{dist.get_rank()} waits", "")
    with pytest.raises(RuntimeError, match="rank 1") as caught:
        future.wait()
    return str(caught.value)


def test_a_dead_rank_is_named_on_every_other() -> None:
    outcomes = attempt(3, _dies)
    assert outcomes[1].status == -9
    assert "WorkerLostError" in outcomes[0].get()
    assert "WorkerLostError" in outcomes[2].get()


def _fails(call: Callable[[], None]) -> str:
    gloo._REASON = 60.0  # type: ignore[misc]
    call()
    if dist.get_rank() == 1:
        try:
            raise ValueError("bad batch")
        finally:
            dist.destroy_process_group()
    with pytest.raises(worker_lib.WorkerLostError) as caught:
        call()
    return str(caught.value)


def _all_reduce() -> None:
    dist.all_reduce(torch.ones(3))


def _product() -> None:
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.PRODUCT)


def _reduce() -> None:
    dist.reduce(torch.ones(3), 0, dist.ReduceOp.PRODUCT)


def _reduce_to_the_other() -> None:
    dist.reduce(torch.ones(3), 1, dist.ReduceOp.PRODUCT)


def _gather() -> None:
    dist.gather(torch.ones(3), [torch.ones(3) for _ in range(2)] if dist.get_rank() == 0 else None, 0)


def _late_through_gloo() -> list[float]:
    if dist.get_rank() == 1:
        time.sleep(3 * gloo._LOOK)
    x = torch.full((3,), 2.0)
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    work = dist.reduce(x, 0, dist.ReduceOp.PRODUCT, async_op=True)
    assert work is not None
    work.wait(timedelta(seconds=100))
    return x.tolist()  # type: ignore[no-any-return]


def test_a_late_rank_is_waited_for_through_gloo() -> None:
    assert run(2, _late_through_gloo)[0] == [16.0] * 3


class _EndsAfterTheTimeout:
    """Of gloo's Work: a wait times out, and before anybody asks, the operation ends."""

    def __init__(self, error: str) -> None:
        self._error, self._ended = error, False

    def is_completed(self) -> bool:
        return self._ended

    def wait(self, *_: timedelta) -> None:
        if not self._ended:
            self._ended = True
            raise RuntimeError("Operation timed out!")
        if self._error:
            raise RuntimeError(self._error)


def _ends_after_the_timeout(error: str) -> None:
    session = dist.group.WORLD.session
    work = _EndsAfterTheTimeout(error)
    gloo.GlooCalls(session).start("a test", None, lambda: work).wait(100.0)


@pytest.mark.parametrize("error", ["", "Connection closed by peer"])
def test_an_operation_that_ends_just_after_a_look_says_its_own_outcome(error: str) -> None:
    for outcome in attempt(2, _ends_after_the_timeout, error):
        if error:
            with pytest.raises(RuntimeError, match=error):
                outcome.get()
        else:
            outcome.get()


def _never_comes() -> str:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), op=dist.ReduceOp.PRODUCT, async_op=True)
        with pytest.raises(RuntimeError, match="timed out") as caught:
            work.wait(timedelta(seconds=2 * gloo._LOOK))
        store.set("timed out", "")
        return str(caught.value)
    store.wait(["timed out"], timedelta(seconds=100))
    return ""


def test_a_wait_through_gloo_has_a_timeout() -> None:
    run(2, _never_comes)


@pytest.mark.parametrize("call", [_all_reduce, _product])
def test_an_exception_that_ends_a_rank_is_told_to_the_others(call: Callable[[], None]) -> None:
    first, second = attempt(2, _fails, call)
    assert isinstance(second.error, ValueError)
    assert first.get().startswith("rank 1 has failed: it ended with ValueError: bad batch, and allreduce(")


def _disagree(calls: tuple[Callable[[], None], Callable[[], None]]) -> tuple[str, bool]:
    """Returns this rank's error, and whether it refuses to use gloo again."""
    gloo._REASON = 60.0  # type: ignore[misc]
    for call in (_all_reduce, _product, _reduce, _gather):
        call()
    with pytest.raises(worker_lib.MismatchError) as caught:
        calls[dist.get_rank()]()
    refuses = "gloo waits for it still" in str(caught.value)
    if refuses:
        with pytest.raises(worker_lib.MismatchError, match="gloo waits for it still"):
            _gather()
    return str(caught.value), refuses


@pytest.mark.parametrize(
    ("one", "other", "by_gloo"),
    [
        (_all_reduce, _product, (False, True)),
        (_reduce, _all_reduce, (True, False)),
        (dist.barrier, _gather, (False, True)),
        (_reduce, _product, (True, True)),
        (_reduce, _reduce_to_the_other, (True, True)),
    ],
)
def test_ranks_that_call_gloo_and_the_switch_are_told_at_once(
    one: Callable[[], None], other: Callable[[], None], by_gloo: tuple[bool, bool]
) -> None:
    outcomes = run(2, _disagree, (one, other), timeout=600.0)
    assert tuple(refuses for _, refuses in outcomes) == by_gloo
    for rank, (said, refuses) in enumerate(outcomes):
        assert said.startswith("ranks called different things")
        assert f"ank {rank} called " in said
        assert ("through gloo" in said) == refuses


def _other_operations(calls: tuple[Callable[[], Any], Callable[[], Any]], waits: bool) -> str:
    """Returns the error of an operation through gloo that gloo ends well, or that of the one after it."""

    def call() -> None:
        work = calls[dist.get_rank()]()
        if waits:
            work.wait()
        limit = time.monotonic() + 60
        while time.monotonic() < limit:  # those after it, once the marks have met
            _gather()

    gloo._REASON = 60.0  # type: ignore[misc]
    _product()
    with pytest.raises(worker_lib.MismatchError) as caught:
        call()
    return str(caught.value)


def _of_type(dtype: torch.dtype, op: Any) -> Callable[[], Any]:
    return partial(_reduced_by_gloo, dtype, op)


def _reduced_by_gloo(dtype: torch.dtype, op: Any) -> Any:
    return dist.all_reduce(torch.ones(8, dtype=dtype), op=op, async_op=True)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    "calls",
    [
        (_of_type(torch.int32, dist.ReduceOp.PRODUCT), _of_type(torch.int32, dist.ReduceOp.BXOR)),
        (_of_type(torch.float32, dist.ReduceOp.PRODUCT), _of_type(torch.int32, dist.ReduceOp.PRODUCT)),
    ],
)
def test_a_wrong_result_of_gloos_is_an_error(
    calls: tuple[Callable[[], Any], Callable[[], Any]], waits: bool
) -> None:
    for rank, said in enumerate(run(2, _other_operations, calls, waits)):
        assert said.startswith(f"ranks called different things: rank {rank} called allreduce(")


def _unread() -> str:
    """Returns what the log says of a mismatch after which nothing was called."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("switchagg").addHandler(handler)
    _product()
    work = _reduced_by_gloo(torch.int32, (dist.ReduceOp.PRODUCT, dist.ReduceOp.BXOR)[dist.get_rank()])
    eventually(lambda: all(part._mark.done() for part in dist.group.WORLD.communicator.gloo_calls._unread))
    del work
    dist.destroy_process_group()
    return "".join(heard)


def test_a_mismatch_that_nobody_asked_about_is_in_the_log() -> None:
    for rank, said in enumerate(run(2, _unread)):
        assert f"ranks called different things: rank {rank} called allreduce(" in said


def _float8() -> None:
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(torch.zeros(4).to(torch.float8_e4m3fn))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert (x == dist.get_world_size()).all()


def test_a_type_that_nobody_sums() -> None:
    run(2, _float8)


def _strangers() -> str:
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(3))
    with pytest.raises(worker_lib.AdmissionError) as caught:
        ControllerClient(group.communicator.controller.url, token="guessed").slots()
    return caught.value.code


def test_a_switch_of_ones_own_admits_no_strangers() -> None:
    assert run(2, _strangers, environment=OWN_SWITCH) == ["unauthorized"] * 2


def _never() -> None:
    raise AssertionError("the group should not have been made")


def test_more_ranks_than_a_plan_can_name() -> None:
    store = dist.HashStore()
    with pytest.raises(worker_lib.UsageError, match="257 ranks; accepted: 1 to 256"):
        SwitchGroup(store, 0, 257, timedelta(seconds=5), "too many", Options())


def test_more_ranks_than_a_slot_has_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """33 on a single switch: its controller refuses, and every rank hears what it says."""
    monkeypatch.setenv("SWITCHAGG_CONTROLLER", worlds.shared_controller)
    store = dist.HashStore()

    def join(rank: int) -> None:
        SwitchGroup(store, rank, 33, timedelta(seconds=60), "too many", Options())

    for each in in_threads([lambda r=r: join(r) for r in range(33)]):
        assert isinstance(each.error, worker_lib.SwitchAggError), each
        assert "33" in str(each.error)
        assert "32" in str(each.error)


def test_a_controller_that_is_not_there() -> None:
    gone = {"SWITCHAGG_CONTROLLER": "http://127.0.0.1:1"}
    for outcome in attempt(2, _never, environment=gone):
        assert isinstance(outcome.error, worker_lib.SwitchError)
        assert "127.0.0.1:1" in str(outcome.error)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"bits": 12}, "bits is 12"),
        ({"min_bits": 8}, "it goes with bits='auto'"),
        ({"bits": "auto", "min_bits": 5}, "min_bits is 5"),
        ({"blocks": "some"}, "blocks is 'some'"),
        ({"block_size": 0}, "block_size is 0"),
        ({"transport": "tcp"}, "transport is 'tcp'"),
        ({"congestion": "tcp"}, "congestion is 'tcp'"),
        ({"fallback": "nccl"}, "fallback is 'nccl'"),
    ],
)
def test_options_that_cannot_work(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(worker_lib.UsageError, match=named):
        Options(**wrong)
