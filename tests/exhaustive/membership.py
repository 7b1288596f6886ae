"""Workers, one switch and a controller, while workers are lost, leave and come back: every schedule.

The controller is the product's book of jobs, a member's reaction to events its state machine
(`controller.py`); slots and windows are the reference programs; the engine's part is `engine_rules.py`. A
state has the controller's book and what the switch has yet to do for it; the generations at the switch; each
worker; and how many losses and the like are still to come. The properties, besides those of `one_switch`:

* a RESULT has the sum of all members of its generation, and of none else;
* packets and RESULTs of former generations change nothing;
* all who go on to the next generation have completed the same collectives in the one before, and where none
  was lost, nothing was interrupted;
* no session of a present member ends, and no call of one is refused;
* while a collective is neither complete nor has failed at some present member, something can happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple

import tests.exhaustive.engine_rules
import worker_lib.membership
from switchagg.control.jobs.records import Admission
from switchagg.wire.header import Header, Op
from tests.exhaustive.controller import (
    Controller,
    Fenced,
    Installed,
    Machines,
    Message,
    Operation,
    Removed,
    book_module,
)
from tests.exhaustive.generations import Generation, total
from tests.exhaustive.member import Life, Member, Phase
from tests.exhaustive.one_switch import with_item
from tests.exhaustive.programs import Programs, Sent, WindowRule, seq_of
from tests.exhaustive.search import Wrong
from worker_lib.membership import Change, End, FailFrom, RequestPause

PRESENT: Final = (Life.joined, Life.lost)


@dataclass(frozen=True, slots=True)
class Rules:
    """The programs that are searched: the book of jobs, the machine of a member, and `engine_rules.py`."""

    book: Any = None
    machine: ModuleType = worker_lib.membership
    engine: Any = tests.exhaustive.engine_rules


class AtSwitch(NamedTuple):
    """A generation at the switch."""

    number: int
    fenced: int
    slots: tuple[int, ...]
    results: int = 0  # packet numbers whose RESULT was sent, as bits
    pause: int = -1  # the collective whose header asks for a pause


class Bounds(NamedTuple):
    """The number of times that each may happen."""

    losses: int = 0
    leaves: int = 0
    repeats: int = 0  # calls of members that are made again, since the answer did not come
    returns: int = 0


class State(NamedTuple):
    """All that decides what may happen."""

    controller: int
    switch: tuple[AtSwitch, ...]
    members: tuple[Member, ...]
    former: tuple[int, ...]  # generations that the switch has had
    bounds: Bounds
    ends: tuple[tuple[int, int], ...]  # collectives complete in a generation at those who went on from it


class Membership:
    """`workers` workers with `slots` slots; in a generation each calls `collectives` of `packets` packets."""

    def __init__(
        self,
        workers: int,
        bounds: Bounds,
        *,
        slots: int = 2,
        collectives: int = 2,
        packets: int = 2,
        programs: Programs | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._programs, rules = programs or Programs(), rules or Rules()
        self.bounds, self.collectives, self.packets = bounds, collectives, packets
        self.slots, self.numbers = slots, collectives * packets
        self.rule = WindowRule(self._programs, slots)
        self.controller = Controller(rules.book or book_module(), workers, slots)
        self.machines = Machines(rules.machine)
        self.engine = rules.engine
        self.places = range(workers)
        self.admissions: list[Admission] = []
        self.installed: list[Installed] = []
        self.generations: dict[tuple[int, ...], Generation] = {}

    def initial(self) -> State:
        """Returns the state when all have joined and the first generation is open."""
        joining = tuple(Member(Life.joining) for _ in self.places)
        state = State(self.controller.first, (), joining, (), self.bounds, ())
        while self.controller.waits(state.controller):
            state = self._carried_out(state)
        assert all(member.life is Life.joined for member in state.members)
        return state

    def finished(self, state: State) -> bool:
        """True if at every present member every collective is complete or has failed.

        One that is back may wait for the next header, unless a single member, which sends none, is there.
        """
        waiting = any(member.life is Life.joining for member in state.members)
        return all(
            member.phase is Phase.run
            and not (member.wanted or member.events)
            and (not waiting if self._alone(member) else self._completed(member) >= self.collectives)
            for member in state.members
            if member.life is Life.joined
        )

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields all that may happen next."""
        for at in state.switch:
            self._check_answers(state, at)
        for place, member in enumerate(state.members):
            at = self._at(state, member.job)
            if at is not None:
                yield from self._packet_steps(state, place, at)
            if member.life is Life.joined:
                yield from self._member_steps(state, place)
            yield from self._life_steps(state, place)
        if self.controller.waits(state.controller):
            yield "the switch does what it was asked to", self._carried_out(state)

    # Packets.

    def _at(self, state: State, job: int) -> AtSwitch | None:
        return next((at for at in state.switch if self._generation(state, at).job == job), None)

    def _generation(self, state: State, at: AtSwitch) -> Generation:
        """The slots of a generation, with those before it."""
        key = (*state.former[: state.former.index(at.number)], at.number)
        if key not in self.generations:
            *former, installed = (self.installed[number] for number in key)
            self.generations[key] = Generation(self._programs, installed, tuple(former), self.numbers)
        return self.generations[key]

    def _completed(self, member: Member) -> int:
        return int(self.engine.completed(member, self.packets))

    def _pauses(self, at: AtSwitch, number: int) -> bool:
        return number % self.packets == 0 and at.pause == number // self.packets

    def _packet_steps(self, state: State, place: int, at: AtSwitch) -> Iterator[tuple[str, State]]:
        member = state.members[place]
        if member.life in PRESENT and member.phase in (Phase.run, Phase.finish):
            yield from self._window_steps(state, place, at)
        generation = self._generation(state, at)
        bit = generation.bit_of(place)
        for number in range(member.sent):
            index = seq_of(number) % self.slots
            before = at.slots[index]
            pause = place == generation.places[0] and self._pauses(at, number)
            after, sent = generation.contribute(before, at.fenced, bit, number, pause)
            made = at.results
            for packet in sent:
                self._check(at, generation, packet)
                everybody = after != before
                if packet.to != (generation.addresses if everybody else (generation.addresses[bit],)):
                    raise Wrong(f"the RESULT of {packet.number} goes to {packet.to}")
                made |= 1 << packet.number
            if after != before:
                self._check_overwritten(state, generation, before, after)
                moved = at._replace(slots=with_item(at.slots, index, after), results=made)
                yield f"the switch gets {number} of worker {place}", self._with_switch(state, at, moved)
            elif made != at.results:
                raise Wrong(f"a RESULT of {sent[0].number} that was not sent when it was complete")

    def _window_steps(self, state: State, place: int, at: AtSwitch) -> Iterator[tuple[str, State]]:
        member = state.members[place]
        collective, first = divmod(member.sent, self.packets)
        begins = self.engine.may_begin(member, collective) and not self._alone(member)
        if member.sent < self.numbers and begins and self.rule.may_send(member.front):
            moved = member._replace(front=(member.front[0] + 1, member.front[1]))
            after = state
            if first == 0 and member.asked:
                moved = moved._replace(asked=False)
                after = self._with_switch(state, at, at._replace(pause=collective))
            yield f"worker {place} sends {member.sent}", _with(after, place, moved)
        if self.engine.halted(member, self.packets):
            return
        for number in range(member.base, member.sent):
            if not at.results >> number & 1 or member.front[1] >> (number - member.base) & 1:
                continue
            by, front = self.rule.hold(member.front, number - member.base)
            if (by, front) == (0, member.front):
                raise Wrong(f"worker {place} does not take the RESULT of {number}")
            moved = member._replace(base=member.base + by, front=front)
            if self._pauses(at, number):
                moved = self.engine.pause(moved, number // self.packets)
            yield f"worker {place} gets the RESULT of {number}", _with(state, place, moved)

    def _right(self, at: AtSwitch, generation: Generation, number: int) -> Any:
        return total(generation.places, generation.job, number, self._pauses(at, number))

    def _check(self, at: AtSwitch, generation: Generation, packet: Sent) -> None:
        right = self._right(at, generation, packet.number)
        if packet.number < 0 or packet.words != right:
            raise Wrong(f"the RESULT of {packet.number} is {packet.words}, not {right}")

    @staticmethod
    def _holds(member: Member, number: int) -> bool:
        return number < member.base or bool(member.front[1] >> (number - member.base) & 1)

    def _check_overwritten(self, state: State, generation: Generation, before: int, after: int) -> None:
        number = generation.overwritten(before, after)
        for place in generation.places if number is not None else ():
            member = state.members[place]
            if member.job == generation.job and not self._holds(member, number or 0):
                raise Wrong(f"{number} is overwritten, and worker {place} does not hold its RESULT")

    def _check_answers(self, state: State, at: AtSwitch) -> None:
        """Whoever lacks a RESULT that another has gets it from the switch alone."""
        generation = self._generation(state, at)
        there = [(place, each) for place, each in enumerate(state.members) if each.job == generation.job]
        most = max((each.base + each.front[1].bit_length() for _, each in there), default=0)
        for place, member in there:
            held = (1 << member.base) - 1 | member.front[1] << member.base
            if without := held & ~at.results:
                raise Wrong(f"worker {place} goes on without the RESULT of {without.bit_length() - 1}")
            bit = generation.bit_of(place)
            if member.life is not Life.joined or at.fenced >> bit & 1:
                continue
            for number in range(member.base, most):
                if self._holds(member, number) or not any(self._holds(each, number) for _, each in there):
                    continue
                pause = place == generation.places[0] and self._pauses(at, number)
                slot = at.slots[seq_of(number) % self.slots]
                sent = generation.answer(slot, at.fenced, bit, number, pause)
                if [packet.to for packet in sent] != [(generation.addresses[bit],)]:
                    raise Wrong(f"worker {place} lacks the RESULT of {number}, and is not answered")
                self._check(at, generation, sent[0])

    def _with_switch(self, state: State, before: AtSwitch, after: AtSwitch) -> State:
        return state._replace(switch=tuple(after if at is before else at for at in state.switch))

    # Members.

    def _member_steps(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        member = state.members[place]
        match member.phase:
            case Phase.run if member.events:
                yield f"worker {place} takes {dict(member.events[0])}", self._takes_event(state, place)
            case Phase.finish if self.engine.halted(member, self.packets):
                waiting = member._replace(phase=Phase.proceed)
                yield (
                    f"worker {place} proceeds",
                    self._call(_with(state, place, waiting), "proceed", place, self._token(member)),
                )
            case Phase.proceed if member.answer is not None:
                yield f"worker {place} resumes", self._resumed(state, place)
        if member.phase is Phase.run and (member.wanted or self.engine.halted(member, self.packets)):
            moved = self.engine.freeze(member, self.packets)
            said = self._completed(moved)
            yield (
                f"worker {place} freezes with {said} collectives",
                self._call(_with(state, place, moved), "progress", place, self._token(member), said),
            )
        if self._needs_left(state, place):
            gone = tuple(other for other in self.places if state.members[other].life is Life.left)
            event = (("event", "lost"), ("ranks", gone), ("why", ""))
            machine, effect = self.machines.event(member.machine, event)
            if effect is not None:  # not yet
                moved = member._replace(machine=machine, wanted=True)
                yield f"worker {place} needs a rank that has left", _with(state, place, moved)
        if member.phase in (Phase.progress, Phase.proceed) and state.bounds.repeats:
            again = member._replace(phase=Phase.run, wanted=True, answer=None)
            bounds = state.bounds._replace(repeats=state.bounds.repeats - 1)
            yield (
                f"worker {place} gets no answer, and will ask again",
                _with(state, place, again)._replace(bounds=bounds),
            )

    def _alone(self, member: Member) -> bool:
        """True for the only member of a generation: its calls need no packets."""
        return self.admissions[member.admission].world_size == 1

    def _token(self, member: Member) -> int:
        return self.admissions[member.admission].token

    def _takes_event(self, state: State, place: int) -> State:
        member = state.members[place]
        machine, effect = self.machines.event(member.machine, member.events[0])
        moved = member._replace(machine=machine, events=member.events[1:])
        match effect:
            case Change():
                moved = moved._replace(wanted=True)
            case RequestPause():
                moved = moved._replace(asked=True)
            case FailFrom(begun, completed, _):
                least = min(moved.fail_from, self.collectives if begun is None else begun)
                moved = moved._replace(fail_from=least, sure=max(moved.sure, completed))
            case End(cause):
                raise Wrong(f"the session of worker {place} ends: {cause}")
        return _with(state, place, moved)

    def _needs_left(self, state: State, place: int) -> bool:
        """True if a member calls a collective of which one that has left never sent what it needs."""
        member = state.members[place]
        first = self._completed(member)
        return (
            member.phase is Phase.run
            and not self._alone(member)
            and member.sure <= first < self.collectives
            and any(
                other.life is Life.left and (other.job != member.job or other.sent <= member.base)
                for other in map(state.members.__getitem__, self.admissions[member.admission].places)
            )
        )

    def _resumed(self, state: State, place: int) -> State:
        """Checks what becomes of the old generation, and begins the new one."""
        member = state.members[place]
        new = member.answer
        assert isinstance(new, Admission)
        done = self._completed(member)
        known = dict(state.ends)
        if known.setdefault(member.job, done) != done:
            raise Wrong(f"worker {place} completed {done} collectives, another {known[member.job]}")
        machine, lost, early = self.machines.changed(member.machine, new)
        if (
            not lost
            and (member.base % self.packets or member.front[0])
            and member.fail_from > self.collectives
        ):
            raise Wrong(f"a collective of worker {place} was interrupted, and no worker was lost")
        moved = self.engine.resume(member, new.job, self._admission(new), machine)
        moved = moved._replace(events=(*moved.events, *early))
        return _with(state._replace(ends=tuple(sorted(known.items()))), place, moved)

    def _admission(self, admission: Admission) -> int:
        """The number of an admission; RESULTs of any generation before it must not be taken."""
        if admission in self.admissions:
            return self.admissions.index(admission)
        for old in self.admissions:
            for number in range(self.numbers if old.job != admission.job else 0):
                seq = seq_of(number)
                slot = old.base + seq % old.slots
                if self.engine.takes(admission, Header(Op.RESULT, 0, old.job, old.result_token, seq, slot)):
                    raise Wrong(f"a RESULT of generation {old.job} is taken in generation {admission.job}")
        self.admissions.append(admission)
        return len(self.admissions) - 1

    # The ends of processes, and their return.

    def _life_steps(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        member, bounds = state.members[place], state.bounds
        others = any(each.life is Life.joined for other, each in enumerate(state.members) if other != place)
        if member.life is Life.joined and bounds.losses and others:
            after = state._replace(bounds=bounds._replace(losses=bounds.losses - 1))
            gone = Life.gone if member.phase in (Phase.progress, Phase.proceed) else Life.lost
            shut = _shut(member, gone)
            yield f"worker {place} is lost", self._call(_with(after, place, shut), "lost", place)
        if member.life is Life.joined and bounds.leaves and others:
            after = state._replace(bounds=bounds._replace(leaves=bounds.leaves - 1))
            begun = -(-member.sent // self.packets)
            counts = max(begun, self._completed(member)), self._completed(member)
            yield (
                f"worker {place} leaves, with {counts[0]} collectives begun and {counts[1]} complete",
                self._call(
                    _with(after, place, _shut(member, Life.left)),
                    "leave", place, self._token(member), *counts,
                ),
            )  # fmt: skip
        if member.life is Life.lost:
            yield f"the process of worker {place} ends", _with(state, place, _shut(member, Life.gone))
        if member.life is Life.gone and bounds.returns:
            after = state._replace(bounds=bounds._replace(returns=bounds.returns - 1))
            back = member._replace(life=Life.joining)
            yield f"worker {place} is back", self._call(_with(after, place, back), "join", place)

    # The controller.

    def _call(self, state: State, name: str, place: int, *arguments: Any) -> State:
        after, messages = self.controller.call(state.controller, name, place, *arguments)
        return self._told(state._replace(controller=after), messages)

    def _carried_out(self, state: State) -> State:
        after, operation, messages = self.controller.carry_out(state.controller)
        return self._told(self._operated(state._replace(controller=after), operation), messages)

    def _operated(self, state: State, operation: Operation) -> State:
        match operation:
            case Installed():
                if operation not in self.installed:
                    self.installed.append(operation)
                number = self.installed.index(operation)
                state = state._replace(former=(*state.former, number))
                first = self._generation(state, AtSwitch(number, 0, ())).first
                return state._replace(switch=(*state.switch, AtSwitch(number, 0, first)))
            case Fenced(job, bits):
                at = self._at(state, job)
                if at is None:
                    return state
                generation = self._generation(state, at)
                fenced = [place for place in generation.places if bits >> generation.bit_of(place) & 1]
                members = tuple(
                    _forgotten(member, job) if place in fenced else member
                    for place, member in enumerate(state.members)
                )
                after = self._with_switch(state, at, at._replace(fenced=at.fenced | bits))
                return after._replace(members=members)
            case Removed(job):
                at = self._at(state, job)
                members = tuple(_forgotten(member, job) for member in state.members)
                return state._replace(
                    switch=tuple(each for each in state.switch if each is not at), members=members
                )
        return state

    def _told(self, state: State, messages: list[Message]) -> State:
        for message in messages:
            place = message.place
            member = state.members[place]
            match message.kind, member.life:
                case "refused", _:
                    raise Wrong(f"worker {place} is refused: {message.content}")
                case "event", Life.joined:
                    member = member._replace(events=(*member.events, message.content))
                case "progress", Life.joined if member.phase is Phase.progress:
                    if message.content < self._completed(member):
                        raise Wrong(f"worker {place} is told to complete fewer collectives than it has")
                    member = self.engine.finish(member, message.content)
                case "proceed", Life.joined if member.phase is Phase.proceed:
                    member = member._replace(answer=message.content)
                case "join", Life.joining:
                    admission = message.content
                    member = Member(
                        Life.joined, admission.job, self._admission(admission),
                        machine=self.machines.new(admission),
                    )  # fmt: skip
            state = _with(state, place, member)
        return state


def _with(state: State, place: int, member: Member) -> State:
    """The state with a member changed; ends of generations that nobody is in are forgotten."""
    members = (*state.members[:place], member, *state.members[place + 1 :])
    ends = state.ends
    if ends:
        jobs = {each.job for each in members if each.life is Life.joined}
        ends = tuple(end for end in ends if end[0] in jobs)
    return state._replace(members=members, ends=ends)


def _shut(member: Member, life: Life) -> Member:
    """A process that the controller tells nothing any more; its packets stay."""
    kept = Member(life, member.job, member.admission, Phase.run, member.base, member.front)
    if life is Life.lost:
        return kept._replace(phase=member.phase, limit=member.limit, fail_from=member.fail_from)
    return kept


def _forgotten(member: Member, job: int) -> Member:
    """A process whose packets the switch takes no more, since it was fenced or its generation removed."""
    if member.job != job or member.life is Life.joined:
        return member
    return Member(Life.gone if member.life is Life.lost else member.life)
