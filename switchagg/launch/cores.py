"""The cores that each of a computer's ranks runs on.

Ranks that wait for each other poll, so no core is idle, and the kernel then evens threads out only after
tens of milliseconds: where three of four ranks wake on one core of two, they take turns there for a whole
call. Cores are meant here as the kernel counts them: threads of a core are several.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

_SYSTEM: Final = Path("/sys/devices/system/cpu")


def shares(cores: Collection[int], ranks: int, system: Path = _SYSTEM) -> list[set[int]]:
    """Returns the cores of each of a computer's ranks, by index.

    Each rank has as many of its own as there are for all: neighbours in the order of package, memory node,
    level-3 cache and core. Threads of a core stay together if there are enough. What is left over, the last,
    is everybody's. With more ranks than cores each has one, in turn.

    Args:
        cores: numbers of those to share, one or more.
        ranks: how many share them.
    """
    near = sorted((*_place(system / f"cpu{core}"), core) for core in cores)
    whole: dict[tuple[int, ...], set[int]] = {}
    for *place, core in near:
        whole.setdefault(tuple(place), set()).add(core)
    parts = list(whole.values()) if len(whole) >= ranks else [{core} for *_, core in near]
    if len(parts) < ranks:
        return [parts[index % len(parts)] for index in range(ranks)]
    each = len(parts) // ranks
    left = set().union(*parts[each * ranks :])
    return [left.union(*parts[index * each : (index + 1) * each]) for index in range(ranks)]


def bind(cores: Collection[int]) -> None:
    """Binds this process, of one thread, to cores; it stays as it is where the kernel does not allow it."""
    with suppress(OSError):
        os.sched_setaffinity(0, cores)


def _place(folder: Path) -> tuple[int, int, int, int]:
    """Package, memory node, and the lowest numbers that share the level-3 cache and the core."""

    def first(name: str) -> int:
        try:
            return int((folder / name).read_text().replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            return -1

    node = max((int(each.name[4:]) for each in folder.glob("node[0-9]*")), default=-1)
    cache, core = first("cache/index3/shared_cpu_list"), first("topology/thread_siblings_list")
    # One that nothing is known of shares nothing.
    return first("topology/physical_package_id"), node, cache, core if core >= 0 else int(folder.name[3:])
