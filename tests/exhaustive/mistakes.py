"""Mistakes in the rules, each of which the search must find.

One is not here: without the test of a packet's slot nothing goes wrong, since a slot holds sequence numbers
of its own only, and any other is stale. (It is there because a switch may index memory by it.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import tests.reference.slots
import tests.reference.window
from tests.exhaustive.one_switch import OneSwitch
from tests.exhaustive.programs import Programs, mistaken
from tests.exhaustive.search import System
from tests.exhaustive.tree import Tree


def _slots(right: str, wrong: str) -> Callable[[], Programs]:
    return lambda: Programs(slots=mistaken(tests.reference.slots, right, wrong))


def _window(right: str, wrong: str) -> Callable[[], Programs]:
    return lambda: Programs(window=mistaken(tests.reference.window, right, wrong))


_PROGRAMS: Final[dict[str, Callable[[], Programs]]] = {
    "no-stale-test": _slots("elif header.seq != slot.seq:", "elif False:"),
    "previous-round-taken": _slots(
        "elif header.seq != slot.seq:",
        "elif header.seq not in (slot.seq, (slot.seq - job.entry.slots) % 2**32):",
    ),
    "seen-not-looked-at": _slots("elif slot.seen & bit:", "elif False:"),
    "seen-forgotten": _slots("slot.seen |= bit", "slot.seen = bit"),
    "seen-kept-in-a-new-round": _slots(
        "slot.seq, slot.seen, slot.filled, slot.ecn = header.seq, 0, False, 0\n            "
        "self._count(Event.fresh, job)",
        "slot.seq, slot.filled = header.seq, False",
    ),
    "words-kept-in-a-new-round": _slots(
        "slot.seq, slot.seen, slot.filled, slot.ecn = header.seq, 0, False, 0\n            "
        "self._count(Event.fresh, job)",
        "slot.seq, slot.seen = header.seq, 0",
    ),
    "first-words-added": _slots(
        "if not slot.filled:\n            self._count(Event.stored, job)", "if False:"
    ),
    "skip-forgets-words": _slots("self._count(Event.skips, job)", "slot.filled = False"),
    "result-before-the-last": _slots(
        "if slot.seen != job.full:\n            return []", "if not slot.seen:\n            return []"
    ),
    "no-answer-to-a-repeat": _slots(
        "return [(worker.address, self._result(job, header.slot, header.reply, header.flags & _ECN))]",
        "return []",
    ),
    "repeat-answered-to-be": _slots(
        "if slot.seen != job.full:\n                return self._drop(DropReason.duplicate, job)", "pass"
    ),
    "result-for-one": _slots(
        "return [(each.address, result) for each in job.workers]", "return [(worker.address, result)]"
    ),
    "token-not-looked-at": _slots("if worker.token != header.token:", "if False:"),
    "jump-obeyed": _slots(
        "if header.seq == (slot.seq + job.entry.slots) % 2**32:",
        "if 0 < (header.seq - slot.seq) % 2**32 < 2**31:",
    ),
    "no-init": lambda: Programs(inits=False),
    "window-of-P": _window("self.span = slots // 2", "self.span = slots"),
    "window-of-P/2+1": _window("self.span = slots // 2", "self.span = slots // 2 + 1"),
    "window-passes-a-gap": _window(
        "while self.base < self.next and self._entries[self.base].done:",
        "while self.base < self.next and any(e.done for e in self._entries.values()):",
    ),
}  # fmt: skip
_TREE_PROGRAMS: Final[dict[str, Callable[[], Programs]]] = {
    "leaf-answers-for-the-root": _slots(
        "if job.entry.parent is not None:\n                "
        "return [self._contribution(job, job.entry.parent, header, worker.bit + 1)]",
        "pass",
    ),
    "leaf-sends-no-repeat-up": _slots(
        "return [self._contribution(job, job.entry.parent, header, worker.bit + 1)]", "return []"
    ),
    "leaf-tells-one-worker": _slots(
        "receivers = [worker for worker in job.workers if header.reply in (0, worker.bit + 1)]",
        "receivers = [worker for worker in job.workers if header.reply in (0, worker.bit + 1)][:1]",
    ),
    "root-drops-reply": _slots(
        "return [(worker.address, self._result(job, header.slot, header.reply, header.flags & _ECN))]",
        "return [(worker.address, self._result(job, header.slot))]",
    ),
    "leaf-takes-its-sum-for-the-result": _slots(
        "if job.entry.parent is not None:\n            "
        "return [self._contribution(job, job.entry.parent, header, reader, directed=reader != 0)]",
        "pass",
    ),
    "window-of-P": _PROGRAMS["window-of-P"],
}  # fmt: skip


def _one_switch(make: Callable[[], Programs]) -> OneSwitch:
    return OneSwitch(2, 4, 12, make())


def _tree(make: Callable[[], Programs]) -> Tree:
    return Tree((2, 1), 2, 6, make())


MISTAKES: Final[dict[str, Callable[[], System[Any]]]] = {
    **{name: partial(_one_switch, make) for name, make in _PROGRAMS.items()},
    **{f"tree-{name}": partial(_tree, make) for name, make in _TREE_PROGRAMS.items()},
}
