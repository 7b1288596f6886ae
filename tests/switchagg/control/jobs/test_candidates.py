"""Candidates on single switches and on pool, and ranges taken on all switches of a tree or on none."""

from __future__ import annotations

import ipaddress
import itertools
import random
from collections.abc import Sequence

import pytest

from switchagg.control.jobs.candidates import CandidateFinder, PlacementCandidate, match
from switchagg.control.jobs.job import Placement
from switchagg.control.jobs.records import JoinRequest
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.control.jobs.switch_resources import JobSize, SwitchResources
from switchagg.errors import AdmissionError
from switchagg.rules.switch import Capacity
from switchagg.rules.wiring import Attachment
from tests.seeds import seed_of_this_run


def switch(
    name: str,
    parent: str | None = None,
    hosts: str | None = None,
    slots: int = 64,
    words: int = 364,
    **more: int,
) -> SwitchResources:
    networks = None if hosts is None else tuple(map(ipaddress.IPv4Network, filter(None, hosts.split(","))))
    made = SwitchResources(
        name, Capacity(slots, words, 1 << 24, **more), slots=8, attachment=Attachment(parent, networks)
    )
    made.up = True
    return made


def racks(count: int = 2, **more: int) -> SwitchPool:
    """A root, and leaves a, b, ... whose workers are in 10.0.0.0/24, 10.0.1.0/24, ..."""
    leaves = [switch("abcdefgh"[n], "root", f"10.0.{n}.0/24", **more) for n in range(count)]
    return SwitchPool([switch("root", hosts="", **more), *leaves])


def find(pool: SwitchPool) -> CandidateFinder:
    return CandidateFinder(pool.switches)


def found(pool: SwitchPool, *addresses: str) -> Sequence[PlacementCandidate]:
    return find(pool).of_members(None, None, None, options(pool, *addresses))


def options(pool: SwitchPool, *addresses: str, within: str | None = None) -> dict[int, frozenset[str]]:
    return {
        rank: find(pool).switches_of(rank, address, None, within) for rank, address in enumerate(addresses)
    }


def test_who_shares_slots_in_memory_has_fewer() -> None:
    def size(workers: int, memory: str, words: int | None = None, slots: int | None = None) -> JobSize:
        made = SwitchResources("s", Capacity(4096, 16_372, 1 << 30), slots=slots)
        made.up, made.memory = True, "here"
        pool = SwitchPool([made])
        ways = options(pool, *["10.0.0.1"] * workers)
        requests = [
            JoinRequest(rank, workers, "10.0.0.1", 1 + rank, memory=memory) for rank in range(workers)
        ]
        (found,) = find(pool).of_members(None, words, None, ways, requests=requests)
        return found.size

    assert [size(n, "here") for n in (2, 15, 16)] == [JobSize(slots, 2032) for slots in (128, 128, 64)]
    assert [size(n, "there") for n in (2, 15, 16)] == [JobSize(slots, 2032) for slots in (256, 256, 128)]
    assert size(2, "") == JobSize(256, 2032)
    assert size(2, "here", words=352) == JobSize(256, 352)
    assert size(2, "here", slots=512) == JobSize(512, 2032)


def _by_hand(ways: dict[int, frozenset[str]], limits: dict[str, int]) -> bool:
    choices = [sorted(names & limits.keys()) for names in ways.values()]
    return any(
        all(chosen.count(name) <= limits[name] for name in limits) for chosen in itertools.product(*choices)
    )


def test_seats_are_found_wherever_there_are_some() -> None:
    draw = random.Random(seed_of_this_run())
    found = 0
    for _ in range(400):
        limits = {name: draw.randint(1, 2) for name in "abcd"[: draw.randint(1, 4)]}
        ways = {
            rank: frozenset(draw.sample("abcd", draw.randint(1, 3))) for rank in range(draw.randint(1, 6))
        }
        seats = match(ways, limits)
        assert (seats is not None) == _by_hand(ways, limits)
        if seats is not None:
            found += 1
            assert sorted(rank for ranks in seats.values() for rank in ranks) == sorted(ways)
            for name, ranks in seats.items():
                assert len(ranks) <= limits[name]
                assert all(name in ways[rank] for rank in ranks)
    assert 50 < found < 400


