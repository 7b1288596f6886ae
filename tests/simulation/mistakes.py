"""Mistakes in the product, each of which the simulation of whole systems must find."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.native.building import ROOT


@dataclass(frozen=True)
class Mistake:
    """A change of one Python module.

    Attributes:
        name: unique.
        module: of the product.
        right, wrong: a text that is there once, and what it becomes.
    """

    name: str
    module: str
    right: str
    wrong: str


_BOOK: Final = "switchagg.control.jobs.book"
_FAILOVERS: Final = "switchagg.control.jobs.failovers"
_LIFECYCLE: Final = "switchagg.control.jobs.lifecycle"
_AGENT: Final = "switchagg.control.agent"
_MONITOR: Final = "worker_lib.monitor"
_WORK: Final = "worker_lib.work"

MISTAKES: Final = (
    # The kinds of defects that the first version had.
    Mistake(
        "exception-is-a-leave-in-order", _BOOK, "if reason and job.on_loss is OnLoss.shrink:", "if False:"
    ),
    Mistake(
        "refusals-of-the-switch-not-noticed",
        _WORK,
        'elif engine.stats()["refused"] >= refused + (1 if left else _REFUSALS):',
        "elif False:",
    ),
    # Failover.
    Mistake(
        "failover-before-all-have-reported",
        _FAILOVERS,
        "if not set(generation.places) <= failover.lowest.keys():",
        "if not failover.lowest:",
    ),
    Mistake(
        "failover-keeps-the-old-slots",
        _FAILOVERS,
        "        self._pool.release(old, failover.target)\n",
        "",
    ),
    Mistake(
        "replay-from-the-highest",
        _FAILOVERS,
        "map(min, zip(*failover.lowest.values(), strict=True))",
        "map(max, zip(*failover.lowest.values(), strict=True))",
    ),
    Mistake("jobs-stay-at-dead-switches", _BOOK, "if gone is not None and job.change is None:", "if False:"),
    # The controller.
    Mistake("slots-not-freed", _LIFECYCLE, "            self._pool.release(job.placement)\n", ""),
    Mistake(
        "job-left-on-the-switch",
        _AGENT,
        "self._attempt(lambda: self.driver.remove_job(generation.id))",
        "pass",
    ),
    Mistake(
        "no-reconcile-after-a-reconnect",
        _AGENT,
        "            self._put(self._reconcile)",
        "            self._down = None",
    ),
    Mistake(
        "attach-tried-once",
        _MONITOR,
        "            pause = min(2 * pause, _LAST_PAUSE)\n",
        "            return None\n",
    ),
)
ENDLESS: Final = tuple(
    Mistake(
        f"a-tick-of-{seconds}-s",
        "switchagg.control.controller_core",
        "self._stop.wait(TICK)",
        f"self._stop.wait({seconds})",
    )
    for seconds in ("0", "1e-9")
)
"""A thread never gives way, or waits for too little to get anywhere."""


class _Edited(SourceLoader):
    """Loads a module from an edited source."""

    def __init__(self, name: str, path: str, mistake: Mistake) -> None:
        self._name, self._path, self._mistake = name, path, mistake

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if not path.endswith(".py"):
            raise OSError  # what was compiled has no mistake
        mistake, source = self._mistake, Path(path).read_text()
        if source.count(mistake.right) != 1:
            raise ValueError(
                f"{mistake.name}: {mistake.right!r} is {source.count(mistake.right)} times in {path}"
            )
        return source.replace(mistake.right, mistake.wrong).encode()


class _Finder(MetaPathFinder):
    def __init__(self, mistake: Mistake) -> None:
        self._mistake = mistake

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._mistake.module:
            return None
        file = str(ROOT / f"{name.replace('.', '/')}.py")
        return importlib.util.spec_from_loader(name, _Edited(name, file, self._mistake))


def put_in(name: str) -> None:
    """Has a mistake's module be imported with it. Does nothing for no name.

    Raises:
        ValueError: there is no such mistake, or its module is imported already.
    """
    if not name:
        return
    for mistake in (*MISTAKES, *ENDLESS):
        if mistake.name == name:
            if mistake.module in sys.modules:
                raise ValueError(f"{mistake.module} is imported already")
            sys.meta_path.insert(0, _Finder(mistake))
            return
    raise ValueError(f"there is no mistake {name!r}")
