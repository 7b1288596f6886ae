"""Workers, leaves and a root: every schedule.

A state has the workers, the slots of each leaf and of the root, the packet numbers that each leaf has sent
up, and those whose RESULTs the root has sent. The properties are those of `one_switch`: a leaf sends up the
sum of its own workers, a slot of a leaf is overwritten only when its workers hold what it held, one of the
root only when all do, and a retransmission finds its way up, down, and to the worker that asked, and to no
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from switchagg.rules.slots import Address, ParentEntry
from switchagg.wire.header import Op
from tests.exhaustive.one_switch import Worker, held_to, holds, received, with_item
from tests.exhaustive.programs import (
    Programs,
    Sent,
    Switch,
    WindowRule,
    address_of,
    number_of,
    seq_of,
    sum_of,
    words_of,
)
from tests.exhaustive.search import Wrong

ROOT: Final[Address] = ("10.1.0.1", 48879)
Slots = tuple[int, ...]
State = tuple[tuple[Worker, ...], tuple[Slots, ...], Slots, tuple[int, ...], int]


class Tree:
    """A root and leaves with so many workers each, `slots` slots on each switch, `packets` packets a
    worker."""

    def __init__(
        self, leaves: tuple[int, ...], slots: int, packets: int, programs: Programs | None = None
    ) -> None:
        programs = programs or Programs()
        self.slots, self.packets = slots, packets
        self.workers = tuple(range(sum(leaves)))
        firsts = [sum(leaves[:leaf]) for leaf in range(len(leaves))]
        self.members = tuple(
            tuple(range(first, first + size)) for first, size in zip(firsts, leaves, strict=True)
        )
        self.seats = [(leaf, bit) for leaf, size in enumerate(leaves) for bit in range(size)]
        self.rule = WindowRule(programs, slots)
        addresses = [(f"10.2.0.{leaf + 1}", 48879) for leaf in range(len(leaves))]
        self.root = Switch(
            programs, slots, addresses, lambda leaf, number: sum_of(self.members[leaf], number), base=slots
        )
        self.leaves = [self._leaf(programs, leaf) for leaf in range(len(leaves))]
        self.delivered = cache(self._delivered)

    def _leaf(self, programs: Programs, leaf: int) -> Switch:
        members = self.members[leaf]
        root = self.root
        parent = ParentEntry(*ROOT, token=root.token_of(leaf), base=root.base, result_token=root.result_token)
        return Switch(
            programs, self.slots, [address_of(worker) for worker in members],
            lambda bit, number: words_of(members[bit], number), parent,
        )  # fmt: skip

    def initial(self) -> State:
        """Returns the first state."""
        leaves = tuple(leaf.first for leaf in self.leaves)
        return tuple((0, (0, 0)) for _ in self.workers), leaves, self.root.first, (0,) * len(leaves), 0

    def finished(self, state: State) -> bool:
        """True if every worker holds every RESULT."""
        return all(base == self.packets for base, _ in state[0])

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields all that may happen next."""
        self._check_answers(state)
        yield from self._worker_steps(state)
        yield from self._leaf_steps(state)
        yield from self._root_steps(state)

    def _worker_steps(self, state: State) -> Iterator[tuple[str, State]]:
        workers, *switches, results = state
        for i, (base, front) in enumerate(workers):
            if base + front[0] < self.packets and self.rule.may_send(front):
                moved = base, (front[0] + 1, front[1])
                yield (
                    f"worker {i} sends {base + front[0]}",
                    (with_item(workers, i, moved), *switches, results),
                )
            for number, moved in received(self.rule, workers[i], results):
                label = f"worker {i} gets the RESULT of {number}"
                yield label, (with_item(workers, i, moved), *switches, results)

    def _leaf_steps(self, state: State) -> Iterator[tuple[str, State]]:
        workers, leaves, root, ups, results = state
        for i, (base, front) in enumerate(workers):
            leaf, bit = self.seats[i]
            for number in range(base + front[0]):
                index = seq_of(number) % self.slots
                before = leaves[leaf][index]
                after, sent = self.leaves[leaf].contribute(before, bit, number)
                up = ups[leaf]
                for packet in sent:
                    self._check_up(leaf, packet)
                    up |= 1 << packet.number
                if (after, up) == (before, ups[leaf]):
                    continue
                self._check_overwritten(self.leaves[leaf], before, after, self.members[leaf], workers)
                changed = with_item(leaves, leaf, with_item(leaves[leaf], index, after))
                label = f"leaf {leaf} gets {number} of worker {i}"
                yield label, (workers, changed, root, with_item(ups, leaf, up), results)

    def _root_steps(self, state: State) -> Iterator[tuple[str, State]]:
        workers, leaves, root, ups, results = state
        for leaf, up in enumerate(ups):
            for number in range(self.packets):
                if not up >> number & 1:
                    continue
                index = seq_of(number) % self.slots
                after, sent = self.root.contribute(root[index], leaf, number)
                made = results
                for packet in sent:
                    everybody = after != root[index]
                    if packet.to != (self.root.members if everybody else (self.root.members[leaf],)):
                        raise Wrong(f"the RESULT of {packet.number} goes to {packet.to}")
                    for address in packet.to:
                        self._check_all(self.root.members.index(address), packet)
                    made |= 1 << packet.number
                if (after, made) == (root[index], results):
                    continue
                self._check_overwritten(self.root, root[index], after, self.workers, workers)
                label = f"the root gets {number} of leaf {leaf}"
                yield label, (workers, leaves, with_item(root, index, after), ups, made)

    def _check_up(self, leaf: int, packet: Sent) -> None:
        right = sum_of(self.members[leaf], packet.number)
        if packet.number < 0 or packet.to != (ROOT,) or packet.op is not Op.SUM or packet.words != right:
            raise Wrong(f"leaf {leaf} sends {packet} up; right is {right} to {ROOT}")

    def _delivered(self, leaf: int, packet: Sent) -> tuple[Address, ...]:
        """The workers to whom a leaf passes a RESULT of the root on."""
        down = self.leaves[leaf].deliver(packet.data)
        right = sum_of(self.workers, packet.number)
        if [(each.op, each.number, each.words) for each in down] != [(Op.RESULT, packet.number, right)]:
            raise Wrong(f"leaf {leaf} sends {down} down; right is {right}")
        return down[0].to

    def _check_all(self, leaf: int, packet: Sent) -> None:
        """A RESULT for nobody in particular goes to all workers of the leaf."""
        if self.delivered(leaf, packet) != tuple(address_of(worker) for worker in self.members[leaf]):
            raise Wrong(f"leaf {leaf} does not pass the RESULT of {packet.number} on to all its workers")

    def _check_overwritten(
        self, switch: Switch, before: int, after: int, needed_by: tuple[int, ...], workers: tuple[Worker, ...]
    ) -> None:
        seq = switch.states[before][0]
        number = number_of(seq)
        if switch.states[after][0] == seq or number < 0:
            return
        for i in needed_by:
            if not holds(workers[i], number):
                raise Wrong(f"{number} is overwritten, and worker {i} does not hold its RESULT")

    def _check_answers(self, state: State) -> None:
        workers, leaves, root, *_ = state
        most = held_to(workers)
        for i, worker in enumerate(workers):
            leaf, bit = self.seats[i]
            for number in range(worker[0], most):
                if holds(worker, number) or not any(holds(other, number) for other in workers):
                    continue
                index = seq_of(number) % self.slots
                up = self.leaves[leaf].answer(leaves[leaf][index], bit, number, 0)
                replies = [packet.reply for packet in up]
                if replies != [bit + 1]:
                    raise Wrong(f"leaf {leaf} does not ask for the RESULT of {number} for worker {i}: {up}")
                down = self.root.answer(root[index], leaf, number, bit + 1)
                if [packet.to for packet in down] != [(self.root.members[leaf],)]:
                    raise Wrong(f"the root does not answer for the RESULT of {number}: {down}")
                if self.delivered(leaf, down[0]) != (address_of(i),):
                    raise Wrong(f"worker {i} is not given the RESULT of {number}")
