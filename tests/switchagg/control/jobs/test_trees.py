"""Who goes where in a tree of switches, and that ranges are taken on all of its switches or on none."""

from __future__ import annotations

import ipaddress
import itertools
import random

import pytest

from switchagg.control.jobs.placement import Room, Shape, Tree
from switchagg.control.jobs.trees import Trees, seat
from switchagg.errors import AdmissionError
from switchagg.rules.switch import Capacity
from switchagg.rules.wiring import Attachment
from tests.seeds import seed_of_this_run


def room(
    name: str,
    parent: str | None = None,
    hosts: str | None = None,
    slots: int = 64,
    words: int = 364,
    **more: int,
) -> Room:
    networks = None if hosts is None else tuple(map(ipaddress.IPv4Network, filter(None, hosts.split(","))))
    made = Room(
        name, Capacity(slots, words, 1 << 24, **more), slots=8, attachment=Attachment(parent, networks)
    )
    made.up = True
    return made


def racks(count: int = 2, **more: int) -> Trees:
    """A root, and leaves a, b, ... whose workers are in 10.0.0.0/24, 10.0.1.0/24, ..."""
    leaves = [room("abcdefgh"[n], "root", f"10.0.{n}.0/24", **more) for n in range(count)]
    return Trees([room("root", hosts="", **more), *leaves])


def options(trees: Trees, *addresses: str, within: str | None = None) -> dict[int, frozenset[str]]:
    return {rank: trees.options(rank, address, None, within) for rank, address in enumerate(addresses)}


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
        seats = seat(ways, limits)
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
    assert {name: len(ranks) for name, ranks in (seat(ways, dict.fromkeys("abcd", 32)) or {}).items()} == (
        dict.fromkeys("abcd", 16)
    )
    assert seat({0: frozenset("ab"), 1: frozenset("ab")}, {"a": 1, "b": 2}, root="a") == {"b": (0, 1)}


def test_members_of_one_rack_stay_on_its_leaf() -> None:
    trees = racks()
    (way,) = trees.ways(None, None, None, options(trees, "10.0.1.5", "10.0.1.6"))
    assert (way.root, way.switches, way.count, way.options) == ("b", ("b",), 1, None)
    tree = trees.settle([way])
    assert tree is not None
    assert (tree.switches, tree.seats) == (("b",), ())


def test_members_of_several_racks_are_on_a_tree_of_one_shape() -> None:
    trees = Trees(
        [
            room("root", hosts="10.0.9.9", words=1000),
            room("a", "root", "10.0.0.0/24"),
            room("b", "root", "10.0.1.0/24", words=64, exact_words=64),
        ]
    )
    ways = trees.ways(None, None, None, options(trees, "10.0.1.5", "10.0.0.7", "10.0.9.9", "10.0.0.8"))
    tree = trees.settle(ways)
    assert tree is not None
    assert tree.switches == ("root", "a", "b")
    assert dict(tree.seats) == {"root": (2,), "a": (1, 3), "b": (0,)}
    assert {site.shape for site in tree.sites} == {Shape(8, 64)}
    assert [each.memory_used for each in trees.rooms.values()] == [Shape(8, 64).memory] * 3
    trees.give_back(tree)
    assert all(each.allocator.free_slots == 64 for each in trees.rooms.values())


def test_all_or_nothing() -> None:
    trees = racks()
    ways = trees.ways(None, None, None, options(trees, "10.0.0.1", "10.0.1.1"))
    for name, problem in (
        ("root", "switch 'root' is down: the cable"),
        ("a", "switch 'a' is being drained"),
        ("b", "8 slots asked for; 0 of the 64 of switch 'b' are free"),
    ):
        there = trees.rooms[name]
        taken = None
        match name:
            case "root":
                there.up, there.why = False, "the cable"
            case "a":
                there.draining = True
            case _:
                taken = there.take(Shape(64, 352))
        assert trees.settle(ways) is None
        assert trees.lacking(ways).startswith(problem)
        assert trees.settle(ways, without=[name]) is None
        there.up, there.draining = True, False
        if taken is not None:
            there.give(taken)
        assert all(each.memory_used == 0 for each in trees.rooms.values())
    assert trees.settle(ways) is not None


