"""Cases of communication by itself: collectives, messages, groups, objects, and their autograd forms."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as autograd_forms
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.torch_matrix.cases import case, draw, equal, near, same


def numbers(*shape: int, step: int = 0) -> tuple[list[torch.Tensor], int, int]:
    """Tensors of all ranks, whole numbers so that sums are exact; with rank and size."""
    size = dist.get_world_size()
    return [(draw(step, r, *shape) * 8).round() for r in range(size)], dist.get_rank(), size


@case("all_reduce: SUM, MAX, MIN, PRODUCT, asynchronous, float and integer", ranks=3)
def reductions() -> Any:
    all_of, rank, _ = numbers(5, 7)
    stacked = torch.stack(all_of)
    expected = {
        dist.ReduceOp.SUM: stacked.sum(0),
        dist.ReduceOp.MAX: stacked.amax(0),
        dist.ReduceOp.MIN: stacked.amin(0),
        dist.ReduceOp.PRODUCT: stacked.prod(0),
    }
    found = []
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        tensors = [all_of[rank].to(dtype, copy=True) for _ in expected]
        works = [dist.all_reduce(x, op, async_op=True) for x, op in zip(tensors, expected, strict=True)]
        for work in works:
            work.wait()
        for x, right in zip(tensors, expected.values(), strict=True):
            same(x, right.to(dtype))
        found += tensors
    return found


@case("broadcast, all_gather, reduce_scatter and their _tensor forms", ranks=3)
def copies() -> Any:
    all_of, rank, size = numbers(6, 2)
    x = all_of[rank].clone()
    dist.broadcast(x, size - 1)
    same(x, all_of[-1])
    rows = [torch.empty(6, 2) for _ in range(size)]
    dist.all_gather(rows, all_of[rank])
    same(rows, all_of)
    flat = torch.empty(6 * size, 2)
    dist.all_gather_into_tensor(flat, all_of[rank])
    same(flat, torch.cat(all_of))
    parts = torch.stack(all_of).sum(0).chunk(size)
    mine = torch.empty(2, 2)
    dist.reduce_scatter(mine, list(all_of[rank].chunk(size)))
    same(mine, parts[rank])
    mine.zero_()
    dist.reduce_scatter_tensor(mine, all_of[rank])
    same(mine, parts[rank])
    return [x, *rows, flat]


@case("all_gather_into_tensor in place, over the rank's own part", ranks=3)
def all_gather_in_place() -> Any:
    all_of, rank, size = numbers(50)
    whole = torch.zeros(size * 50)
    mine = whole.chunk(size)[rank]
    mine.copy_(all_of[rank])
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat(all_of))
    return [whole]


@case("reduce_scatter_tensor in place, over the rank's own part", ranks=3)
def reduce_scatter_in_place() -> Any:
    all_of, rank, size = numbers(150)
    whole = all_of[rank].clone()
    mine = whole.chunk(size)[rank]
    dist.reduce_scatter_tensor(mine, whole)
    same(mine, sum(all_of).chunk(size)[rank])


@case("all_gather of different sizes", ranks=3)
def all_gather_uneven() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [torch.empty(r + 1, 4) for r in range(size)]
    dist.all_gather(rows, draw(0, rank, rank + 1, 4))
    same(rows, [draw(0, r, r + 1, 4) for r in range(size)])
    return rows


@case("reduce, gather, scatter", ranks=3)
def rooted() -> Any:
    all_of, rank, size = numbers(4)
    for root in range(size):
        x = all_of[rank].clone()
        dist.reduce(x, root)
        rows = [torch.empty(4) for _ in range(size)] if rank == root else None
        dist.gather(all_of[rank], rows, root)
        mine = torch.empty(4)
        dist.scatter(mine, [row + root for row in all_of] if rank == root else None, root)
        same(mine, all_of[rank] + root)
        if rank == root:
            same(x, torch.stack(all_of).sum(0))
            same(rows, all_of)


def _part(source: int, target: int) -> torch.Tensor:
    """The tensor that one rank has for another, of a size of its own."""
    return draw(target, source, source + 2 * target, 3)


@case("all_to_all", ranks=3)
def all_to_all() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.empty(4) for _ in range(size)]
    dist.all_to_all(outputs, [draw(r, rank, 4) for r in range(size)])
    same(outputs, [draw(rank, r, 4) for r in range(size)])


@case("all_to_all of different sizes", ranks=3)
def all_to_all_uneven() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.empty(r + 2 * rank, 3) for r in range(size)]
    dist.all_to_all(outputs, [_part(rank, r) for r in range(size)])
    same(outputs, [_part(r, rank) for r in range(size)])


@case("all_to_all_single of different sizes", ranks=3)
def all_to_all_single() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    single = torch.empty(sum(r + 2 * rank for r in range(size)), 3)
    dist.all_to_all_single(
        single,
        torch.cat([_part(rank, r) for r in range(size)]),
        [r + 2 * rank for r in range(size)],
        [rank + 2 * r for r in range(size)],
    )
    same(single, torch.cat([_part(r, rank) for r in range(size)]))


@case("send, recv, isend, irecv, batch_isend_irecv", ranks=3)
def messages() -> Any:
    all_of, rank, size = numbers(9)
    right, left = (rank + 1) % size, (rank - 1) % size
    x = torch.empty(9)
    work = dist.isend(all_of[rank], right, tag=3)
    dist.recv(x, left, tag=3)
    work.wait()
    same(x, all_of[left])
    two = [torch.empty(9), torch.empty(9)]
    wanted = [
        dist.P2POp(dist.isend, all_of[rank], right),
        dist.P2POp(dist.isend, all_of[rank] + 1, left),
        dist.P2POp(dist.irecv, two[0], left),
        dist.P2POp(dist.irecv, two[1], right),
    ]
    for each in dist.batch_isend_irecv(wanted):
        each.wait()
    same(two, [all_of[left], all_of[right] + 1])


@case("recv from any rank")
def receive_any() -> Any:
    rank = dist.get_rank()
    x = torch.full((4,), float(rank))
    if rank == 1:
        dist.send(x, 0)
    else:
        equal(dist.recv(x), 1)
        same(x, torch.ones(4))


@case("barrier, monitored_barrier")
def barriers() -> Any:
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20))


@case("coalescing manager")
def coalesced() -> Any:
    all_of, rank, size = numbers(6)
    tensors = [all_of[rank] + i for i in range(3)]
    with _coalescing_manager():
        for x in tensors:
            dist.all_reduce(x)
    same(tensors, [torch.stack(all_of).sum(0) + i * size for i in range(3)])
    gathered = [torch.empty(6 * size) for _ in range(2)]
    with _coalescing_manager():
        for i, x in enumerate(gathered):
            dist.all_gather_into_tensor(x, all_of[rank] + i)
    same(gathered, [torch.cat(all_of) + i for i in range(2)])
    return [*tensors, *gathered]


@case("object collectives", ranks=3)
def objects() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    said = [{"rank": r, "words": "x" * (10 * r + 1)} for r in range(size)]
    found: list[Any] = [None] * size
    dist.all_gather_object(found, said[rank])
    equal(found, said)
    found = [said[rank], rank]
    dist.broadcast_object_list(found, 1)
    equal(found, [said[1], 1])
    found = [None]
    dist.scatter_object_list(found, said if rank == 0 else None, 0)
    equal(found[0], said[rank])
    found = [None] * size if rank == 2 else []
    dist.gather_object(said[rank], found or None, 2)
    equal(found, said if rank == 2 else [])
    if rank == 0:
        dist.send_object_list([said[0], "more"], 1)
    elif rank == 1:
        found = [None, None]
        dist.recv_object_list(found, 0)
        equal(found, [said[0], "more"])


# ---------------------------------------------------------------------- groups


@case("new_group, also with local synchronization", ranks=4)
def new_group() -> Any:
    all_of, rank, _ = numbers(8)
    for ranks in ([0, 2, 3], [1, 2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            x = all_of[rank].clone()
            dist.all_reduce(x, group=group)
            same(x, sum(all_of[r] for r in ranks))
            dist.destroy_process_group(group)
    pair = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(pair, use_local_synchronization=True)
    x = all_of[rank].clone()
    dist.all_reduce(x, group=group)
    same(x, sum(all_of[r] for r in pair))


@case("new_subgroups, new_subgroups_by_enumeration", ranks=4)
def new_subgroups() -> Any:
    all_of, rank, _ = numbers(8)
    x = all_of[rank].clone()
    mine, _ = dist.new_subgroups(2)
    dist.all_reduce(x, group=mine)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    dist.all_reduce(x, group=mine)
    same(x, sum(all_of))
    return [x]


@case("split_group", ranks=4)
def split_group() -> Any:
    all_of, rank, _ = numbers(8)
    x = all_of[rank].clone()
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert group is not None
    dist.all_reduce(x, group=group)
    same(x, all_of[0] + all_of[1] if rank < 2 else all_of[2] + all_of[3])


# ---------------------------------------------------------------------- functional


def _functional(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
    total = funcol.all_reduce(x * 2, "sum", group)
    gathered = funcol.all_gather_tensor(x + 1, 0, group)
    part = funcol.reduce_scatter_tensor(gathered, "sum", 0, group)
    swapped = funcol.all_to_all_single(x, None, None, group)
    return total + 1, gathered - 1, part * 1, funcol.broadcast(x, 0, group) + 0, swapped + 0


def _check_functional(run: Any) -> list[torch.Tensor]:
    all_of, rank, size = numbers(4, 3)
    total, gathered, part, first, swapped = run(all_of[rank], dist.group.WORLD)
    same(total, 2 * sum(all_of) + 1)
    same(gathered, torch.cat(all_of))
    same(part, size * (all_of[rank] + 1))
    same(first, all_of[0])
    same(swapped, torch.cat([each.chunk(size)[rank] for each in all_of]))
    return [total, gathered, first]


@case("functional collectives")
def functional_collectives() -> Any:
    return _check_functional(_functional)


@case("functional collectives under torch.compile", limit=150.0)
def compiled_collectives() -> Any:
    return _check_functional(torch.compile(_functional, fullgraph=True))


@case("dist.all_reduce and all_gather_into_tensor under torch.compile", limit=150.0)
def compiled_c10d() -> Any:
    all_of, rank, size = numbers(4, 3)

    def program(x: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        dist.all_gather_into_tensor(gathered, x)
        return gathered + x.sum()

    found = torch.compile(program, fullgraph=True)(all_of[rank], torch.empty(4 * size, 3))
    total = 2 * sum(all_of)
    same(found, torch.cat([total] * size) + total.sum())
    return [found]


@case("torch.distributed.nn.functional, with gradients", ranks=3)
def autograd_collectives() -> Any:
    # The gradient of the sum over ranks of a loss, against that of a program that holds all tensors.
    all_of, rank, size = numbers(6)
    weights = [draw(1, r, size, 6) for r in range(size)]
    forms = autograd_forms

    def mine(x: torch.Tensor) -> list[torch.Tensor]:
        ours = weights[rank]
        rows = forms.gather(x, dst=1)
        scattered = forms.scatter([x * (r + 1) for r in range(size)], src=0)
        swapped = forms.all_to_all([torch.empty(2) for _ in range(size)], list(x.chunk(size)))
        return [
            (forms.all_reduce(x) * ours[0]).sum(),
            (torch.stack(forms.all_gather(x)) * ours).sum(),
            (forms.reduce_scatter(torch.empty(2), list(x.chunk(size))) * ours[0, :2]).sum(),
            (forms.broadcast(x * 1, src=2) * ours[1]).sum(),
            (torch.stack(list(rows)) * (ours if rank == 1 else 0)).sum(),
            (scattered * ours[2]).sum(),
            (torch.cat(list(swapped)) * ours[0]).sum(),
        ]

    def theirs(all_x: list[torch.Tensor], r: int) -> list[torch.Tensor]:
        ours = weights[r]
        return [
            (sum(all_x) * ours[0]).sum(),
            (torch.stack(all_x) * ours).sum(),
            (sum(all_x).chunk(size)[r] * ours[0, :2]).sum(),
            (all_x[2] * ours[1]).sum(),
            (torch.stack(all_x) * ours).sum() if r == 1 else 0 * all_x[0].sum(),
            (all_x[0] * (r + 1) * ours[2]).sum(),
            (torch.cat([x.chunk(size)[r] for x in all_x]) * ours[0]).sum(),
        ]

    for i in range(7):
        x = all_of[rank].clone().requires_grad_()
        found = mine(x)
        found[i].backward()
        all_x = [each.clone().requires_grad_() for each in all_of]
        expected = [theirs(all_x, r)[i] for r in range(size)]
        (sum(expected) + 0 * sum(each.sum() for each in all_x)).backward()
        near(found[i], expected[rank])
        near(x.grad, all_x[rank].grad)
