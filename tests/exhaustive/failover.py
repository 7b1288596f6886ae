"""Workers, one or two switches and a controller, while switches die and come back: every schedule.

The controller is the product's book of jobs, a member's reaction to events its state machine
(`controller.py`); slots and windows are the reference programs; the engine's part is `failover_rules.py`. A
switch that dies loses what it held. The controller learns of it later, or first from a member whose packets
the switch's port refuses; or it takes a switch for dead that is not. A switch comes back empty, with the jobs
that the controller then writes to it again. One switch at a time is dead. Where there is no other, members
wait for it. The properties, besides those of `one_switch`:

* what a member sends again is among its last P contributions, and a RESULT is taken once;
* a RESULT has the sum of all members' words of its packet number, whichever switch made it, and no words that
  were sent to another one;
* packets and RESULTs of former admissions change nothing;
* no session ends, and no call is refused, unless there is no switch at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import tests.exhaustive.failover_rules
import worker_lib.membership
from switchagg.control.jobs.records import Admission
from switchagg.rules.slots import Address
from switchagg.wire.header import Header, Op, decode, encode
from tests.exhaustive.controller import Controller, Installed, Machines, Message, Removed, book_module
from tests.exhaustive.engine_rules import takes
from tests.exhaustive.failover_rules import Mover
from tests.exhaustive.generations import contribution, total
from tests.exhaustive.one_switch import with_item
from tests.exhaustive.programs import WORDS, Programs, Slot, WindowRule, Words, address_of
from tests.exhaustive.search import Wrong
from worker_lib.membership import GoOver


@dataclass(frozen=True, slots=True)
class FailoverRules:
    """The programs that are searched: the book of jobs, the machine of a member, and `failover_rules.py`."""

    book: Any = None
    machine: ModuleType = worker_lib.membership
    engine: Any = tests.exhaustive.failover_rules


class Bounds(NamedTuple):
    """The number of times that each may happen."""

    deaths: int = 0
    returns: int = 0  # of switches that were dead
    alarms: int = 0  # the controller takes a switch for dead that is not
    repeats: int = 0  # calls of members that are made again, since the answer did not come


class Held(NamedTuple):
    """A job on a switch: the number of its installation, its slots, and the RESULTs sent, as bits."""

    number: int
    slots: tuple[int, ...]
    results: int = 0


class State(NamedTuple):
    """All that decides what may happen."""

    controller: int
    held: tuple[Held, ...]
    dead: frozenset[str]
    movers: tuple[Mover, ...]
    bounds: Bounds
    failed: bool = False  # the job, when there was no switch for it


class _Slots:
    """The slots of a job on a switch; `inits` is False where it was written again and holds nothing.

    Each state of a slot that comes up is shown what members may have sent to other switches before; nothing
    of it may change the slot.
    """

    def __init__(
        self,
        programs: Programs,
        installed: Installed,
        inits: bool,
        former: Callable[[int], Iterable[tuple[bytes, Address]]],
    ) -> None:
        self.installed, self.entry, self._former = installed, installed.entry, former
        self.addresses: tuple[Address, ...] = tuple(worker.address for worker in self.entry.workers)
        self._table: Any = programs.slots.SlotTable(self.entry.base + self.entry.slots)
        self._table.add_job(self.entry)
        for packet in installed.inits if inits and programs.inits else ():
            assert self._table.receive(packet, None), "INIT is answered"
        self._states: list[tuple[int, Slot]] = []
        self._numbers: dict[tuple[int, Slot], int] = {}
        self.receive = cache(self._receive)
        self.first = tuple(map(self._number, range(self.entry.slots)))

    def seq(self, state: int) -> int:
        """The sequence number of a slot in this state."""
        return self._states[state][1][0]

    def _number(self, index: int) -> int:
        slot = self._table._jobs[self.entry.job].slots[index]
        words = tuple(map(int, slot.words)) if slot.filled else ()
        if any(byte > 1 for word in words for byte in word.to_bytes(4, "little")):
            raise Wrong(f"slot {index} has the words of a member twice: {words}")
        key = index, (slot.seq, slot.seen, slot.filled, words)
        if key not in self._numbers:
            number = self._numbers[key] = len(self._states)
            self._states.append(key)
            for data, source in self._former(self.entry.job):
                if self._receive(number, data, source) != (number, ()):
                    raise Wrong(f"slot {index} takes a packet for another switch: {Header.unpack(data)}")
        return self._numbers[key]

    def _receive(
        self, state: int, data: bytes, source: Address
    ) -> tuple[int, tuple[tuple[Address, bytes], ...]]:
        """A packet comes while its slot is in this state: the slot's state then, and what is sent."""
        index, (seq, seen, filled, words) = self._states[state]
        slot = self._table._jobs[self.entry.job].slots[index]
        slot.seq, slot.seen, slot.filled = seq, seen, filled
        slot.words = np.array(words or [0xDEAD] * WORDS, np.uint32)
        out = self._table.receive(data, source)
        return self._number(index), tuple(out)


