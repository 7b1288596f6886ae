"""The controller's book of jobs, and a member's state machine, as functions of a state.

`switchagg.control.jobs.book.JobBook` and `worker_lib.membership.MembershipStateMachine` themselves are run: a
copy takes the call, and its new state is read. The answers are kept, since few of them differ. What the book
asks its switch to do waits in a queue, and is done later, in order.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import switchagg.control.jobs.book
import switchagg.control.jobs.failovers
import switchagg.control.jobs.lifecycle
import switchagg.control.jobs.membership_changes
from switchagg.control.jobs import effects
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import Admission, JoinRequest, MemberState, OnLoss, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.slots import JobEntry
from switchagg.rules.switch import Capacity, Reconciled
from tests.exhaustive.programs import FIRST_SEQ, WORDS, address_of
from worker_lib import membership

TENANT: Final = Tenant("me")
NAME: Final = "job"
Edit = tuple[str, str]


def altered(module: ModuleType, *edits: Edit) -> ModuleType:
    """Returns the module with each left text, which occurs once in its source, replaced by the right one."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    for before, after in edits:
        assert source.count(before) == 1, f"{before!r} occurs {source.count(before)} times in {module}"
        source = source.replace(before, after)
    copy = ModuleType(f"{module.__name__}_altered")
    sys.modules[copy.__name__] = copy
    exec(compile(source, module.__file__, "exec"), copy.__dict__)
    return copy


def book_module(
    lifecycle: tuple[Edit, ...] = (),
    changes: tuple[Edit, ...] = (),
    book: tuple[Edit, ...] = (),
    failovers: tuple[Edit, ...] = (),
) -> Any:
    """Returns the module of the book, with edits of it and of the modules that it is made of.

    Every generation gets the same first sequence number: a random draw may repeat.
    """
    same = ("first_seq = self._draw()", f"first_seq = {FIRST_SEQ}")
    module: Any = altered(switchagg.control.jobs.book, *book)
    module.JobLifecycle = altered(switchagg.control.jobs.lifecycle, *lifecycle, same).JobLifecycle
    module.Failovers = altered(switchagg.control.jobs.failovers, *failovers).Failovers
    module.MembershipChanges = altered(switchagg.control.jobs.membership_changes, *changes).MembershipChanges
    return module


@dataclass(slots=True)
class _Numbers:
    """Numbers that all differ, for tokens and cookies."""

    drawn: int = 0x100

    def number(self) -> int:
        self.drawn += 1
        return self.drawn

    def cookie(self) -> bytes:
        return self.number().to_bytes(16, "big")


@dataclass(frozen=True, slots=True)
class Installed:
    """A generation that is being installed: its entry, its INITs, the places of its ranks, and its switch."""

    entry: JobEntry
    inits: tuple[bytes, ...]
    places: tuple[int, ...]
    switch: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A fence that the switch is to put up."""

    job: int
    bits: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A generation that the switch is to forget."""

    job: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """Every INIT of a generation is back."""

    job: Job
    generation: Generation


@dataclass(frozen=True, slots=True)
class Message:
    """The controller tells a member an event, an answer to a call, or a refusal of it.

    `kind` is "event", "progress", "proceed", "replay", "join" or "refused"; `content` is the event's items,
    the number of collectives to complete, the admission, or the refusal with its code before it.
    """

    place: int
    kind: str
    content: Any


Operation = Installed | Fenced | Removed | None


@dataclass(slots=True)
class _Snapshot:
    book: Any
    queue: deque[Any] = field(default_factory=deque)


