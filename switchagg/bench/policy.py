"""The policy benchmark: a job whose density drifts, tuned by its controller, against every fixed setting.

A job of some ranks goes through phases, each with tensors of another density. In every phase it all-reduces
a number of times as the job's policy says, without a word in the calls, and so does each fixed setting, dense
or sparse with one of the block sizes, on the same tensors in the same session; these calls tell the tuner
nothing. Half of the fixed ones run before and half after, in turn, so that a machine that becomes slower does
so for all.

    phase    fixed settings, in turn | as the policy says, without a break | fixed settings, in turn

The policy's time has everything in it: noticing, deciding, and what was spent under the old policy meanwhile.
It is held against the best fixed setting of every phase, chosen in hindsight, and the best single one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.grid import Settings
from switchagg.bench.group import Group
from switchagg.bench.peers.switchagg import SwitchaggPeer
from switchagg.bench.rank import Digest, Show
from switchagg.errors import UsageError, require
from switchagg.processor_time import own_seconds
from switchagg.report.machine import machine
from switchagg.report.table import columns
from switchagg.rules.planner import MAX_BLOCK, SkipPolicy
from switchagg.wire.header import MAX_WORKERS
from switchagg.wire.heartbeat import MAX_DEADLINE, MIN_DEADLINE

_LEAD_SECONDS: Final = 0.02
_TRIES: Final = 3  # calls from which the length of a phase is reckoned
_TURNS: Final = 4  # in which the fixed settings run; half of them before the policy
_MARGIN_SECONDS: Final = 30.0


class Layout(StrEnum):
    """Layout of the non-zero elements in a tensor."""

    RANDOM = "random"  # pieces of 64 elements, independent on every rank
    CLUSTERED = "clustered"  # pieces of 4,096

    @property
    def grain(self) -> int:
        """Elements in a piece."""
        return 64 if self is Layout.RANDOM else 4096


@dataclass(frozen=True, slots=True)
class Setting:
    """A fixed setting, which every call names. `block` is 0 for dense."""

    block: int

    @property
    def name(self) -> str:
        """For people and JSON."""
        return f"sparse {self.block}" if self.block else "dense"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Parameters of `switchagg bench policy`.

    Attributes:
        size: bytes of one rank's tensor, float32.
        densities: of the phases, one after the other.
        blocks: block sizes of the fixed sparse settings.
        seconds: that a phase takes under its best fixed setting, about.
        deadline: the job's; a heartbeat comes five times in it, at least once a second.
        share: of a phase's calls that each fixed setting is measured with.

    Raises:
        UsageError: a value that cannot work.
    """

    workers: int = 4
    size: int = 64 << 20
    densities: tuple[float, ...] = (1.0, 0.5, 0.1, 0.03, 0.01, 0.03, 0.1, 0.5, 1.0)
    layouts: tuple[Layout, ...] = (Layout.RANDOM, Layout.CLUSTERED)
    blocks: tuple[int, ...] = (16, 64, 256, 1024)
    seconds: float = 8.0
    share: float = 0.25
    deadline: float = 2.5
    transport: str = "shm"
    seed: int = 1
    timeout: float = 60.0

    def __post_init__(self) -> None:
        require(2 <= self.workers <= MAX_WORKERS, "workers", self.workers, f"2 to {MAX_WORKERS}")
        require(
            self.size >= 4096 and self.size % 4 == 0, "size", self.size, "multiples of 4 bytes from 4096 on"
        )
        require(bool(self.densities), "density", "empty", "one or more")
        for density in self.densities:
            require(0 <= density <= 1, "density", density, "0 to 1")
        for block in self.blocks:
            require(1 <= block <= MAX_BLOCK, "block", block, f"1 to {MAX_BLOCK} elements")
        require(math.isfinite(self.seconds) and self.seconds > 0, "phase-seconds", self.seconds, "above 0")
        require(0 < self.share <= 1, "share", self.share, "above 0, up to 1")
        least, most = MIN_DEADLINE, MAX_DEADLINE
        require(least <= self.deadline <= most, "deadline", self.deadline, f"{least:g} to {most:g} seconds")
        require(self.transport in ("shm", "udp"), "transport", self.transport, "shm, udp")
        require(self.seed >= 0, "seed", self.seed, "0 and up")
        require(math.isfinite(self.timeout) and self.timeout > 0, "timeout", self.timeout, "seconds above 0")

    @property
    def fixed(self) -> tuple[Setting, ...]:
        """The settings that the policy is held against."""
        return (Setting(0), *(Setting(block) for block in self.blocks))


