"""The membership state machine of one member: takes the controller's events. No I/O and no clock.

    event of the member stream -> MembershipStateMachine.event -> effect
                                        End(cause)              the session has ended
                                        FailFrom(begun, completed, loss)  later collectives cannot complete
                                        Change()                freeze, progress, finish, proceed
                                        GoOver(stripe)          to another switch
                                        RequestPause()          rank 0: ask all ranks to change
                                        SetPolicy(word)         rank 0: the policy of plans from now on
                                        None                    nothing

A *place* is the rank that a member joined as; it stays, and events name places. A *rank* is its number in the
present *generation*: 0 to world_size - 1, in the order of places. Every change of membership begins a new
generation. A rank that is lost either ends the session or, with ``on_loss="shrink"``, begins a change:

1. freeze: no collective is begun or completed.
2. progress: the ranks agree how many collectives are complete anywhere. Whoever lacks RESULTs of these gets
   them from the switch: a slot is overwritten only after every rank's next packet for it.
3. proceed: new slots, tokens and ranks. If a rank was lost, all that was called and not completed fails, and
   so does the next call of whoever had called nothing: after that error, which every rank raises at the same
   collective, calls belong to the new generation. If no rank was lost, nothing fails, and what was not begun
   is carried out in the new generation.

Section 12 of docs/protocol.md has the rules; `worker_lib/monitor.py` carries them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from switchagg.errors import IntegrityError, SwitchAggError, SwitchError, UsageError, WorkerLostError
from switchagg.wire.heartbeat import MAX_DEADLINE, MIN_DEADLINE

OnLoss = Literal["fail", "shrink"]
ON_LOSS: Final[tuple[OnLoss, ...]] = ("fail", "shrink")
_MAX_FAILURE: Final = 300  # characters of an exception that the other ranks hear


@dataclass(frozen=True, slots=True)
class Generation:
    """The members of a job between two changes.

    Attributes:
        job: its id in the switch.
        rank: this member's number.
        places: the ranks that members joined as, in order; this member's is ``places[rank]``.

    Raises `SwitchError` where rank and places do not fit.
    """

    job: int
    rank: int
    places: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.places) or list(self.places) != sorted(set(self.places)):
            raise SwitchError(f"the controller said rank {self.rank} of places {self.places}")

    @property
    def world_size(self) -> int:
        """The number of members."""
        return len(self.places)

    def called(self, places: Sequence[int]) -> str:
        """Members as messages name them: "rank 2", or where it moved up "rank 1 (joined as rank 2)"."""
        names = [
            f"{self.places.index(place)} (joined as rank {place})"
            if place in self.places and self.places.index(place) != place
            else str(place)
            for place in places
        ]
        return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of ranks, as the error that reports it.

    Attributes:
        ranks: their numbers when they went.
        text: "rank 2 was lost: its process ended".
        left: they left by themselves, in order or with an exception.
        world_size: how many go on; None where the session ends.
    """

    ranks: tuple[int, ...]
    text: str
    left: bool = False
    world_size: int | None = None

    def error(self, doing: str) -> WorkerLostError:
        """The exception for one collective or call."""
        if self.world_size is not None:
            rest = f"The session goes on with {self.world_size} {'rank' if self.world_size == 1 else 'ranks'}"
            return WorkerLostError(
                f"{self.text}; {doing} was interrupted. {rest}: call it again.", self.ranks
            )
        if self.left:
            return WorkerLostError(f"{self.text}, and {doing} needs it. Connect again.", self.ranks)
        return WorkerLostError(
            f"{self.text}; {doing} was interrupted. The session is broken: connect again.", self.ranks
        )


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of a session by switch or controller, as the error that reports it.

    Attributes:
        text: "job 'x' was evicted: maintenance".
        damaged: a RESULT was not the sum.
    """

    text: str
    damaged: bool = False

    def error(self, doing: str) -> SwitchError:
        """The exception for one collective or call."""
        kind = IntegrityError if self.damaged else SwitchError
        return kind(f"{self.text}; {doing} was interrupted. The session is broken: connect again.")


@dataclass(frozen=True, slots=True)
class End:
    """The session has ended."""

    cause: Loss | Gone


@dataclass(frozen=True, slots=True)
class FailFrom:
    """Collectives from number `begun` on (of this generation) cannot complete; None: not known from which.

    Those before `completed` were complete at a rank that has left, so all their RESULTs are in the switch.
    """

    begun: int | None
    completed: int
    loss: Loss


@dataclass(frozen=True, slots=True)
class Change:
    """Freeze, agree, finish, proceed."""


@dataclass(frozen=True, slots=True)
class GoOver:
    """The switch of a stripe is gone: suspend, replay."""

    stripe: int = 0


@dataclass(frozen=True, slots=True)
class RequestPause:
    """Ask all ranks, by the next plan, to change after that collective."""


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """The skip policy's word for the plans to come."""

    word: int


