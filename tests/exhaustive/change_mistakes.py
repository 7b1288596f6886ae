"""Mistakes in changes of membership, each of which the search must find.

Two are not here, since nothing goes wrong without these rules (`SPARE`). Without the fence, what a lost rank
sends can only complete rounds to which every survivor has contributed, and no survivor takes their RESULTs.
And where a generation has an id of its own, its members may keep their tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

import tests.exhaustive.engine_rules
import tests.reference.slots
import worker_lib.membership
from tests.exhaustive.controller import Edit, altered, book_module
from tests.exhaustive.membership import Bounds, Membership, Rules
from tests.exhaustive.programs import Programs, mistaken
from worker_lib.membership import Change, End, FailFrom, RequestPause, SetPolicy

_TOKENS_KEPT: Final[Edit] = (
    "member.token = self._draw_new(taken)",
    "member.token = member.token or self._draw_new(taken)",
)
_ID_KEPT: Final[Edit] = (
    "self._table.assign_id(job)",
    "self._table.ids.__setitem__(job.id, job) if job.id else self._table.assign_id(job)",
)
_NO_FENCE: Final[Edit] = ("self._effects.add(Fence(part, bits))", "pass")


def _lifecycle(*edits: Edit) -> Callable[[], Rules]:
    return lambda: Rules(book_module(lifecycle=edits))


def _changes(*edits: Edit) -> Callable[[], Rules]:
    return lambda: Rules(book_module(changes=edits))


def _book(*edits: Edit) -> Callable[[], Rules]:
    return lambda: Rules(book_module(book=edits))


def _engine(*edits: Edit) -> Callable[[], Rules]:
    return lambda: Rules(engine=altered(tests.exhaustive.engine_rules, *edits))


def _machine(*edits: Edit) -> Callable[[], Rules]:
    return lambda: Rules(machine=_altered_machine(*edits))


def _altered_machine(*edits: Edit) -> ModuleType:
    copy = altered(worker_lib.membership, *edits)
    for effect in (Change, End, FailFrom, RequestPause, SetPolicy):
        setattr(copy, effect.__name__, effect)
    return copy


_RULES: Final[dict[str, tuple[int, Bounds, Callable[[], Rules]]]] = {
    "id-and-tokens-kept": (2, Bounds(1), _lifecycle(_TOKENS_KEPT, _ID_KEPT)),
    "losses-not-in-the-admission": (
        3, Bounds(1), _lifecycle(("lost=tuple(sorted(lost.items()))", "lost=()")),
    ),
    "removed-before-all-are-done": (
        3, Bounds(1), _changes(("not _admitted(job) <= change.proceeded", "not change.proceeded")),
    ),
    "one-rank-decides": (
        3, Bounds(1), _changes(("and needed <= change.completed.keys()", "and change.completed")),
    ),
    "least-number-decides": (
        3, Bounds(1), _changes(("max(counts.values())", "min(counts.values())")),
    ),
    "progress-asked-again-begins-a-change": (
        3, Bounds(1, repeats=1),
        _changes((
            "if token is not None and member.is_behind(token):\n            # The answer to its `proceed`",
            "if False:\n            # The answer to its `proceed`",
        )),
    ),
    "proceed-asked-again-refused": (
        3, Bounds(1, repeats=1),
        _changes((
            "if token is not None and member.is_behind(token):\n            # The answer to an earlier",
            "if False:\n            # The answer to an earlier",
        )),
    ),
    "opened-with-a-lost-rank": (
        3, Bounds(2),
        _changes((
            "elif generation is not None:\n            # The next generation, which includes them,",
            "elif False:\n            # The next generation, which includes them,",
        )),
    ),
    "needed-rank-that-left-stays": (2, Bounds(leaves=1), _changes(("self._leave_behind(job)", "pass"))),
    "leave-counts-in-the-next-generation": (
        3, Bounds(1, leaves=1), _book(("begun = completed = 0  #", "pass  #")),
    ),
    "loss-told-to-nobody": (
        3, Bounds(1),
        _book((
            "if any(member.admission is not None for member in lost):\n"
            "                self._effects.send_all(job, event)",
            "pass",
        )),
    ),
    "frozen-rank-goes-on": (
        3, Bounds(1), _engine(("limit=completed(member, packets),", "limit=completed(member, packets) + 1,")),
    ),
    "lacking-results-not-fetched": (
        3, Bounds(1), _engine(("limit=max(member.limit, complete_to)", "limit=member.limit")),
    ),
    "resumed-a-packet-late": (3, Bounds(1), _engine(("admission, base=0", "admission, base=1"))),
    "former-result-taken": (
        2, Bounds(1),
        _engine(("header.job == admission.job\n        and header.token == admission.result_token", "True")),
    ),
    "pause-before-the-collective": (
        3, Bounds(1, returns=1), _engine(("limit=collective + 1", "limit=collective")),
    ),
    "early-event-forgotten": (
        2, Bounds(1, returns=1, repeats=1), _machine(("self._early.append(event)", "pass")),
    ),
    "event-of-a-former-generation-taken": (
        3, Bounds(2, returns=1),
        _machine((
            'if kind in ("lost", "left", "pause", "failover") and job != self.generation.job:',
            "if False:",
        )),
    ),
}  # fmt: skip

_SIZES: Final = {  # of those that fewer packets are enough for
    "opened-with-a-lost-rank": {"collectives": 1, "packets": 1},
    "leave-counts-in-the-next-generation": {"collectives": 1, "packets": 1},
    "event-of-a-former-generation-taken": {"collectives": 0},
}


def _fence_completes_rounds() -> Membership:
    slots = mistaken(
        tests.reference.slots, "job.fenced |= bits", "job.fenced |= bits\n        job.full &= ~bits"
    )
    return Membership(3, Bounds(1), programs=Programs(slots=slots))


def _fence_not_looked_at() -> Membership:
    right = "if worker is None or job.fenced & 1 << worker.bit:"
    slots = mistaken(tests.reference.slots, right, "if worker is None:")
    return Membership(2, Bounds(1), programs=Programs(slots=slots))


def _with_rules(workers: int, bounds: Bounds, make: Callable[[], Rules], **size: int) -> Membership:
    return Membership(workers, bounds, rules=make(), **size)


CHANGE_MISTAKES: Final[dict[str, Callable[[], Any]]] = {
    **{
        f"change-{name}": partial(_with_rules, *given, **_SIZES.get(name, {}))
        for name, given in _RULES.items()
    },
    "change-fence-completes-rounds": _fence_completes_rounds,
    "change-fence-not-looked-at": _fence_not_looked_at,
}
SPARE: Final[dict[str, Callable[[], Any]]] = {
    "no-fence": partial(_with_rules, 3, Bounds(1), _changes(_NO_FENCE)),
    "tokens-kept": partial(_with_rules, 3, Bounds(1), _lifecycle(_TOKENS_KEPT)),
}
