"""Shares of cores: on computers of made-up shapes, and in processes of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.launch.cores import share

BIND = "import os; from switchagg.launch.cores import bind; "


def computer(folder: Path, packages: int, caches: int, cores: int, threads: int) -> Path:
    """Describes each processor as Linux does where threads of a core are far apart in number; the last caches are of a package."""
    total = packages * caches * cores * threads
    for number in range(total):
        core = number % (total // threads)
        cache = core // cores
        siblings = [core + i * (total // threads) for i in range(threads)]
        in_cache = [each for each in range(total) if each % (total // threads) // cores == cache]
        own = folder / f"cpu{number}"
        for name in ("topology", "cache/index3"):
            (own / name).mkdir(parents=True)
        (own / "topology/physical_package_id").write_text(f"{cache // caches}\n")
        (own / "topology/thread_siblings_list").write_text(",".join(map(str, siblings)) + "\n")
        (own / "cache/index3/shared_cpu_list").write_text(f"{min(in_cache)}-{max(in_cache)}\n")
    return folder


def shares(system: Path, cores: range, ranks: int) -> list[set[int]]:
    return [share(cores, index, ranks, system) for index in range(ranks)]


def test_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=1, caches=1, cores=4, threads=2)
    assert shares(system, range(8), 4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert shares(system, range(8), 8) == [{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}]
    assert shares(system, range(8), 1) == [set(range(8))]


def test_ranks_have_neighbours_of_a_package_and_of_a_cache(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=2, caches=2, cores=2, threads=2)
    assert shares(system, range(16), 2) == [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]
    assert shares(system, range(16), 4) == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]


@pytest.mark.parametrize("ranks", [1, 3, 5, 7, 16, 33])
def test_every_core_is_used_and_none_by_two_more_than_another(tmp_path: Path, ranks: int) -> None:
    system = computer(tmp_path, packages=1, caches=2, cores=4, threads=1)
    found = shares(system, range(1, 8), ranks)  # core 0 is not ours
    users = [sum(core in each for each in found) for core in range(8)]
    assert all(found) and users[0] == 0 and min(users[1:]) >= 1 and max(users) - min(users[1:]) <= 1


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert shares(tmp_path, range(4), 2) == [{0, 1}, {2, 3}]


def test_a_process_is_bound_unless_it_is_already() -> None:
    cores = sorted(os.sched_getaffinity(0))
    program = BIND + f"bind(1, 2, {cores}); bind(0, 2, {cores}); print(sorted(os.sched_getaffinity(0)))"
    out = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout == f"{sorted(share(cores, 1, 2))}\n"
