"""Random schedules of whole jobs in virtual time: the right ones pass, and mistakes are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.layers.inet import UDP
from scapy.utils import rdpcap

from tests.native.simulation.__main__ import counts_of, run
from tests.native.simulation.build import build
from tests.native.simulation.mistakes import MISTAKES, Mistake
from tests.seeds import seed_of_this_run


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


@pytest.mark.long  # a compilation and up to thousands of schedules each
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(mistake: Mistake, folder: Path) -> None:
    right, printed = run(build(folder, mistake), seed_of_this_run(), 20_000, *mistake.options)
    assert not right, printed
    print(printed)
