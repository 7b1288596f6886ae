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
from dataclasses import dataclass, field, replace
from typing import Any, Final

from switchagg.bench.grid import Settings
from switchagg.bench.group import Group
from switchagg.bench.messages import Digest, Show
from switchagg.bench.peers.switchagg import SwitchaggPeer
from switchagg.bench.policy_messages import Layout, Prepare, Reduce, Setting, Took
from switchagg.errors import UsageError
from switchagg.rules.planner import MAX_BLOCK
from switchagg.wire.header import MAX_WORKERS
from switchagg.wire.heartbeat import MAX_DEADLINE, MIN_DEADLINE

_LEAD_SECONDS: Final = 0.02
_TRIES: Final = 3  # calls from which the length of a phase is reckoned
_TURNS: Final = 4  # in which the fixed settings run; half of them before the policy
_MARGIN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What `switchagg bench policy` is told.

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
        def require(condition: bool, name: str, value: object, accepted: str) -> None:
            if not condition:
                raise UsageError(f"{name} is {value}; accepted: {accepted}")

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
        policy: seconds that they took under the job's policy.
        fixed: that they would have taken under each fixed setting.
        policy_cpu, fixed_cpu: processor time of all ranks and the switch, likewise. Where others use the same
            computer it says more than the clock.
        policies: under which policy they were: (from call, seconds since the phase began, policy).
        exact: whether all settings and all ranks had the same result, bit for bit.
    """

    layout: Layout
    density: float
    calls: int
    policy: float = 0.0
    fixed: dict[str, float] = field(default_factory=dict)
    policy_cpu: float = 0.0
    fixed_cpu: dict[str, float] = field(default_factory=dict)
    policies: tuple[tuple[int, float, str], ...] = ()
    exact: bool = True

    @property
    def best(self) -> str:
        """The fixed setting that was fastest."""
        return min(self.fixed, key=lambda name: self.fixed[name])


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """A whole run."""

    phases: tuple[Phase, ...]

    @property
    def policy(self) -> float:
        """Seconds of all phases under the policy."""
        return sum(phase.policy for phase in self.phases)

    @property
    def best_each(self) -> float:
        """Seconds under the best fixed setting of each phase."""
        return sum(phase.fixed[phase.best] for phase in self.phases)

    @property
    def single(self) -> dict[str, float]:
        """Seconds under each fixed setting if it held for all phases."""
        return {name: sum(phase.fixed[name] for phase in self.phases) for name in self.phases[0].fixed}

    @property
    def cpu_over_best(self) -> float:
        """Processor time under the policy over that under the setting of each phase that needed least."""
        return sum(phase.policy_cpu for phase in self.phases) / sum(
            min(phase.fixed_cpu.values()) for phase in self.phases
        )

    @property
    def exact(self) -> bool:
        """Whether every phase was."""
        return all(phase.exact for phase in self.phases)

    def of(self, layout: Layout) -> PolicyOutcome:
        """The phases of one layout."""
        return PolicyOutcome(tuple(phase for phase in self.phases if phase.layout is layout))


def run(settings: PolicySettings, say: Callable[[str], None]) -> PolicyOutcome:
    """Measure.

    Args:
        say: is told what comes next.

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
        with Group(peer, settings.workers, settings.timeout, program="switchagg.bench.policy_rank") as group:
            job = _Job(group, settings)
            for density in settings.densities:
                say(f"{layout}, density {density:g}")
                phases.append(job.phase(layout, density))
    return PolicyOutcome(tuple(phases))


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
        names = [each.name for each in settings.fixed]
        measured = Phase(
            layout, density, calls, fixed=dict.fromkeys(names, 0.0), fixed_cpu=dict.fromkeys(names, 0.0)
        )
        in_a_turn = max(1, math.ceil(calls * settings.share / _TURNS))
        self._fixed(measured, in_a_turn, range(_TURNS // 2), digests)
        took = self._reduce(None, calls, digests)
        measured.policy, measured.policy_cpu, measured.policies = (
            took.seconds,
            took.cpu_seconds,
            took.policies,
        )
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
                measured.fixed[each.name] += took.seconds * scale
                measured.fixed_cpu[each.name] += took.cpu_seconds * scale

    def _reduce(self, setting: Setting | None, calls: int, digests: set[int]) -> Took:
        """What the slowest rank saw, with the processor time of all and of the switch."""
        command = Reduce(setting, calls, time.monotonic() + _LEAD_SECONDS)
        limit = self._settings.timeout * calls + _MARGIN_SECONDS
        switch = self._group.cpu_seconds()
        took = self._group.command(lambda _: command, Took, limit)
        switch = self._group.cpu_seconds() - switch
        shown = self._group.command(lambda _: Show(None), Digest, limit)
        digests.update(crc for each in shown for crc in each.calls)
        return replace(
            took[0],
            seconds=max(each.seconds for each in took),
            cpu_seconds=switch + sum(each.cpu_seconds for each in took),
        )


def to_json(settings: PolicySettings, outcome: PolicyOutcome, machine: dict[str, Any]) -> dict[str, Any]:
    """The whole outcome as JSON values. Times are seconds; `policies` are (from call, at second, policy)."""
    return {
        "machine": machine,
        "settings": {
            "workers": settings.workers,
            "bytes": settings.size,
            "dtype": "float32",
            "densities": list(settings.densities),
            "layouts": [str(layout) for layout in settings.layouts],
            "phase_seconds": settings.seconds,
            "share": settings.share,
            "deadline": settings.deadline,
            "transport": settings.transport,
            "seed": settings.seed,
        },
        "phases": [
            {
                "layout": str(phase.layout),
                "density": phase.density,
                "calls": phase.calls,
                "policy_seconds": phase.policy,
                "fixed_seconds": phase.fixed,
                "policy_cpu_seconds": phase.policy_cpu,
                "fixed_cpu_seconds": phase.fixed_cpu,
                "best": phase.best,
                "policies": [list(each) for each in phase.policies],
                "exact": phase.exact,
            }
            for phase in outcome.phases
        ],
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
    names = list(outcome.phases[0].fixed)
    rows = [["layout", "density", "calls", *names, "policy", "over best", "ended as"]]
    for phase in outcome.phases:
        least = phase.fixed[phase.best]
        times = [
            f"{1000 * phase.fixed[name] / phase.calls:.1f}{'*' if name == phase.best else ''}"
            for name in names
        ]
        rows.append(
            [
                str(phase.layout), f"{phase.density:g}", str(phase.calls), *times,
                f"{1000 * phase.policy / phase.calls:.1f}", f"{phase.policy / least - 1:+.0%}",
                phase.policies[-1][2] if phase.policies else "-",
            ]
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
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