class Failover:
    """`workers` workers with `slots` slots, which send `packets` packets each.

    `roots`: the switches are beyond leaves, so that no port refuses a member's packets.
    """

    def __init__(
        self,
        workers: int,
        slots: int,
        packets: int,
        bounds: Bounds,
        *,
        switches: int = 2,
        roots: bool = False,
        programs: Programs | None = None,
        rules: FailoverRules | None = None,
    ) -> None:
        self.names, self.roots = "ab"[:switches], roots
        self._programs, rules = programs or Programs(), rules or FailoverRules()
        self.bounds, self.slots, self.packets = bounds, slots, packets
        self.rule = WindowRule(self._programs, slots)
        self.controller = Controller(rules.book or book_module(), workers, slots, self.names)
        self.machines = Machines(rules.machine)
        self.engine = rules.engine
        self.places = range(workers)
        self.admissions: list[Admission] = []
        self.installed: list[tuple[Installed, bool]] = []
        self.tables: list[_Slots] = []
        self.packet = cache(self._packet)
        self.result = cache(self._result)

    def initial(self) -> State:
        """Returns the state when all have joined and the job is open."""
        state = State(
            self.controller.first, (), frozenset(), tuple(Mover() for _ in self.places), self.bounds
        )
        while waiting := self.controller.waits(state.controller):
            state = self._carried_out(state, min(waiting))
        assert all(mover.admission >= 0 for mover in state.movers)
        return state

    def finished(self, state: State) -> bool:
        """True if every worker holds every RESULT, and nobody needs what it has sent."""
        return state.failed or all(
            not mover.suspended and not mover.events and mover.taken == (1 << self.packets) - 1
            and mover.base >= mover.end
            for mover in state.movers
        )  # fmt: skip

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields all that may happen next."""
        if state.failed:
            return
        for place, mover in enumerate(state.movers):
            held = self._at(state, self._admission(mover).job)
            if not mover.suspended:
                yield from self._window_steps(state, place, held)
            if held is not None:
                yield from self._packet_steps(state, place, held)
            yield from self._member_steps(state, place)
        for name in self.names:
            yield from self._switch_steps(state, name)
        for name in sorted(self.controller.waits(state.controller)):
            yield f"switch {name} does what it was asked to", self._carried_out(state, name)

    def _admission(self, mover: Mover) -> Admission:
        return self.admissions[mover.admission]

    def _at(self, state: State, job: int) -> Held | None:
        return next((held for held in state.held if self.tables[held.number].entry.job == job), None)

    def _holds(self, mover: Mover, number: int) -> bool:
        return number < mover.base or bool(mover.front[1] >> (number - mover.base) & 1)

    # Packets.

    def _window_steps(self, state: State, place: int, held: Held | None) -> Iterator[tuple[str, State]]:
        mover = state.movers[place]
        if mover.sent < max(self.packets, mover.end) and self.rule.may_send(mover.front):
            moved = mover._replace(front=(mover.front[0] + 1, mover.front[1]))
            yield f"worker {place} sends {mover.sent}", _with(state, place, moved)
        for number in range(mover.base, mover.sent):
            if held is None or not held.results >> number & 1 or self._holds(mover, number):
                continue
            by, front = self.rule.hold(mover.front, number - mover.base)
            if (by, front) == (0, mover.front):
                raise Wrong(f"worker {place} does not take the RESULT of {number}")
            moved = mover._replace(base=mover.base + by, front=front)
            if not self.engine.delivered(mover, number):
                if moved.taken >> number & 1:
                    raise Wrong(f"worker {place} takes the RESULT of {number} twice")
                moved = moved._replace(taken=moved.taken | 1 << number)
            elif not moved.taken >> number & 1:
                raise Wrong(f"worker {place} does not take the RESULT of {number}, and lacks it")
            yield f"worker {place} gets the RESULT of {number}", _with(state, place, moved)

    def _packet(self, known: int, number: int) -> bytes:
        """Returns the packet of this number of the member with this admission."""
        admission = self.admissions[known]
        words: Words = contribution(admission.places[admission.rank], admission.job, number, False)
        seq = (admission.first_seq + number) % 2**32
        slot = admission.base + seq % admission.slots
        header = Header(Op.SUM, 0, admission.job, admission.token, seq, slot)
        return encode(header, None if words is None else np.array(words, np.uint32))

    def _packet_steps(self, state: State, place: int, held: Held) -> Iterator[tuple[str, State]]:
        mover, table = state.movers[place], self.tables[held.number]
        admission = self._admission(mover)
        for number in range(mover.start, mover.sent):
            index = (admission.first_seq + number) % self.slots
            before = held.slots[index]
            after, out = table.receive(before, self.packet(mover.admission, number), address_of(place))
            made = held.results
            for to, data in out:
                if to not in table.addresses:
                    raise Wrong(f"a RESULT goes to {to}")
                made |= 1 << self.result(held.number, admission.first_seq, data)
            if after != before:
                self._check_overwritten(state, admission, table, before, after)
                moved = held._replace(slots=with_item(held.slots, index, after), results=made)
                after_all = state._replace(held=tuple(moved if at is held else at for at in state.held))
                yield f"the switch gets {number} of worker {place}", after_all
            else:
                if made != held.results:
                    raise Wrong(f"a RESULT of {number} that was not sent when it was complete")
                if not out and held.results >> number & 1 and not self._holds(mover, number):
                    raise Wrong(f"worker {place} lacks the RESULT of {number}, and is not answered")

    def _result(self, at: int, first_seq: int, data: bytes) -> int:
        """The packet number of a RESULT, which has to be right."""
        installed = self.tables[at].installed
        header, words = decode(data)
        number = _ahead(header.seq, first_seq)
        right = total(installed.places, installed.entry.job, number, False) if number >= 0 else None
        found = None if words is None else tuple(map(int, words))
        if number < 0 or found != right:
            raise Wrong(f"the RESULT of {number} is {found}, not {right}")
        return number

    def _former(self, job: int) -> Iterator[tuple[bytes, Address]]:
        """Packets that members may have sent under other admissions than those of a job."""
        for known, admission in enumerate(self.admissions):
            if admission.job != job:
                for number in range(self.packets):
                    yield self.packet(known, number), address_of(admission.places[admission.rank])

    def _check_overwritten(
        self, state: State, admission: Admission, table: _Slots, before: int, after: int
    ) -> None:
        if table.seq(before) == table.seq(after):
            return
        number = _ahead(table.seq(before), admission.first_seq)
        for place, mover in enumerate(state.movers if number >= admission.first_packet else ()):
            if self._admission(mover).job == admission.job and not self._holds(mover, number):
                raise Wrong(f"{number} is overwritten, and worker {place} does not hold its RESULT")

    # Members.

    def _member_steps(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        mover = state.movers[place]
        if mover.events:
            machine, effect = self.machines.event(mover.machine, mover.events[0])
            moved = mover._replace(machine=machine, events=mover.events[1:])
            match effect:
                case GoOver() if not mover.suspended:
                    yield f"worker {place} is told to go over", self._suspended(state, place, moved)
                case GoOver() | None:
                    yield f"worker {place} takes no notice of an event", _with(state, place, moved)
                case _:
                    raise Wrong(f"worker {place} is told {effect}")
        refused = self._admission(mover).switch in state.dead and mover.sent > mover.base
        if refused and not mover.suspended and len(self.names) > 1 and not self.roots:
            yield f"worker {place} finds that the port refuses", self._suspended(state, place, mover)
        if mover.suspended and mover.answer is not None:
            yield f"worker {place} goes on at the other switch", self._moved(state, place)
        if mover.suspended and state.bounds.repeats:
            bounds = state.bounds._replace(repeats=state.bounds.repeats - 1)
            again = _with(state, place, mover._replace(answer=None))._replace(bounds=bounds)
            yield f"worker {place} gets no answer, and asks again", self._asks(again, place)

    def _suspended(self, state: State, place: int, mover: Mover) -> State:
        return self._asks(_with(state, place, self.engine.suspend(mover, self.slots)), place)

    def _asks(self, state: State, place: int) -> State:
        mover = state.movers[place]
        token, lowest = self._admission(mover).token, self.engine.lowest(mover)
        after, messages = self.controller.call(state.controller, "replay", place, token, lowest)
        return self._told(state._replace(controller=after), messages)

    def _moved(self, state: State, place: int) -> State:
        mover = state.movers[place]
        new: Any = mover.answer
        if not mover.end - self.slots <= new.first_packet <= mover.end:
            raise Wrong(
                f"worker {place} has sent {mover.end} packets, and is to go on from {new.first_packet}"
            )
        if lacking := ((1 << new.first_packet) - 1) & ~mover.taken:
            raise Wrong(f"worker {place} lacks RESULTs ({lacking:b}) and is to go on from {new.first_packet}")
        machine, lost, early = self.machines.changed(mover.machine, new)
        assert not lost
        moved = self.engine.move(mover, new.first_packet)
        moved = moved._replace(
            admission=self._known(new), machine=machine, answer=None, events=(*mover.events, *early)
        )
        return _with(state, place, moved)

    def _known(self, admission: Admission) -> int:
        """The number of an admission; RESULTs for others must not be taken."""
        if admission in self.admissions:
            return self.admissions.index(admission)
        for old in self.admissions:
            for number in range(self.packets if old.job != admission.job else 0):
                seq = (old.first_seq + number) % 2**32
                slot = old.base + seq % old.slots
                if takes(admission, Header(Op.RESULT, 0, old.job, old.result_token, seq, slot)):
                    raise Wrong(f"a RESULT of job id {old.job} is taken at {admission.job}")
        self.admissions.append(admission)
        return len(self.admissions) - 1

    # Switches.

    def _switch_steps(self, state: State, name: str) -> Iterator[tuple[str, State]]:
        up, bounds = self.controller.up(state.controller), state.bounds
        if name in state.dead:
            if name in up:
                yield f"the controller finds that switch {name} is gone", self._switched(state, name, False)
            elif bounds.returns:
                after = state._replace(
                    dead=state.dead - {name}, bounds=bounds._replace(returns=bounds.returns - 1)
                )
                yield f"switch {name} is back", self._back(after, name)
            return
        if bounds.deaths and not state.dead and (self.roots or up == {*self.names}):
            after = state._replace(
                dead=state.dead | {name},
                bounds=bounds._replace(deaths=bounds.deaths - 1),
                held=tuple(each for each in state.held if self.tables[each.number].installed.switch != name),
            )
            yield f"switch {name} dies", after
        if bounds.alarms and not state.dead and up == {*self.names}:
            after = state._replace(bounds=bounds._replace(alarms=bounds.alarms - 1))
            yield f"the controller takes switch {name} for dead", self._switched(after, name, False)
        if name not in up:
            yield f"the controller reaches switch {name} again", self._back(state, name)

    def _switched(self, state: State, name: str, up: bool, there: tuple[int, ...] = ()) -> State:
        """The controller reaches a switch that holds these of its jobs, or does not reach it any more."""
        after, messages = self.controller.switched(state.controller, name, up, there)
        return self._told(state._replace(controller=after), messages)

    def _there(self, state: State, name: str) -> tuple[int, ...]:
        """The jobs that a switch holds."""
        tables = [self.tables[each.number] for each in state.held]
        return tuple(table.entry.job for table in tables if table.installed.switch == name)

    def _back(self, state: State, name: str) -> State:
        """The controller removes what is nobody's, and writes again what is missing."""
        kept = self.controller.on_switch(state.controller, name)
        there = self._there(state, name)
        held = tuple(
            each
            for each in state.held
            if self.tables[each.number].installed.switch != name or self.tables[each.number].entry.job in kept
        )
        again = [
            self._table(installed, inits=False)
            for installed, inits in list(self.installed)
            if inits
            and installed.switch == name
            and installed.entry.job in kept
            and installed.entry.job not in there
        ]
        held += tuple(Held(number, self.tables[number].first) for number in dict.fromkeys(again))
        return self._switched(
            state._replace(held=held), name, True, tuple(job for job in there if job in kept)
        )

    def _table(self, installed: Installed, *, inits: bool) -> int:
        if (installed, inits) not in self.installed:
            self.installed.append((installed, inits))
            self.tables.append(_Slots(self._programs, installed, inits, self._former))
        return self.installed.index((installed, inits))

    def _carried_out(self, state: State, name: str) -> State:
        after, operation, messages = self.controller.carry_out(state.controller, name, name in state.dead)
        state = state._replace(controller=after)
        match operation:
            case Installed():
                number = self._table(operation, inits=True)
                state = state._replace(held=(*state.held, Held(number, self.tables[number].first)))
            case Removed(job):
                state = state._replace(
                    held=tuple(each for each in state.held if self.tables[each.number].entry.job != job)
                )
        return self._told(state, messages)

    def _told(self, state: State, messages: list[Message]) -> State:
        for message in messages:
            place = message.place
            mover = state.movers[place]
            match message.kind:
                case "refused":
                    if not self.controller.up(state.controller) - state.dead:
                        return state._replace(failed=True)
                    raise Wrong(f"worker {place} is refused: {message.content}")
                case "event":
                    mover = mover._replace(events=(*mover.events, message.content))
                case "replay" if mover.suspended:
                    mover = mover._replace(answer=message.content)
                case "join":
                    mover = Mover(self._known(message.content), machine=self.machines.new(message.content))
            state = _with(state, place, mover)
        return state


def _with(state: State, place: int, mover: Mover) -> State:
    return state._replace(movers=with_item(state.movers, place, mover))


def _ahead(seq: int, first: int) -> int:
    ahead = (seq - first) % 2**32
    return ahead if ahead < 2**31 else ahead - 2**32
