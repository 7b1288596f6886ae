"""Shares of cores: on computers of made-up shapes, and in processes of this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from switchagg.launch.cores import shares
from switchagg.launch.processes import Line, Processes
from tests.cores import needs_two_cores

SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


def computer(folder: Path, packages: int, caches: int, cores: int, threads: int) -> Path:
    """Describes processors as Linux does where the threads of a core are far apart in number.

    Args:
        caches: of a package. cores: of a cache. threads: of a core.
    """
    whole = packages * caches * cores
    for number in range(whole * threads):
        core = number % whole
        cache = core // cores
        siblings = [core + i * whole for i in range(threads)]
        beside = [each for each in range(whole * threads) if each % whole // cores == cache]
        own = folder / f"cpu{number}"
        for name in ("topology", "cache/index3", f"node{cache // caches}"):
            (own / name).mkdir(parents=True)
        (own / "topology/physical_package_id").write_text(f"{cache // caches}\n")
        (own / "topology/thread_siblings_list").write_text(",".join(map(str, siblings)) + "\n")
        (own / "cache/index3/shared_cpu_list").write_text(f"{min(beside)}-{max(beside)}\n")
    return folder


def test_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=1, caches=1, cores=4, threads=2)
    assert shares(range(8), 4, system) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert shares(range(8), 8, system) == [{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}]
    assert shares(range(8), 1, system) == [set(range(8))]
    assert shares({1, 2, 5, 6}, 2, system) == [{1, 5}, {2, 6}]


def test_what_is_left_over_is_for_all(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=1, caches=1, cores=4, threads=2)
    assert shares(range(8), 3, system) == [{0, 4, 3, 7}, {1, 5, 3, 7}, {2, 6, 3, 7}]
    assert shares(range(8), 5, system) == [
        {0, 6, 3, 7},
        {4, 6, 3, 7},
        {1, 6, 3, 7},
        {5, 6, 3, 7},
        {2, 6, 3, 7},
    ]


def test_ranks_have_neighbours_of_a_package_and_of_a_cache(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=2, caches=2, cores=2, threads=2)
    assert shares(range(16), 2, system) == [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]
    assert shares(range(16), 4, system) == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]


def test_more_ranks_than_cores_have_one_in_turn(tmp_path: Path) -> None:
    system = computer(tmp_path, packages=1, caches=2, cores=2, threads=1)
    assert shares({0, 3}, 5, system) == [{0}, {3}, {0}, {3}, {0}]


@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_have_as_many_as_each_other_and_no_core_is_idle(tmp_path: Path, ranks: int) -> None:
    system = computer(tmp_path, packages=1, caches=2, cores=4, threads=1)
    found = shares(range(8), ranks, system)
    assert set().union(*found) == set(range(8))
    assert {len(each) for each in found} == {8 // ranks + 8 % ranks}


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert shares(range(4), 2, tmp_path) == [{0, 1}, {2, 3}]


@needs_two_cores
@pytest.mark.parametrize("allowed", [True, False])
def test_a_child_is_bound_if_the_kernel_allows_it(allowed: bool) -> None:
    own = os.sched_getaffinity(0)
    wanted = {max(own)} if allowed else {1 << 12}  # a core that no computer of today has
    said: list[str] = []
    with Processes() as processes:
        processes.start("a child", [sys.executable, "-c", SHOW], cores=wanted)
        while len(processes.running()) > 0:
            for event in processes.poll(30.0):
                if isinstance(event, Line):
                    said.append(event.text)
        assert processes.children[0].status == 0
    assert said == [str(sorted(wanted if allowed else own))]