def test_who_may_choose_goes_where_the_fewest_are_and_not_to_the_root() -> None:
    ways = dict.fromkeys(range(64), frozenset("abcd"))
    assert {name: len(ranks) for name, ranks in (match(ways, dict.fromkeys("abcd", 32)) or {}).items()} == (
        dict.fromkeys("abcd", 16)
    )
    assert match({0: frozenset("ab"), 1: frozenset("ab")}, {"a": 1, "b": 2}, root="a") == {"b": (0, 1)}


def test_members_of_one_rack_stay_on_its_leaf() -> None:
    pool = racks()
    (way,) = found(pool, "10.0.1.5", "10.0.1.6")
    assert (way.root, way.switches, way.count, way.options) == ("b", ("b",), 1, None)
    tree = pool.take([way])
    assert tree is not None
    assert (tree.switches, tree.seats) == (("b",), ())


def test_members_of_several_racks_are_on_a_tree_of_one_shape() -> None:
    pool = SwitchPool(
        [
            switch("root", hosts="10.0.9.9", words=1000),
            switch("a", "root", "10.0.0.0/24"),
            switch("b", "root", "10.0.1.0/24", words=64, exact_words=64),
        ]
    )
    ways = find(pool).of_members(
        None, None, None, options(pool, "10.0.1.5", "10.0.0.7", "10.0.9.9", "10.0.0.8")
    )
    tree = pool.take(ways)
    assert tree is not None
    assert tree.switches == ("root", "a", "b")
    assert dict(tree.seats) == {"root": (2,), "a": (1, 3), "b": (0,)}
    assert {slot_range.size for slot_range in tree.ranges} == {JobSize(8, 64)}
    assert [each.memory_used for each in pool.switches.values()] == [JobSize(8, 64).memory] * 3
    pool.release(tree)
    assert all(each.allocator.free_slots == 64 for each in pool.switches.values())


def test_all_or_nothing() -> None:
    pool = racks()
    ways = found(pool, "10.0.0.1", "10.0.1.1")
    for name, problem in (
        ("root", "switch 'root' is down: the cable"),
        ("a", "switch 'a' is being drained"),
        ("b", "8 slots asked for; 0 of the 64 of switch 'b' are free"),
    ):
        there = pool.switches[name]
        taken = None
        match name:
            case "root":
                there.up, there.why = False, "the cable"
            case "a":
                there.draining = True
            case _:
                taken = there.take(JobSize(64, 352))
        assert pool.take(ways) is None
        assert pool.obstacles(ways).startswith(problem)
        assert pool.take(ways, without=[name]) is None
        there.up, there.draining = True, False
        if taken is not None:
            there.release(taken)
        assert all(each.memory_used == 0 for each in pool.switches.values())
    assert pool.take(ways) is not None


def test_ranges_that_a_job_has_are_there_for_it() -> None:
    pool = racks(3)
    first = pool.take(found(pool, "10.0.0.1", "10.0.1.1", "10.0.2.1"))
    assert first is not None
    for each in pool.switches.values():  # nothing else is free
        each.take(JobSize(32, 352))
        each.take(JobSize(16, 352))
        each.take(JobSize(8, 352))
    ways = found(pool, "10.0.0.1", "10.0.1.1")
    assert pool.take(ways) is None
    kept = pool.take(ways, held=first)
    assert kept == Placement(first.root, first.leaves[:2], (("a", (0,)), ("b", (1,))))
    pool.release(first, kept)
    assert [each.allocator.free_slots for each in pool.switches.values()] == [0, 0, 0, 8]
    again = pool.retake(ways, kept)
    assert again == kept
    assert pool.retake(ways, again, without=["b"]) is None
    pool.switches["b"].draining = True
    assert pool.retake(ways, again) == again
    pool.switches["b"].up = False
    assert pool.retake(ways, again) is None


def test_leaves_that_take_anybody_share_who_comes() -> None:
    pool = SwitchPool([switch("root", hosts=""), *(switch(name, "root") for name in "abcd")])
    ways = found(pool, *["10.0.0.1"] * 64)
    tree = pool.take(ways)
    assert tree is not None
    assert {name: len(ranks) for name, ranks in tree.seats} == dict.fromkeys("abcd", 16)
    pool.switches["c"].up = False
    tree = pool.take(ways)
    assert tree is not None
    assert sorted(len(ranks) for _, ranks in tree.seats) == [21, 21, 22]
    assert [way.root for way in found(pool, *["10.0.0.1"] * 32)] == list("abcd")


