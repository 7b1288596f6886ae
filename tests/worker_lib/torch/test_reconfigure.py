"""Groups whose members change, by PyTorch's `reconfigure`."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from switchagg.errors import SessionBrokenError, SwitchError, UsageError
from tests.worker_lib.torch.worlds import OWN_SWITCH, run
from worker_lib.compress import RandomBlocks
from worker_lib.torch import Options, State, SwitchGroup, allreduce_hook, dispatch
from worker_lib.torch.communicator import Change, Handle, ReconfigureError

needs_reconfigure = pytest.mark.skipif(
    not dispatch.available(), reason="PyTorch before 2.14 lets no Python class derive from Backend"
)
SECONDS = timedelta(seconds=60)


_first = [0, 0]  # rank and size before the first change


def begin() -> int:
    """Remembers rank and size; returns the rank."""
    _first[:] = dist.get_rank(), dist.get_world_size()
    return _first[0]


def handles(step: str) -> list[str]:
    """All processes' handles, in the order of their first ranks."""
    store = dist.PrefixStore(f"test/{step}", dist.distributed_c10d._get_process_group_store(dist.group.WORLD))
    store.set(str(_first[0]), dist._get_reconfigure_handle())
    return [store.get(str(r)).decode() for r in range(_first[1])]


def change(uuid: int, members: Any) -> None:
    """Makes these the members, and sums through the group."""
    dist._reconfigure(uuid, members, timeout=SECONDS).wait()
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    n = dist.get_world_size()
    assert torch.equal(x, torch.full((3,), n * (n + 1) / 2))


def meet(step: str) -> None:
    handles(f"met {step}")


def shrink_and_grow() -> list[tuple[int, int]]:
    me, seen = begin(), []

    def note() -> None:
        seen.append((dist.get_rank(), dist.get_world_size()))

    one, two, three = handles("a")
    if me != 1:
        change(1, [three, one])
        note()
    meet("b")
    change(2, [one, two, three])
    note()
    if me != 0:
        change(3, [two, three])
        note()
    meet("c")
    change(4, {three, two, one})
    change(5 + me, [dist._get_reconfigure_handle()])
    note()
    meet("d")
    change(8, [one, two, three])
    return seen


@needs_reconfigure
@pytest.mark.parametrize("environment", [{}, OWN_SWITCH])
def test_members_leave_and_come_back(environment: dict[str, str]) -> None:
    found = run(3, shrink_and_grow, environment=environment)
    assert found == [[(1, 2), (0, 3), (0, 1)], [(1, 3), (0, 2), (0, 1)], [(0, 2), (2, 3), (1, 2), (0, 1)]]