@dataclass(slots=True)
class Phase:
    """One phase of one layout, measured.

    Attributes:
        calls: all-reduces.
        policy_seconds: that they took under the job's policy.
        fixed_seconds: that they would have taken under each fixed setting.
        policy_cpu_seconds, fixed_cpu_seconds: processor time of all ranks and the switch, likewise. It
            depends less on other programs than the clock does.
        policies: the policies in force: (from call, seconds since the phase began, policy).
        exact: True if all settings and all ranks had the same result, bit for bit.
    """

    layout: Layout
    density: float
    calls: int
    policy_seconds: float = 0.0
    fixed_seconds: dict[str, float] = field(default_factory=dict)
    policy_cpu_seconds: float = 0.0
    fixed_cpu_seconds: dict[str, float] = field(default_factory=dict)
    policies: tuple[tuple[int, float, str], ...] = ()
    exact: bool = True

    @property
    def best(self) -> str:
        """The fixed setting that was fastest."""
        return min(self.fixed_seconds, key=lambda name: self.fixed_seconds[name])


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """A whole run."""

    phases: tuple[Phase, ...]

    @property
    def policy(self) -> float:
        """Seconds of all phases under the policy."""
        return sum(phase.policy_seconds for phase in self.phases)

    @property
    def best_each(self) -> float:
        """Seconds under the best fixed setting of each phase."""
        return sum(phase.fixed_seconds[phase.best] for phase in self.phases)

    @property
    def single(self) -> dict[str, float]:
        """Seconds under each fixed setting if it held for all phases."""
        names = self.phases[0].fixed_seconds
        return {name: sum(phase.fixed_seconds[name] for phase in self.phases) for name in names}

    @property
    def cpu_over_best(self) -> float:
        """Processor time under the policy over that under the setting of each phase that needed least."""
        return sum(phase.policy_cpu_seconds for phase in self.phases) / sum(
            min(phase.fixed_cpu_seconds.values()) for phase in self.phases
        )

    @property
    def exact(self) -> bool:
        """True if every phase was."""
        return all(phase.exact for phase in self.phases)

    def of(self, layout: Layout) -> PolicyOutcome:
        """The phases of one layout."""
        return PolicyOutcome(tuple(phase for phase in self.phases if phase.layout is layout))


def run(settings: PolicySettings, say: Callable[[str], None]) -> PolicyOutcome:
    """Measures.

    Args:
        say: takes a line on the phase that comes next.

    Raises:
        UsageError: it cannot run here.
        SwitchAggError: a rank failed.
    """
    phases: list[Phase] = []
    for layout in settings.layouts:
        peer = SwitchaggPeer(
            Settings(seed=settings.seed), transport=settings.transport, deadline=settings.deadline
        )
        if (why := peer.missing()) is not None:
            raise UsageError(why)
        with Group(peer, settings.workers, settings.timeout, PolicyRank) as group:
            job = _Job(group, settings)
            for density in settings.densities:
                say(f"{layout}, density {density:g}")
                phases.append(job.phase(layout, density))
    return PolicyOutcome(tuple(phases))