@pytest.mark.parametrize(
    ("addresses", "code", "message"),
    [
        (
            ["10.7.0.1"],
            "no_switch",
            r"rank 0 at 10.7.0.1 attaches to no switch; hosts of workers are .*a: 10.0.0",
        ),
        (
            ["10.0.0.1"] * 33 + ["10.0.1.1"],
            "world_size",
            "33 workers attach to switch 'a', which takes 32 in a job",
        ),
        (
            ["10.0.0.1", "10.0.1.1", "10.0.5.1"],
            "no_switch",
            "rank 2 attaches to 'alone', which is not below switch 'root'",
        ),
    ],
)
def test_members_that_cannot_be_together(addresses: list[str], code: str, message: str) -> None:
    pool = SwitchPool([*racks().switches.values(), switch("alone", hosts="10.0.5.0/24")])
    with pytest.raises(AdmissionError, match=message) as error:
        found(pool, *addresses)
    assert error.value.code == code


def test_racks_without_a_parent() -> None:
    pool = SwitchPool([switch("a", hosts="10.0.0.0/24"), switch("b", hosts="10.0.1.0/24")])
    with pytest.raises(
        AdmissionError, match="rank 0 attaches to 'a'; rank 1 attaches to 'b'; and no switch is"
    ):
        found(pool, "10.0.0.1", "10.0.1.1")


def test_programs_that_have_no_size_in_common() -> None:
    pool = SwitchPool(
        [
            switch("root", hosts="", words=64, exact_words=64),
            switch("a", "root", "10.0.0.0/24", words=32, exact_words=32),
            switch("b", "root", "10.0.1.0/24"),
        ]
    )
    with pytest.raises(AdmissionError, match="words is 64; accepted: 32, which the program of switch 'a'"):
        found(pool, "10.0.0.1", "10.0.1.1")


def test_more_than_a_root_has_bits_for() -> None:
    leaves = [switch(f"leaf{n}", "root", f"10.0.{n}.0/24") for n in range(31)]
    pool = SwitchPool([switch("root", hosts="10.1.0.0/16"), *leaves])
    below = [f"10.0.{n}.1" for n in range(31)]
    assert found(pool, *below, "10.1.0.1")
    with pytest.raises(AdmissionError, match="33 workers; switch 'root' and those of its leaves"):
        found(pool, *below, "10.1.0.1", "10.1.0.2")


def test_how_many_there_can_be_at_all() -> None:
    assert {way.root for way in find(racks(2)).of_size(None, None, None, 32)} == {"root", "a", "b"}
    assert [(way.root, way.count) for way in find(racks(2)).of_size(None, None, None, 64)] == [("root", 3)]
    with pytest.raises(AdmissionError, match=r"world_size is 65; accepted: 1..64 .*takes 32 in a job"):
        find(racks(2)).of_size(None, None, None, 65)
    with pytest.raises(AdmissionError, match=r"world_size is 33; accepted: 1..32"):
        find(racks(2)).of_size("a", None, None, 33)
    with pytest.raises(AdmissionError, match=r"world_size is 33; accepted: 1..32"):
        find(SwitchPool([switch("x")])).of_size(None, None, None, 33)


def test_a_program_has_one_k() -> None:
    finder = find(SwitchPool([switch("p4", words=64, exact_words=64, workers=8), switch("native")]))

    def sizes(switch: str | None, words: int | None, workers: int = 2) -> dict[str, JobSize]:
        return {each.root: each.size for each in finder.of_size(switch, words, None, workers)}

    assert sizes("p4", None) == {"p4": JobSize(8, 64)}
    assert sizes(None, 100) == {"native": JobSize(8, 100)}
    assert set(sizes(None, 64)) == {"p4", "native"}
    with pytest.raises(
        AdmissionError, match="words is 32; accepted: 64, which the program of switch 'p4' was"
    ):
        sizes("p4", 32)
    with pytest.raises(
        AdmissionError, match="9 workers; the program of switch 'p4' takes 8 in a job"
    ) as error:
        sizes("p4", None, 9)
    assert error.value.code == "world_size"
    with pytest.raises(AdmissionError, match="switch is 'x'; accepted: p4, native"):
        sizes("x", None)
    with pytest.raises(AdmissionError, match="there are no switches"):
        find(SwitchPool([])).of_size(None, None, None, 2)