def test_ranges_that_a_job_has_are_there_for_it() -> None:
    trees = racks(3)
    first = trees.settle(trees.ways(None, None, None, options(trees, "10.0.0.1", "10.0.1.1", "10.0.2.1")))
    assert first is not None
    for each in trees.rooms.values():  # nothing else is free
        each.take(Shape(32, 352))
        each.take(Shape(16, 352))
        each.take(Shape(8, 352))
    ways = trees.ways(None, None, None, options(trees, "10.0.0.1", "10.0.1.1"))
    assert trees.settle(ways) is None
    kept = trees.settle(ways, held=first)
    assert kept == Tree(first.root, first.leaves[:2], (("a", (0,)), ("b", (1,))))
    trees.give_back(first, kept)
    assert [each.allocator.free_slots for each in trees.rooms.values()] == [0, 0, 0, 8]
    again = trees.resettle(ways, kept)
    assert again == kept
    assert trees.resettle(ways, again, without=["b"]) is None
    trees.rooms["b"].draining = True
    assert trees.resettle(ways, again) == again
    trees.rooms["b"].up = False
    assert trees.resettle(ways, again) is None


def test_leaves_that_take_anybody_share_who_comes() -> None:
    trees = Trees([room("root", hosts=""), *(room(name, "root") for name in "abcd")])
    ways = trees.ways(None, None, None, options(trees, *["10.0.0.1"] * 64))
    tree = trees.settle(ways)
    assert tree is not None
    assert {name: len(ranks) for name, ranks in tree.seats} == dict.fromkeys("abcd", 16)
    trees.rooms["c"].up = False
    tree = trees.settle(ways)
    assert tree is not None
    assert sorted(len(ranks) for _, ranks in tree.seats) == [21, 21, 22]
    assert [way.root for way in trees.ways(None, None, None, options(trees, *["10.0.0.1"] * 32))] == list(
        "abcd"
    )


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
    trees = Trees([*racks().rooms.values(), room("alone", hosts="10.0.5.0/24")])
    with pytest.raises(AdmissionError, match=message) as error:
        trees.ways(None, None, None, options(trees, *addresses))
    assert error.value.code == code


def test_racks_without_a_parent() -> None:
    trees = Trees([room("a", hosts="10.0.0.0/24"), room("b", hosts="10.0.1.0/24")])
    with pytest.raises(
        AdmissionError, match="rank 0 attaches to 'a'; rank 1 attaches to 'b'; and no switch is"
    ):
        trees.ways(None, None, None, options(trees, "10.0.0.1", "10.0.1.1"))


def test_programs_that_have_no_size_in_common() -> None:
    trees = Trees(
        [
            room("root", hosts="", words=64, exact_words=64),
            room("a", "root", "10.0.0.0/24", words=32, exact_words=32),
            room("b", "root", "10.0.1.0/24"),
        ]
    )
    with pytest.raises(AdmissionError, match="words is 64; accepted: 32, which the program of switch 'a'"):
        trees.ways(None, None, None, options(trees, "10.0.0.1", "10.0.1.1"))


def test_more_than_a_root_has_bits_for() -> None:
    leaves = [room(f"leaf{n}", "root", f"10.0.{n}.0/24") for n in range(31)]
    trees = Trees([room("root", hosts="10.1.0.0/16"), *leaves])
    below = [f"10.0.{n}.1" for n in range(31)]
    assert trees.ways(None, None, None, options(trees, *below, "10.1.0.1"))
    with pytest.raises(AdmissionError, match="33 workers; switch 'root' and those of its leaves"):
        trees.ways(None, None, None, options(trees, *below, "10.1.0.1", "10.1.0.2"))


def test_how_many_there_can_be_at_all() -> None:
    assert {way.root for way in racks(2).outlook(None, None, None, 32)} == {"root", "a", "b"}
    assert [(way.root, way.count) for way in racks(2).outlook(None, None, None, 64)] == [("root", 3)]
    with pytest.raises(AdmissionError, match=r"world_size is 65; accepted: 1..64 .*takes 32 in a job"):
        racks(2).outlook(None, None, None, 65)
    with pytest.raises(AdmissionError, match=r"world_size is 33; accepted: 1..32"):
        racks(2).outlook("a", None, None, 33)
    with pytest.raises(AdmissionError, match=r"world_size is 33; accepted: 1..32"):
        Trees([room("x")]).outlook(None, None, None, 33)