Effect = End | FailFrom | Change | GoOver | RequestPause | SetPolicy


class MembershipStateMachine:
    """The present members of a job, and the fate of the others.

    Args:
        name: of the job.
        generation: the one that this member was admitted to.
        on_loss: "fail" or "shrink", when a rank is lost.
    """

    def __init__(self, name: str, generation: Generation, on_loss: OnLoss) -> None:
        self.name = name
        self.generation = generation
        self.on_loss = on_loss
        self.final = False  # the controller will not be restarted
        self._lost: dict[int, str] = {}  # place -> why
        self._left: dict[int, str] = {}  # place -> the exception; empty if in order
        self._past: deque[int] = deque(maxlen=64)  # ids of former generations
        self._early: list[Mapping[str, Any]] = []  # events of the generation to come

    def event(self, event: Mapping[str, Any]) -> Effect | None:
        """Takes one event of the member stream. Unknown and former generations' events have no effect.

        An event of a generation that this member has not entered yet is kept for `early`.

        Raises:
            SwitchError: it is malformed.
        """
        kind, job = event.get("event"), event.get("job", self.generation.job)
        try:
            if kind in ("lost", "left", "pause", "failover") and job != self.generation.job:
                if kind == "lost" and self._own_place in _places(event["ranks"]):
                    return self._on_lost(_places(event["ranks"]), str(event["why"]))
                if job not in self._past:
                    self._early.append(event)
                return None
            match kind:
                case "lost":
                    return self._on_lost(_places(event["ranks"]), str(event["why"]))
                case "left":
                    why = str(event.get("why") or "")
                    counts = event.get("begun"), event.get("completed")
                    return self._on_left(_places(event["ranks"]), *counts, why)
                case "failover":
                    return None if self.losing else GoOver(int(event.get("stripe", 0)))
                case "switch":
                    return End(Gone(f"job {self.name!r} has lost its slots: {event['why']}"))
                case "evicted":
                    return End(Gone(f"job {self.name!r} was evicted: {event['why']}"))
                case "stopping":
                    self.final = event.get("jobs") == "end"
                case "policy":
                    return SetPolicy(int(event["word"]))
                case "pause":
                    return Change() if self.generation.world_size == 1 else RequestPause()
        except (KeyError, TypeError, ValueError) as error:
            raise SwitchError(f"the controller sent {dict(event)!r}: {error!r}") from error
        return None

    def early(self) -> list[Mapping[str, Any]]:
        """Events that came before their generation; to be taken again after `changed`."""
        early, self._early = self._early, []
        return early

    @property
    def losing(self) -> bool:
        """True from the loss of a rank until the change that leaves it out."""
        return bool(self._lost)

    @property
    def _own_place(self) -> int:
        return self.generation.places[self.generation.rank]

    def changed(self, generation: Generation, lost: Sequence[tuple[int, str]]) -> Loss | None:
        """A new generation begins.

        Args:
            generation: the new one.
            lost: the places of the former one that were lost in it, and why. They may be back already; and
                their events may come later than this.

        Returns their loss, to be reported; None if there is none.
        """
        before, self.generation = self.generation, generation
        self._lost.update(lost)
        gone = [place for place, _ in lost if place in before.places]
        text = self._text(before, gone)
        self._past.append(before.job)
        self._lost.clear()
        self._left = {place: why for place, why in self._left.items() if place in generation.places}
        if not gone:
            return None
        return Loss(_ranks(before, gone), text, world_size=generation.world_size)

    def _on_lost(self, places: Sequence[int], why: str) -> Effect | None:
        if self._own_place in places:
            return End(Gone(f"this rank of job {self.name!r} was lost to the controller: {why}"))
        new = [place for place in places if place in self.generation.places and place not in self._lost]
        if not new:
            return None
        for place in new:
            self._lost[place] = why
        if self.on_loss == "shrink":
            return Change()
        lost = sorted(self._lost)
        return End(Loss(_ranks(self.generation, lost), self._text(self.generation, lost)))

    def _on_left(self, places: Sequence[int], begun: object, completed: object, why: str) -> Effect | None:
        counts = begun if isinstance(begun, list) else [None] * len(places)
        known = (
            [int(count) for count in completed if count is not None] if isinstance(completed, list) else []
        )
        new = {
            place: count
            for place, count in zip(places, counts, strict=True)
            if place in self.generation.places and place not in self._left
        }
        if not new:
            return None
        self._left.update(dict.fromkeys(new, why))
        left = sorted(self._left)
        said = [
            f"{self.generation.called([place])} has failed: {self._left[place]}"
            for place in left
            if self._left[place]
        ]
        # Ranks that leave in order after one has failed do so because of it.
        text = "; ".join(said) or f"{self.generation.called(left)} left the job in order"
        least = None if any(count is None for count in new.values()) else min(int(n) for n in new.values())
        return FailFrom(least, max(known, default=0), Loss(_ranks(self.generation, left), text, left=True))

    def _text(self, generation: Generation, gone: Sequence[int]) -> str:
        """ "rank 1 was lost: its process ended; rank 3 was lost: silent for 10 s"."""
        reasons: dict[str, list[int]] = {}
        for place in gone:
            reasons.setdefault(self._lost.get(place, ""), []).append(place)
        parts = []
        for why, places in reasons.items():
            if self._left.keys() >= set(places):
                parts.append(f"{generation.called(places)} left the job in order")
                continue
            were = "was" if len(places) == 1 else "were"
            parts.append(f"{generation.called(places)} {were} lost{f': {why}' if why else ''}")
        return "; ".join(parts)


