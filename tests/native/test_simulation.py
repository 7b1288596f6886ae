"""Random schedules of whole jobs, and of whole systems, in virtual time; mistakes are found.

Both are in one file, since they are made of the same objects.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.utils import rdpcap

from switchagg.errors import AdmissionError
from tests.native import building
from tests.native.building import ROOT
from tests.native.simulation.__main__ import counts_of, run
from tests.native.simulation.build import NATIVE, build
from tests.native.simulation.mistakes import MISTAKES, Mistake
from tests.seeds import seed_of_this_run
from tests.simulation.__main__ import find, run_seeds
from tests.simulation.cells import STATES
from tests.simulation.mistakes import ENDLESS
from tests.simulation.mistakes import MISTAKES as SYSTEM_MISTAKES
from tests.simulation.mistakes import Mistake as SystemMistake
from tests.simulation.schedule import KINDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulation")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return build(folder)


def test_random_schedules_end_with_the_right_sums(program: Path) -> None:
    right, printed = run(program, seed_of_this_run(), 500)
    assert right, printed
    counts, cells = counts_of(printed)
    assert counts["schedules"] == 500
    assert counts["packets"] > 100_000
    assert min(counts["trees"], counts["crashes"]) > 10
    assert sum(count > 0 for count in cells.values()) > 100, cells


def test_a_seed_gives_the_same_packets_again(program: Path) -> None:
    seed = seed_of_this_run()
    first, again = (run(program, seed, 20)[1].splitlines() for _ in range(2))
    hashes = [line for line in (*first, *again) if line.startswith("hash ")]
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]
    other = run(program, seed + 20, 20)[1]
    assert hashes[0] not in other.splitlines()


def test_a_schedule_that_fails_is_made_smaller_and_told(program: Path, tmp_path: Path) -> None:
    """Without INIT the first packet of a slot is stale."""
    right, printed = run(program, seed_of_this_run(), 1, "--without-init", "--explain", str(tmp_path))
    assert not right
    assert "ended with status 3" in printed
    assert "\nfaults 0 of " in printed, "it fails without any fault"
    timeline = (tmp_path / "timeline.txt").read_text().splitlines()
    assert timeline[0].startswith("seed ")
    assert "collective 0 has status 3" in "\n".join(timeline)
    packets = rdpcap(str(tmp_path / "packets.pcap"))
    assert len(packets) == sum(" -> " in line for line in timeline)
    assert {packets[0][UDP].sport, packets[0][UDP].dport} == {1000, 48879}


def test_mistakes_fit_the_source_as_it_is() -> None:
    for mistake in MISTAKES:
        if mistake.file:
            mistake.put_into((NATIVE / mistake.file).read_text())
    for each in (*SYSTEM_MISTAKES, *ENDLESS):
        spec = importlib.util.find_spec(each.module)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).read_text().count(each.right) == 1, each.name


@pytest.mark.long  # a compilation and up to thousands of schedules each
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(mistake: Mistake, folder: Path) -> None:
    right, printed = run(build(folder, mistake), seed_of_this_run(), 20_000, *mistake.options)
    assert not right, printed
    print(printed)


# ------------------------------------------------------------------ whole systems


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    pytest.importorskip("greenlet", reason="threads of the simulation are greenlets")
    return build(folder, system=True)


def test_whole_systems_end_right(library: Path) -> None:
    found = run_seeds(library, 9000, 60)  # `make simulate-system` draws seeds
    assert "failed" not in found, f"python -m tests.simulation --explain {found.get('failed')}: {found}"
    assert found["schedules"] == 60
    assert found["collectives"] > 200
    assert found["packets"] > 20_000
    met = {(kind, state) for kind, state, _ in found["cells"]}
    assert len({kind for kind, _ in met}) >= len(KINDS) - 3
    assert {state for _, state in met} <= set(STATES)


def test_a_seed_gives_the_same_packets_wherever_it_runs(library: Path) -> None:
    seed = seed_of_this_run()
    series = run_seeds(library, seed, 5)["hash"]
    assert len(set(series)) == 5
    assert series[3:] == run_seeds(library, seed + 3, 2)["hash"]


def test_slots_that_are_not_freed_are_found_and_told(library: Path, tmp_path: Path) -> None:
    """Every job leaks then, so this takes one seed; the other mistakes take more."""
    found = run_seeds(library, 1, 1, "slots-not-freed")
    assert "slots are leaked" in found["failure"]
    words = [sys.executable, "-m", "tests.simulation", "--explain", "1", "--mistake", "slots-not-freed"]
    told = subprocess.run(
        [*words, "--child", str(library), "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert told.returncode == 1, told.stderr
    assert "smaller: slots are leaked" in told.stdout
    timeline = (tmp_path / "timeline.txt").read_text()
    assert "rank 0 has ended after 1: in order" in timeline
    assert "WRONG: slots are leaked" in timeline
    assert len(rdpcap(str(tmp_path / "packets.pcap"))) > 1


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(140000382, id="less than a nanosecond was left of a wait, which was never over"),
        pytest.param(239982851696, id="a rank is lost, and then the only switch"),
        pytest.param(240000686, id="a leaf and the controller restart, and find each other first"),
        pytest.param(240010392, id="a rank dies before the job has begun, and a switch is drained"),
        pytest.param(240002929, id="the controller dies twice while a job leaves a switch that restarted"),
        pytest.param(240007154, id="the same, while the store fails"),
        pytest.param(800000001808, id="both switches of a job in stripes and the controller restart"),
        pytest.param(800000009154, id="a job fails when only a rank that comes back is there"),
        pytest.param(810000001381, id="a stripe is forgotten while the other one opens again"),
        pytest.param(240400255, id="a rank leaves while another one that is back is let in"),
        pytest.param(730000002854, id="a switch dies before it takes the generation after a loss"),
    ],
)
def test_a_schedule_that_was_wrong_is_right(library: Path, seed: int) -> None:
    assert "failed" not in run_seeds(library, seed, 1)


def test_a_rank_that_has_left_and_not_sent_again_what_another_lacks_is_not_waited_for(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.crafted", str(library)],
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    for counts in map(json.loads, done.stdout.splitlines()):
        assert counts.keys() <= {"needed", "not needed"}
        assert counts["needed"]


def test_a_join_is_owed_while_the_processes_of_all_ranks_are_there() -> None:
    pytest.importorskip("greenlet", reason="threads of the simulation are greenlets")
    from tests.simulation.system import System, Worker

    def worker(place: int, *, dead: bool = False, joined: bool = False) -> Worker:
        process: Any = SimpleNamespace(dead=dead)
        return Worker(place, 0, process, joined=joined)

    system = object.__new__(System)
    told = worker(0)
    told.error = AdmissionError("ranks 1, 2 of job 'job' did not join within 30 seconds (1 of 3 were there)")
    for first, second, owed in (
        (worker(1, dead=True), worker(2, dead=True), False),
        (worker(1, dead=True), worker(2), True),
        (worker(1, dead=True), worker(2, dead=True, joined=True), True),
    ):
        system.workers = [told, first, second]
        assert system._waits_for_the_dead(told) is not owed
    told.error = AdmissionError("there is no room")
    assert not system._waits_for_the_dead(told)


def test_schedules_without_end_are_reported_with_their_seeds(library: Path) -> None:
    """A thread waits a nanosecond again and again, or does not wait at all."""
    found = run_seeds(library, 9000, 1, "a-tick-of-1e-9-s")
    assert (found["failed"], found["after"]) == (9000, 1)
    assert "switchagg-ticker goes on and on" in found["failure"]
    found = run_seeds(library, 9001, 1, "a-tick-of-0-s", stuck=4)
    assert found["failed"] == 9001
    # The stacks behind that are read while the thread runs: they may end anywhere, the process with them.
    assert found["failure"].startswith("no end after 4 s of real time: ")


def test_an_error_of_the_simulation_itself_is_told_whole_with_its_seed(tmp_path: Path) -> None:
    pytest.importorskip("greenlet", reason="threads of the simulation are greenlets")
    half = tmp_path / "system.so"
    half.write_bytes(b"\x7fELF")
    found = run_seeds(half, 9000, 50)
    assert (found["failed"], found["after"]) == (9000, 0)
    first, second, *_, last = found["failure"].splitlines()
    assert first == f"OSError({f'{half}: file too short'!r})"
    assert second == "Traceback (most recent call last):"
    assert last.startswith("OSError: ")


def test_a_program_is_never_there_in_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds in one folder, or a run that starts while it is built again."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"""#!{sys.executable}
import sys
from pathlib import Path
there, target = Path({str(tmp_path / "program")!r}), Path(sys.argv[sys.argv.index("-o") + 1])
target.write_text("half")
assert there.read_text() == "whole", there.read_text()
target.write_text("built")
"""
    )
    compiler.chmod(0o755)
    (tmp_path / "program").write_text("whole")
    (tmp_path / "none.h").touch()
    monkeypatch.setenv("CXX", str(compiler))
    program = building.build(tmp_path, "program", [], (), [tmp_path])
    assert program.read_text() == "built"
    assert {each.name for each in tmp_path.iterdir()} == {"compiler", "none.h", "program"}


@pytest.mark.long  # up to thousands of schedules each
@pytest.mark.parametrize("mistake", SYSTEM_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_system_is_found(mistake: SystemMistake, folder: Path) -> None:
    pytest.importorskip("greenlet", reason="threads of the simulation are greenlets")
    after, failure = find(mistake, seed_of_this_run(), 3000, folder)
    assert after, "3,000 schedules"
    print(after, failure)