class Controller:
    """A book with one job of `workers` ranks that shrinks, and switches with room for it alone."""

    def __init__(self, module: Any, workers: int, slots: int, names: Sequence[str] = ("s",)) -> None:
        self._workers, self._slots = workers, slots
        self._snapshots: list[_Snapshot] = []
        self._numbers: dict[Any, int] = {}
        numbers = _Numbers()
        switches = [SwitchResources(name, Capacity(slots, WORDS, 1 << 20), slots=slots) for name in names]
        book = module.JobBook(switches, draw=numbers.number, cookies=numbers.cookie)
        for name in names:
            book.switch_up(name, Reconciled())
        for place in range(workers):
            book.join(TENANT, NAME, self._request(place), 0.0)
        self.first = self._keep(_Snapshot(book))[0]
        self.call = cache(self._call)
        self.carry_out = cache(self._carry_out)
        self.switched = cache(self._switched)
        self.up = cache(self._up)
        self.waits = cache(self._waits)

    def _request(self, place: int) -> JoinRequest:
        return JoinRequest(
            place, self._workers, *address_of(place), WORDS, self._slots, on_loss=OnLoss.shrink
        )

    def _waits(self, state: int) -> frozenset[str]:
        """The switches that have something to do."""
        return frozenset(each.generation.slot_range.switch for each in self._snapshots[state].queue)

    def _up(self, state: int) -> frozenset[str]:
        """The switches that the controller reaches."""
        switches = self._snapshots[state].book.pool.switches
        return frozenset(name for name, switch in switches.items() if switch.up)

    def on_switch(self, state: int, name: str) -> tuple[int, ...]:
        """The ids of the jobs that a switch should hold."""
        return tuple(part.id for part in self._snapshots[state].book.table.on_switch(name))

    def _switched(
        self, state: int, name: str, up: bool, there: tuple[int, ...] = ()
    ) -> tuple[int, list[Message]]:
        """A switch cannot be reached any more; or it can, and had the slots of these jobs."""
        snapshot = deepcopy(self._snapshots[state])
        if up:
            wanted = self.on_switch(state, name)
            lacking = tuple(job for job in wanted if job not in there)
            snapshot.book.switch_up(name, Reconciled(kept=there, missing=lacking))
        else:
            snapshot.book.switch_down(name, "it is gone")
        return self._keep(snapshot)

    def _call(self, state: int, name: str, place: int, *arguments: Any) -> tuple[int, list[Message]]:
        """A call that concerns the member at a place: progress, proceed, replay, leave, lost or join."""
        snapshot = deepcopy(self._snapshots[state])
        book = snapshot.book
        job = book.table.find(TENANT.name, NAME)
        refused = []
        try:
            match name:
                case "join":
                    book.join(TENANT, NAME, self._request(place), 0.0)
                case "lost":
                    book.lost([job.members[place]], "silent")
                case "leave":
                    token, begun, completed = arguments
                    member = book.table.member(TENANT.name, NAME, place, token)
                    book.leave(member, begun, completed, None, token)
                case "progress":
                    token, completed = arguments
                    member = book.table.member(TENANT.name, NAME, place, token)
                    book.changes.progress(member, completed, token)
                case "proceed":
                    (token,) = arguments
                    member = book.table.member(TENANT.name, NAME, place, token)
                    address, port = address_of(place)
                    book.changes.proceed(member, address, [port], token)
                case "replay":
                    token, lowest = arguments
                    member = book.table.member(TENANT.name, NAME, place, token)
                    address, port = address_of(place)
                    book.failovers.report(member, token, [lowest], address, [port])
        except AdmissionError as error:
            refused.append(Message(place, "refused", f"{error.code}: {error}"))
        after, messages = self._keep(snapshot)
        return after, messages + refused

    def _carry_out(
        self, state: int, switch: str = "s", dead: bool = False
    ) -> tuple[int, Operation, list[Message]]:
        """A switch does the first thing that it was asked to do, as `switchagg.control.agent` has it.

        One that is `dead`, or that the controller does not reach, does nothing.
        """
        snapshot = deepcopy(self._snapshots[state])
        operation: Operation = None
        gone = dead or switch not in self.up(state)
        first = next(each for each in snapshot.queue if each.generation.slot_range.switch == switch)
        snapshot.queue.remove(first)
        match first:
            case effects.Install(job, generation) if not snapshot.book.wants(generation):
                pass
            case effects.Install(job, generation) if gone:
                snapshot.book.opening_failed(job, generation, SwitchError("it is gone"))
            case effects.Install(job, generation):
                inits = tuple(generation.pending.values())
                operation = Installed(generation.entry, inits, generation.places, switch)
                for packet in inits:
                    generation.echoed(packet)
                assert not generation.pending
                snapshot.queue.appendleft(_Opened(job, generation))
            case _Opened(job, generation):
                snapshot.book.opened(job, generation, 0.0)
            case effects.Remove(generation) if not gone:
                operation = Removed(generation.id)
            case effects.Fence(generation, bits):
                operation = Fenced(generation.id, bits)
        after, messages = self._keep(snapshot)
        return after, operation, messages

    def _keep(self, snapshot: _Snapshot) -> tuple[int, list[Message]]:
        """Numbers a state, after its effects were taken; returns what members are told."""
        messages = []
        for effect in snapshot.book.poll():
            match effect:
                case effects.Install() | effects.Remove() | effects.Fence():
                    snapshot.queue.append(effect)
                case effects.AnswerJoin(member) | effects.AnswerStep(member) | effects.SendEvent(member):
                    if member.state is MemberState.joined:
                        messages.append(_message(member, effect))
        key = frozen(snapshot)
        if key not in self._numbers:
            self._numbers[key] = len(self._snapshots)
            self._snapshots.append(snapshot)
        return self._numbers[key], messages