def failure(error: BaseException | None, on_loss: str) -> str | None:
    """The exception that ends a rank, as "ValueError: bad batch"; None if it leaves in order.

    A `WorkerLostError` is the failure of another rank, which they hear of too. In a job that shrinks, one
    whose session failed leaves in order as well, since it could not come back to a job that it was lost to.
    """
    if error is None or isinstance(error, GeneratorExit | WorkerLostError):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    if on_loss == "shrink" and isinstance(error, SwitchAggError) and not isinstance(error, UsageError):
        return None
    try:
        said = " ".join(str(error).split())
    except Exception:
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= _MAX_FAILURE else f"{text[: _MAX_FAILURE - 4]} ..."


def checked_on_loss(given: str | None, default: str | None) -> OnLoss | None:
    """`on_loss` as asked for by argument, or by SWITCHAGG_ON_LOSS; None leaves it to the job.

    Raises:
        UsageError: neither "fail" nor "shrink".
    """
    name, value = ("on_loss", given) if given is not None else ("SWITCHAGG_ON_LOSS", default or None)
    if value is None:
        return None
    for known in ON_LOSS:
        if value == known:
            return known
    raise UsageError(f"{name} is {value!r}; accepted: {', '.join(ON_LOSS)}")


def checked_deadline(given: float | None, default: str | None) -> float | None:
    """The deadline as asked for by argument, or by SWITCHAGG_DEADLINE; None leaves it to the job.

    Raises:
        UsageError: not 1 to 3,600 seconds.
    """
    name, value = ("deadline", given) if given is not None else ("SWITCHAGG_DEADLINE", default or None)
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not MIN_DEADLINE <= seconds <= MAX_DEADLINE:
        raise UsageError(f"{name} is {value!r}; accepted: {MIN_DEADLINE:g} to {MAX_DEADLINE:g} seconds")
    return seconds


def _places(value: Any) -> list[int]:
    return [int(place) for place in value]


def _ranks(generation: Generation, places: Sequence[int]) -> tuple[int, ...]:
    return tuple(generation.places.index(place) for place in places if place in generation.places)
