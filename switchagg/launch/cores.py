"""The cores that each of a computer's ranks runs on.

Ranks that wait for each other poll, so no core is idle, and the kernel then evens threads out only after tens of
milliseconds: where three of four ranks wake on one core of two, they take turns there for a whole call. MPI's
launchers bind ranks to cores too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SYSTEM: Final = Path("/sys/devices/system/cpu")


def share(cores: Iterable[int], index: int, ranks: int, system: Path = _SYSTEM) -> set[int]:
    """Returns the cores of one of the ranks of a computer.

    With as many cores as ranks or more: as many for each as there are, up to one, neighbours by package, last
    cache and threads of a core. With fewer: one, in turn.

    Args:
        cores: by number, which the ranks share.
        index: of the rank among those of its computer, from 0 on.
    """
    near = sorted(cores, key=lambda core: (_place(system / f"cpu{core}"), core))
    if len(near) < ranks:
        return {near[index % len(near)]}
    return set(near[index * len(near) // ranks : (index + 1) * len(near) // ranks])


def bind(index: int, ranks: int, cores: Iterable[int]) -> None:
    """Binds this process to its share of `cores`, unless a launcher has bound it to others already."""
    if os.sched_getaffinity(0) == set(cores):
        os.sched_setaffinity(0, share(cores, index, ranks))


def _place(folder: Path) -> tuple[int, int, int]:
    """Package, and the first of the cores that share the last cache, and that share this core."""

    def first(name: str) -> int:
        try:
            return int((folder / name).read_text().replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            return 0

    cache = first("cache/index3/shared_cpu_list")
    return first("topology/physical_package_id"), cache, first("topology/thread_siblings_list")
