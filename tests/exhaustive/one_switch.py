"""Workers and one switch: every schedule.

A state has, for each worker, how many RESULTs it holds without a gap, what it has sent and what it holds
beyond that; the slots; and the packet numbers whose RESULTs were sent. The properties:

* a RESULT has the sum of all workers' words of its packet, whenever it is made;
* a slot is overwritten only when every worker holds what it held;
* while a worker lacks a RESULT that another holds, its retransmission is answered with it, whatever the
  others do: so a collective that is complete anywhere completes everywhere, though a worker dies;
* nobody else changes a slot;
* while a RESULT is missing anywhere, something can happen. Every step is progress, so no schedule goes on for
  ever, and one in which no packet is lost for ever ends with every RESULT at every worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exhaustive.programs import (
    Front,
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

Worker = tuple[int, Front]  # base, front
State = tuple[tuple[Worker, ...], tuple[int, ...], int]


def holds(worker: Worker, number: int) -> bool:
    """True if the worker has this RESULT."""
    base, (_, held) = worker
    return number < base or bool(held >> (number - base) & 1)


def held_to(workers: tuple[Worker, ...]) -> int:
    """One more than the highest packet number whose RESULT a worker holds."""
    return max(base + held.bit_length() for base, (_, held) in workers)


def received(rule: WindowRule, worker: Worker, results: int) -> Iterator[tuple[int, Worker]]:
    """The RESULTs that may come to a worker, and its state then; one that it has changes nothing."""
    base, front = worker
    for number in range(base + front[0]):
        if not results >> number & 1:
            continue
        by, after = rule.hold(front, number - base)
        if ((by, after) == (0, front)) != holds(worker, number):
            raise Wrong(f"a worker at {worker} takes the RESULT of {number} to {by, after}")
        if not holds(worker, number):
            yield number, (base + by, after)


class OneSwitch:
    """`workers` workers with `slots` slots, which send `packets` packets each."""

    def __init__(self, workers: int, slots: int, packets: int, programs: Programs | None = None) -> None:
        programs = programs or Programs()
        self.workers, self.slots, self.packets = tuple(range(workers)), slots, packets
        self.switch = Switch(programs, slots, [address_of(worker) for worker in self.workers], words_of)
        self.rule = WindowRule(programs, slots)

    def initial(self) -> State:
        """Returns the first state."""
        return tuple((0, (0, 0)) for _ in self.workers), self.switch.first, 0

    def finished(self, state: State) -> bool:
        """True if every worker holds every RESULT."""
        return all(base == self.packets for base, _ in state[0])

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields all that may happen next."""
        workers, slots, results = state
        self._check_answers(state)
        for i, (base, front) in enumerate(workers):
            if base + front[0] < self.packets and self.rule.may_send(front):
                moved = base, (front[0] + 1, front[1])
                yield f"worker {i} sends {base + front[0]}", (with_item(workers, i, moved), slots, results)
            for number, moved in received(self.rule, workers[i], results):
                yield (
                    f"worker {i} gets the RESULT of {number}",
                    (with_item(workers, i, moved), slots, results),
                )
            for number in range(base + front[0]):
                index = seq_of(number) % self.slots
                slot = slots[index]
                after_slot, sent = self.switch.contribute(slot, i, number)
                made = results
                for packet in sent:
                    self._check(packet)
                    everybody = after_slot != slot
                    if packet.to != (self.switch.members if everybody else (address_of(i),)):
                        raise Wrong(f"the RESULT of {packet.number} goes to {packet.to}")
                    made |= 1 << packet.number
                if after_slot != slot:
                    self._check_overwritten(workers, slot, after_slot)
                    yield (
                        f"the switch gets {number} of worker {i}",
                        (workers, with_item(slots, index, after_slot), made),
                    )
                elif made != results:
                    raise Wrong(f"a RESULT of {sent[0].number} that was not sent when it was complete")

    def _check(self, packet: Sent) -> None:
        right = sum_of(self.workers, packet.number)
        if packet.number < 0 or packet.words != right:
            raise Wrong(f"the RESULT of {packet.number} is {packet.words}, not {right}")

    def _check_overwritten(self, workers: tuple[Worker, ...], before: int, after: int) -> None:
        seq = self.switch.states[before][0]
        number = number_of(seq)
        if self.switch.states[after][0] == seq or number < 0:
            return
        for i, worker in enumerate(workers):
            if not holds(worker, number):
                raise Wrong(f"{number} is overwritten, and worker {i} does not hold its RESULT")

    def _check_answers(self, state: State) -> None:
        workers, slots, _ = state
        most = held_to(workers)
        for i, worker in enumerate(workers):
            for number in range(worker[0], most):
                if holds(worker, number) or not any(holds(other, number) for other in workers):
                    continue
                sent = self.switch.answer(slots[seq_of(number) % self.slots], i, number, 0)
                if [packet.to for packet in sent] != [(address_of(i),)] or sent[0].number != number:
                    raise Wrong(
                        f"worker {i} lacks the RESULT of {number}, which another has, and is not answered"
                    )
                self._check(sent[0])


def with_item(items: Any, index: int, item: object) -> Any:
    """The tuple with one item replaced."""
    return (*items[:index], item, *items[index + 1 :])
