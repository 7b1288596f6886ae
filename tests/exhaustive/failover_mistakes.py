"""Mistakes in failovers, each of which the search must find."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import tests.exhaustive.failover_rules
import worker_lib.membership
from tests.exhaustive.controller import Edit, altered, book_module
from tests.exhaustive.failover import Bounds, Failover, FailoverRules
from tests.exhaustive.programs import Programs
from worker_lib.membership import GoOver


def _failovers(*edits: Edit) -> Callable[[], FailoverRules]:
    return lambda: FailoverRules(book_module(failovers=edits))


def _lifecycle(*edits: Edit) -> Callable[[], FailoverRules]:
    return lambda: FailoverRules(book_module(lifecycle=edits))


def _book(*edits: Edit) -> Callable[[], FailoverRules]:
    return lambda: FailoverRules(book_module(book=edits))


def _engine(*edits: Edit) -> Callable[[], FailoverRules]:
    return lambda: FailoverRules(engine=altered(tests.exhaustive.failover_rules, *edits))


def _machine(*edits: Edit) -> FailoverRules:
    module = altered(worker_lib.membership, *edits)
    module.GoOver = GoOver  # type: ignore[attr-defined]
    return FailoverRules(machine=module)


_RULES: Final[dict[str, tuple[Bounds, Callable[[], FailoverRules]]]] = {
    "a-packet-too-late": (
        Bounds(1), _failovers(("map(min, zip(", "map(lambda each: min(each) + 1, zip(")),
    ),
    "greatest-number-decides": (
        Bounds(1), _failovers(("map(min, zip(", "map(max, zip(")),
    ),
    "moved-before-all-have-reported": (
        Bounds(1),
        _failovers(("if not set(generation.places) <= failover.lowest.keys():", "if not failover.lowest:")),
    ),
    "sequence-numbers-of-packet-0": (
        Bounds(1), _lifecycle(("(part.first_seq - part.first_packet)", "(part.first_seq)")),
    ),
    "id-and-tokens-kept": (
        Bounds(alarms=1),
        _lifecycle(
            (
                "member.token = self._draw_new(taken)",
                "member.token = member.token or self._draw_new(taken)",
            ),
            (
                "self._table.assign_id(job)",
                "self._table.ids.__setitem__(job.id, job) if job.id else self._table.assign_id(job)",
            ),
        ),
    ),
    "nobody-told-of-the-death": (
        Bounds(1),
        _failovers((
            '            self._remind(member)\n        self._advance(job)\n        return True',
            '            pass\n        return True',
        )),
    ),
    "dead-target-kept": (
        Bounds(2, returns=1),
        _book((
            "                search.waits = not self.failovers.begin(job, name, why)\n",
            "                pass\n",
        )),
    ),
    "report-asked-again-begins-another": (
        Bounds(1, repeats=1),
        _failovers((
            "if token != member.admission.token and job.failover is None:",
            "if False:",
        )),
    ),
    "sends-on-after-the-report": (
        Bounds(1), _engine(("_replace(suspended=True, end=end,", "_replace(suspended=True, end=mover.end,")),
    ),
    "replays-from-what-it-lacks": (
        Bounds(1), _engine(("start=first, base=first,", "start=lowest(mover), base=lowest(mover),")),
    ),
    "needs-nothing-and-sends-nothing": (
        Bounds(1),
        _engine(("    return mover._replace(suspended=False,",
                 "    first = mover.end if lowest(mover) == mover.end else first\n"
                 "    return mover._replace(suspended=False,")),
    ),
    "held-results-forgotten": (
        Bounds(1), _engine(("held=(here | mover.held) & last", "held=0")),
    ),
    "held-results-of-the-last-switch-alone": (
        Bounds(2, returns=1), _engine(("held=(here | mover.held) & last", "held=here & last")),
    ),
    "event-of-a-former-switch-taken": (
        Bounds(1, repeats=1),
        lambda: _machine((
            'if kind in ("lost", "left", "pause", "failover") and job != self.generation.job:',
            "if False:",
        )),
    ),
    "early-event-forgotten": (
        Bounds(alarms=2), lambda: _machine(("self._early.append(event)", "pass")),
    ),
}  # fmt: skip
_FEWER: Final = ("early-event-forgotten", "held-results-of-the-last-switch-alone")  # two packets are enough


def _with_rules(bounds: Bounds, make: Callable[[], FailoverRules], packets: int) -> Failover:
    return Failover(2, 2, packets, bounds, rules=make())


def _restart_not_noticed() -> Failover:
    rules = _book(("for job_id in found.missing:", "for job_id in ():"))()
    return Failover(2, 2, 4, Bounds(1, returns=1), switches=1, rules=rules)


def _left_on_a_dead_switch() -> Failover:
    edits = (
        "self._leave_dead_switches()\n        self.scheduler.run()\n\n    def set_draining",
        "self.scheduler.run()\n\n    def set_draining",
    )
    return Failover(2, 2, 2, Bounds(deaths=1, alarms=1), roots=True, rules=_book(edits)())


def _no_init() -> Failover:
    return Failover(2, 2, 4, Bounds(1), programs=Programs(inits=False))


FAILOVER_MISTAKES: Final[dict[str, Callable[[], Any]]] = {
    **{
        f"failover-{name}": partial(_with_rules, *given, 2 if name in _FEWER else 4)
        for name, given in _RULES.items()
    },
    "failover-restarted-switch-taken-for-the-old": _restart_not_noticed,
    "failover-left-on-a-dead-switch": _left_on_a_dead_switch,
    "failover-no-init": _no_init,
}