@dataclass(frozen=True, slots=True)
class Prepare:
    """Command: write a tensor of so many float32, of which a share is non-zero, for the phase to come."""

    elements: int
    layout: Layout
    density: float
    seed: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Command: all-reduce it `calls` times, from `start` of the monotonic clock on.

    Attributes:
        setting: None to leave it to the job's policy.
    """

    setting: Setting | None
    calls: int
    start: float


@dataclass(frozen=True, slots=True)
class Took:
    """Reply to `Reduce`.

    Attributes:
        seconds: from the common start until the last call returned.
        cpu_seconds: processor time of this process meanwhile.
        policies: in force after a call, where it changed: (call from 0, seconds since the start, policy).
    """

    seconds: float
    cpu_seconds: float
    policies: tuple[tuple[int, float, str], ...]


class PolicyRank:
    """Carries out the parent's commands on one session."""

    def __init__(self, rank: int, endpoint: Any) -> None:
        self._rank = rank
        self._session = endpoint.session
        self._x: NDArray[np.float32] = np.empty(0, np.float32)
        self._out = self._x

    def carry_out(self, command: object) -> object:
        """Carries out one command and returns the reply.

        Raises:
            TypeError: there is no such command.
        """
        match command:
            case Prepare():
                self._prepare(command)
                return None
            case Reduce():
                return self._reduce(command)
            case Show():
                return Digest.of([self._out])
        raise TypeError(f"no such command: {command!r}")

    def _prepare(self, command: Prepare) -> None:
        grain = command.layout.grain
        pieces = -(-command.elements // grain)
        rng = np.random.default_rng((command.seed, self._rank, round(command.density * 1e6)))
        count = round(command.density * pieces)
        present = np.ones(pieces, np.bool_)
        if count < pieces:
            present[:] = False
            present[rng.choice(pieces, count, replace=False)] = True
        if self._x.size != command.elements:
            self._x, self._out = (np.empty(command.elements, np.float32) for _ in range(2))
            self._out.fill(0)
        values = rng.standard_normal(grain).astype(np.float32) + np.float32(4)
        for at in range(0, pieces, 1024):  # a slab at a time: no second tensor
            part = self._x[at * grain : (at + 1024) * grain]
            part[:] = (present[at : at + 1024, None] * values).reshape(-1)[: part.size]

    def _reduce(self, command: Reduce) -> Took:
        session, x, out = self._session, self._x, self._out
        arguments: dict[str, Any] = {}
        if command.setting is not None:
            block = command.setting.block
            arguments = {"blocks": "sparse", "block_size": block} if block else {"blocks": "dense"}
        policies: list[tuple[int, float, str]] = []
        last: SkipPolicy | None = None
        time.sleep(max(0.0, command.start - time.monotonic()))
        cpu = own_seconds()
        for call in range(command.calls):
            session.allreduce(x, out=out, **arguments)
            if command.setting is None and (policy := session.policy) != last:
                last = policy
                policies.append((call, time.monotonic() - command.start, str(policy)))
        seconds = time.monotonic() - command.start
        return Took(seconds, own_seconds() - cpu, tuple(policies))


class _Job:
    """A group of ranks in one job, from phase to phase."""

    def __init__(self, group: Group, settings: PolicySettings) -> None:
        self._group = group
        self._settings = settings

    def phase(self, layout: Layout, density: float) -> Phase:
        settings = self._settings
        prepare = Prepare(settings.size // 4, layout, density, settings.seed)
        self._group.command(lambda _: prepare, type(None), settings.timeout)
        digests: set[int] = set()
        tried = {each: self._reduce(each, _TRIES, digests).seconds / _TRIES for each in settings.fixed}
        calls = max(2 * _TURNS, round(settings.seconds / min(tried.values())))
        zero = dict.fromkeys((each.name for each in settings.fixed), 0.0)
        measured = Phase(layout, density, calls, fixed_seconds=dict(zero), fixed_cpu_seconds=dict(zero))
        in_a_turn = max(1, math.ceil(calls * settings.share / _TURNS))
        self._fixed(measured, in_a_turn, range(_TURNS // 2), digests)
        took = self._reduce(None, calls, digests)
        measured.policy_seconds, measured.policy_cpu_seconds = took.seconds, took.cpu_seconds
        measured.policies = took.policies
        self._fixed(measured, in_a_turn, range(_TURNS // 2, _TURNS), digests)
        measured.exact = len(digests) == 1
        return measured

    def _fixed(self, measured: Phase, calls: int, turns: range, digests: set[int]) -> None:
        fixed = self._settings.fixed
        for turn in turns:
            for i in range(len(fixed)):
                each = fixed[(i + turn) % len(fixed)]
                took = self._reduce(each, calls, digests)
                scale = measured.calls / (calls * _TURNS)
                measured.fixed_seconds[each.name] += took.seconds * scale
                measured.fixed_cpu_seconds[each.name] += took.cpu_seconds * scale

    def _reduce(self, setting: Setting | None, calls: int, digests: set[int]) -> Took:
        """The slowest rank's time, with the processor time of all and of the switch."""
        command = Reduce(setting, calls, time.monotonic() + _LEAD_SECONDS)
        limit = self._settings.timeout * calls + _MARGIN_SECONDS
        switch = self._group.cpu_seconds()
        took = self._group.command(lambda _: command, Took, limit)
        switch = self._group.cpu_seconds() - switch
        shown = self._group.command(lambda _: Show(), Digest, limit)
        digests.update(crc for each in shown for crc in each.calls)
        return replace(
            took[0],
            seconds=max(each.seconds for each in took),
            cpu_seconds=switch + sum(each.cpu_seconds for each in took),
        )


def to_json(settings: PolicySettings, outcome: PolicyOutcome) -> dict[str, Any]:
    """The whole outcome as JSON values. Times are seconds; `policies` are (from call, at second, policy)."""
    return {
        "machine": machine(),
        "settings": {
            "workers": settings.workers,
            "bytes": settings.size,
            "dtype": "float32",
            "densities": list(settings.densities),
            "layouts": [str(layout) for layout in settings.layouts],
            "phase_seconds": settings.seconds,
            **{name: getattr(settings, name) for name in ("share", "deadline", "transport", "seed")},
        },
        "phases": [asdict(phase) | {"best": phase.best} for phase in outcome.phases],
        "totals": {
            str(layout): _totals(outcome.of(layout)) for layout in settings.layouts
        } | {"all": _totals(outcome)},
    }  # fmt: skip


def _totals(outcome: PolicyOutcome) -> dict[str, Any]:
    single = outcome.single
    return {
        "policy_seconds": outcome.policy,
        "best_of_each_phase_seconds": outcome.best_each,
        "single_seconds": single,
        "policy_over_best_of_each_phase": outcome.policy / outcome.best_each,
        "cpu_of_policy_over_best_of_each_phase": outcome.cpu_over_best,
        "policy_over_best_single": outcome.policy / min(single.values()),
    }


def table(outcome: PolicyOutcome) -> str:
    """Milliseconds a call, a line a phase, and the totals."""
    names = list(outcome.phases[0].fixed_seconds)
    rows = [["layout", "density", "calls", *names, "policy", "over best", "ended as"]]
    for phase in outcome.phases:
        least = phase.fixed_seconds[phase.best]
        times = [
            f"{1000 * phase.fixed_seconds[name] / phase.calls:.1f}{'*' if name == phase.best else ''}"
            for name in names
        ]
        rows.append(
            [
                str(phase.layout), f"{phase.density:g}", str(phase.calls), *times,
                f"{1000 * phase.policy_seconds / phase.calls:.1f}",
                f"{phase.policy_seconds / least - 1:+.0%}", phase.policies[-1][2] if phase.policies else "-",
            ]
        )  # fmt: skip
    lines = [columns(rows, [True] * len(rows[0]))]
    parts: list[tuple[str, PolicyOutcome]] = [
        (str(layout), outcome.of(layout)) for layout in dict.fromkeys(p.layout for p in outcome.phases)
    ]
    for name, part in [*parts, ("all", outcome)] if len(parts) > 1 else parts:
        single = part.single
        best = min(single, key=lambda each: single[each])
        lines.append(
            f"{name}: {part.policy:.1f} s as the policy says, {part.best_each:.1f} s with the best setting of"
            f" each phase ({part.policy / part.best_each - 1:+.1%}), {single[best]:.1f} s with the best"
            f" single one, {best} ({part.policy / single[best] - 1:+.1%}); processor time against the best"
            f" of each phase: {part.cpu_over_best - 1:+.1%}"
        )
    return "\n".join(lines)