def train_through_changes(hook: bool) -> list[torch.Tensor]:
    me = begin()
    torch.manual_seed(5)
    net = torch.nn.Linear(20, 3)
    ddp = DistributedDataParallel(net)
    if hook:
        ddp.register_comm_hook(State(ddp), allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def step(scale: float) -> None:
        optimizer.zero_grad()
        ddp(torch.full((4, 20), scale)).sum().backward()
        optimizer.step()

    step(me + 1.0)
    members = handles("a")
    if me < 2:
        dist._reconfigure(1, members[:2], timeout=SECONDS).wait()
        step(me + 1.0)
    return [p.detach() for p in net.parameters()]


@needs_reconfigure
@pytest.mark.parametrize("hook", [False, True])
def test_ddp_divides_by_the_number_of_members_that_there_are(hook: bool) -> None:
    first, second, third = run(3, train_through_changes, hook)
    torch.manual_seed(5)
    net = torch.nn.Linear(20, 3)
    expected = []
    for mean in (2.0, 1.5):  # the gradient is linear in what goes in
        net.zero_grad()
        net(torch.full((4, 20), mean)).sum().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        expected.append([p.detach().clone() for p in net.parameters()])
    for ours, theirs in ((third, expected[0]), (first, expected[1]), (second, expected[1])):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def train_with_shared_draws() -> list[torch.Tensor]:
    """Two veterans train, a third rank comes, and all make model and State anew from a veteran's weights."""
    me = begin()

    def trained(scale: float, weights: torch.Tensor) -> torch.Tensor:
        net = torch.nn.Linear(64, 1, bias=False)
        with torch.no_grad():
            net.weight.copy_(weights)
        ddp = DistributedDataParallel(net)
        ddp.register_comm_hook(State(ddp, compressor=RandomBlocks(tau=0.25, block=4, seed=3)), allreduce_hook)
        for _ in range(3):
            net.zero_grad()
            ddp(torch.full((1, 64), scale)).sum().backward()
            assert net.weight.grad is not None
            net.weight.detach().sub_(net.weight.grad)
        return net.weight.detach()

    weights = torch.zeros(1, 64)
    first, second, third = handles("a")
    if me < 2:
        dist._reconfigure(1, [first, second], timeout=SECONDS).wait()
        weights = trained(1.0, weights)
    meet("b")
    dist._reconfigure(2, [first, second, third], timeout=SECONDS).wait()
    dist.broadcast(weights, src=0)
    before = weights.clone()
    return [before, trained(me + 1.0, weights)]


@needs_reconfigure
def test_a_newcomer_draws_the_blocks_that_the_others_draw() -> None:
    found = run(3, train_with_shared_draws)
    for before, after in found[1:]:
        assert torch.equal(before, found[0][0])
        assert torch.equal(after, found[0][1])
    grown = (found[0][0] - found[0][1]).unique().tolist()
    assert set(grown) <= {0.0, 8.0, 16.0, 24.0}  # the mean of 1, 2 and 3, four times, in chosen blocks
    assert len(grown) > 1


def go_on_with_an_old_state() -> None:
    me = begin()
    net = torch.nn.Linear(4, 1)
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(State(ddp), allreduce_hook)
    ddp(torch.ones(1, 4)).sum().backward()
    members = handles("a")
    if me < 2:
        dist._reconfigure(1, members[:2], timeout=SECONDS).wait()
        with pytest.raises(UsageError, match="has 2 members, this State 3: make a new one"):
            ddp(torch.ones(1, 4)).sum().backward()
    meet("b")


@needs_reconfigure
def test_a_state_over_gloo_does_not_divide_by_former_members() -> None:
    run(3, go_on_with_an_old_state, backend="gloo")


def end_while_others_are_awaited() -> None:
    me = begin()
    members = handles("a")
    group = dist.group.WORLD
    if me == 0:
        ending = threading.Timer(1.0, group.abort)
        ending.start()
        with pytest.raises(SwitchError, match="did not come"):
            dist._reconfigure(1, members, timeout=timedelta(seconds=2))
        ending.join()
        with pytest.raises(SessionBrokenError, match="destroyed"):
            dist.all_reduce(torch.ones(1))
    meet("b")
    change(2, members)


@needs_reconfigure
def test_a_group_that_is_aborted_in_a_change_can_change_again() -> None:
    run(2, end_while_others_are_awaited)


def refuse() -> None:
    me = begin()
    mine, others = dist._get_reconfigure_handle(), handles("a")
    elsewhere = others[1 - me]
    for uuid, given, why in [
        (1, [elsewhere], "own handle"),
        (2, [mine, mine], "twice"),
        (3, [mine, "gloo:0:1:2"], "'gloo:0:1:2'; accepted"),
        (4, [], "own handle"),
    ]:
        with pytest.raises(ReconfigureError, match=why):
            dist._reconfigure(uuid, given)
    with pytest.raises(ReconfigureError, match=r"timeout is .*; accepted: more than 0"):
        dist._reconfigure(5, others, timeout=timedelta(0))
    gone = Handle("a" * 32, "127.0.0.1", 9)
    with pytest.raises(SwitchError, match="do not reach each other, or the store of the first"):
        dist._reconfigure(6, [str(gone), mine], timeout=timedelta(seconds=1))
    change(7, others)
    meet("b")
    with pytest.raises(ReconfigureError, match="7 was already used"):
        dist._reconfigure(7, others)
    if me == 0:  # the other one does not come, and all stays as it was
        with pytest.raises(SwitchError, match="did not come"):
            dist._reconfigure(8, others, timeout=timedelta(seconds=0.5))
    meet("c")
    x = torch.ones(2)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((2,), 2.0))
    dist.group.WORLD.abort()
    with pytest.raises(SessionBrokenError, match="destroyed"):
        dist.all_reduce(x)
    meet("d")
    change(9, others)
    pair = dist.group.WORLD.split_group([1, 0], group_name="pair")
    pair.allreduce([x]).wait()
    assert torch.equal(x, torch.full((2,), 4.0))
    pair.shutdown()


@needs_reconfigure
def test_a_change_that_cannot_be_made_leaves_the_members() -> None:
    run(2, refuse)


def without_members() -> None:
    begin()
    store = dist.PrefixStore("own", dist.distributed_c10d._get_process_group_store(dist.group.WORLD))
    group = SwitchGroup(store, dist.get_rank(), 2, SECONDS, "late", Options(), members=False)
    for call in (lambda: group.session, lambda: group.allreduce(torch.ones(1))):
        with pytest.raises(SessionBrokenError, match="no members"):
            call()
    store.set(f"handle{dist.get_rank()}", group.get_reconfigure_handle())
    dist_options = dist.distributed_c10d.ReconfigureOptions()
    dist_options.uuid = 1
    dist_options.handles = [store.get(f"handle{r}").decode() for r in (1, 0)]
    group.reconfigure(dist_options).wait()
    assert (group.rank(), group.size()) == (1 - dist.get_rank(), 2)
    x = torch.ones(1)
    group.allreduce([x]).wait()
    assert x == 2
    group.shutdown()


@needs_reconfigure
def test_a_group_that_starts_without_members() -> None:
    run(2, without_members)


def test_handles_are_read_as_they_are_written() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    handle = Handle.of_group(dist.PrefixStore("a", dist.PrefixStore("b", store)))
    assert (handle.host, handle.port) == ("127.0.0.1", store.port)
    six = Handle("0f", "fe80::1", 9)
    assert Handle.parse(str(handle)) == handle
    assert Handle.parse(str(six)) == six
    other = Handle.of_group(dist.HashStore())
    assert (other.host, other.port) == ("", 0)
    assert other.token != handle.token
    for bad in ("", "switchagg", "switchagg:a:b:c", "gloo:0:-1:0:127.0.0.1:4"):
        with pytest.raises(ReconfigureError, match="accepted"):
            Handle.parse(bad)


def test_a_list_gives_the_ranks_and_a_set_their_order() -> None:
    a, b = Handle("a", "", 0), Handle("b", "", 0)

    opts = SimpleNamespace(uuid=5, handles=[str(b), str(a)])
    assert (Change.read(opts, a).rank, Change.read(opts, b).rank) == (1, 0)
    assert Change.read(opts, a).prefix == Change.read(opts, b).prefix
    opts.handles = {str(b), str(a)}
    assert (Change.read(opts, a).rank, Change.read(opts, b).rank) == (0, 1)
    opts.handles = [str(Handle(str(number), "", 0)) for number in range(300)]
    with pytest.raises(UsageError, match="300 ranks"):
        Change.read(opts, a)