def _message(member: Member, effect: effects.MemberEffect) -> Message:
    refusal = getattr(effect, "refusal", None) or member.refusal
    if refusal is not None:
        return Message(member.rank, "refused", f"{refusal.code}: {refusal}")
    match effect:
        case effects.SendEvent(_, event):
            return Message(member.rank, "event", _items(event))
        case effects.AnswerStep(_, effects.ChangeStep.progress, complete_to):
            return Message(member.rank, "progress", complete_to)
        case effects.AnswerStep(_, step):
            return Message(member.rank, step.name, member.admission)
    return Message(member.rank, "join", member.admission)


def _items(event: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in event.items())


class Machines:
    """Members' state machines, by numbers."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._machines: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self.new = cache(self._new)
        self.event = cache(self._event)
        self.changed = cache(self._changed)

    def _generation(self, admission: Admission) -> membership.Generation:
        return membership.Generation(admission.job, admission.rank, admission.places)

    def _keep(self, machine: Any) -> int:
        key = frozen(machine)
        if key not in self._numbers:
            self._numbers[key] = len(self._machines)
            self._machines.append(machine)
        return self._numbers[key]

    def _new(self, admission: Admission) -> int:
        """That of a member that has just joined."""
        generation = self._generation(admission)
        return self._keep(self._module.MembershipStateMachine(NAME, generation, "shrink"))

    def _event(self, machine: int, event: tuple[tuple[str, Any], ...]) -> tuple[int, Any]:
        """It takes an event: its state then, and the effect."""
        copy = deepcopy(self._machines[machine])
        given = {key: list(value) if isinstance(value, tuple) else value for key, value in event}
        effect = copy.event(given)
        return self._keep(copy), effect

    def _changed(self, machine: int, admission: Admission) -> tuple[int, bool, tuple[Any, ...]]:
        """A new generation begins: its state then, True if ranks were lost, and events that came early."""
        copy = deepcopy(self._machines[machine])
        loss = copy.changed(self._generation(admission), admission.lost)
        early = tuple(_items(event) for event in copy.early())
        return self._keep(copy), loss is not None, early


def frozen(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All of a value that decides what it does, as a hashable one. Entries of dictionaries have no order."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return value
    if isinstance(value, tuple | list | deque):
        return tuple(frozen(item, seen) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, dict):
        return tuple((frozen(key, seen), frozen(value[key], seen)) for key in sorted(value, key=repr))
    if isinstance(value, FunctionType | type):
        return value.__qualname__
    if isinstance(value, MethodType):
        return value.__name__, frozen(value.__self__, seen)
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += sorted(getattr(value, "__dict__", ()))
    return type(value).__name__, tuple((name, frozen(getattr(value, name), seen)) for name in names)
