from __future__ import annotations

import random

import pytest

from switchagg.p4entities.matches import (
    Exact,
    KeyField,
    Lpm,
    Match,
    MatchKind,
    Parameter,
    Range,
    TableError,
    Ternary,
    Wildcard,
)
from switchagg.p4entities.tables import Action, ActionProfile, Entry, Table

EXACT, LPM, TERNARY, RANGE, OPTIONAL = MatchKind


def make(*kinds: MatchKind, width: int = 8, size: int | None = None, constant: bool = False) -> Table:
    keys = [KeyField(f"k{place}", width, kind) for place, kind in enumerate(kinds)]
    actions = [
        Action("set", (Parameter("value", 16),), 0),
        Action("note", (Parameter("delta", 8, signed=True), Parameter("flag", 1, boolean=True)), 1),
        Action("miss_only", (), 2, in_entries=False),
        Action("hit_only", (), 3, in_default=False),
    ]
    return Table(
        "pipe.t", keys, actions, ("miss_only", ()), size=size, const_entries=constant, const_default=constant
    )


def found(table: Table, *key: int) -> int | None:
    entry = table.find(key)
    return None if entry is None else entry.args[0]


def test_exact() -> None:
    table = make(EXACT, EXACT)
    table.add([1, 2], "set", [7])
    table.add({"k1": Exact(1), "k0": 2}, "set", {"value": 8})
    assert (found(table, 1, 2), found(table, 2, 1), found(table, 1, 1)) == (7, 8, None)
    table.modify(table.get([1, 2]), "set", [9])
    assert found(table, 1, 2) == 9
    table.remove(table.get([2, 1]))
    assert found(table, 2, 1) is None
    table.clear()
    assert found(table, 1, 2) is None
    assert not table.miss.hit


def test_the_longest_prefix_wins_whatever_the_order() -> None:
    table = make(EXACT, LPM)
    for value, prefix, result in ((0x80, 1, 1), (0xA0, 3, 3), (0, 0, 0), (0xA5, 8, 8)):
        table.add([5, Lpm(value, prefix)], "set", [result])
    assert [found(table, 5, key) for key in (0xA5, 0xA4, 0xC0, 0x7F)] == [8, 3, 1, 0]
    assert found(table, 6, 0xA5) is None
    with pytest.raises(TableError, match="has this entry already"):
        table.add([5, Lpm(0xBF, 3)], "set", [4])


def test_the_larger_priority_wins_and_then_the_first() -> None:
    table = make(TERNARY, OPTIONAL)
    table.add([Ternary(0x10, 0xF0), Wildcard()], "set", [1], 10)
    table.add([Ternary(0x12, 0xFF), Exact(3)], "set", [2], 5)
    table.add([Ternary(0x02, 0x0F), Exact(3)], "set", [3], 20)
    table.add([Ternary(0x00, 0x00), Exact(4)], "set", [4], 10)
    assert [found(table, *key) for key in ((0x12, 3), (0x12, 4), (0x22, 3), (0x22, 9))] == [3, 1, 3, None]
    table.remove(table.get([Ternary(0x02, 0x0F), Exact(3)], 20))
    assert found(table, 0x12, 3) == 1


@pytest.mark.parametrize("kinds", [(TERNARY, OPTIONAL), (EXACT, LPM), (RANGE, TERNARY), (EXACT, EXACT)])
def test_entries_come_and_go_and_the_best_of_those_left_is_found(kinds: tuple[MatchKind, ...]) -> None:
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    table = make(*kinds, width=3)
    here: list[Entry] = []
    removed = 0
    for step in range(600):
        if here and rng.random() < 0.45:
            table.remove(here.pop(rng.randrange(len(here))))
            removed += 1
        else:
            priority = rng.randrange(3) if TERNARY in kinds else 0
            matches = [_random_match(rng, kind) for kind in kinds]
            if table.lookup(matches, priority) is None:
                here.append(table.add(matches, "set", [step], priority))
        key = [rng.randrange(8) for _ in kinds]
        fitting = [entry for entry in here if all(map(_fits, kinds, entry.matches, key))]
        # The largest priority or the longest prefix, and of several the first.
        best = max(fitting, key=lambda entry: (_strength(kinds, entry), -entry.args[0]), default=None)
        assert found(table, *key) == (None if best is None else best.args[0]), step
    assert removed > 100


def _random_match(rng: random.Random, kind: MatchKind) -> Match:
    value = rng.randrange(8)
    if kind is TERNARY:
        mask = rng.randrange(8)
        return Ternary(value & mask, mask)
    if kind is LPM:
        return Lpm(value, rng.randrange(4))
    if kind is RANGE:
        return Range(value, rng.randrange(value, 8))
    return Wildcard() if kind is OPTIONAL and rng.random() < 0.5 else Exact(value)


def _fits(kind: MatchKind, match: tuple[int, int], key: int) -> bool:
    first, second = match
    return first <= key <= second if kind is RANGE else key & second == first & second


def _strength(kinds: tuple[MatchKind, ...], entry: Entry) -> int:
    return entry.matches[kinds.index(LPM)][1].bit_count() if LPM in kinds else entry.priority


def test_what_was_found_is_forgotten_when_the_table_changes() -> None:
    table = make(TERNARY)
    assert found(table, 5) is None
    entry = table.add([Ternary(1, 1)], "set", [1], 1)
    assert found(table, 5) == 1
    table.add([Ternary(5, 7)], "set", [2], 2)
    assert found(table, 5) == 2
    table.modify(entry, "set", [3])
    assert found(table, 3) == 3
    table.remove(table.get([Ternary(5, 7)], 2))
    assert found(table, 5) == 3
    table.clear()
    assert found(table, 5) is None
    # More keys than are kept.
    table = make(TERNARY, width=16)
    table.add([Ternary(0x100, 0xFF00)], "set", [4], 1)
    assert sum(found(table, key) == 4 for key in range(1 << 14)) == 256
    assert sum(found(table, key) == 4 for key in range(1 << 14)) == 256


def test_look_up_against_a_search_of_all_entries() -> None:
    for seed in range(60):
        generator = random.Random(seed)
        kinds = [generator.choice([EXACT, TERNARY, RANGE, OPTIONAL, LPM]) for _ in range(3)]
        table = make(*kinds, width=4)
        entries: list[tuple[int, int, list[Match]]] = []
        for number in range(generator.randrange(25)):
            matches: list[Match] = []
            for kind in kinds:
                value, mask = generator.getrandbits(4), generator.getrandbits(4)
                choices: dict[MatchKind, Match] = {
                    EXACT: Exact(value & 3),
                    TERNARY: Ternary(value, mask),
                    RANGE: Range(min(value, mask), max(value, mask)),
                    OPTIONAL: Exact(value) if mask & 1 else Wildcard(),
                    LPM: Lpm(value, mask % 5),
                }
                matches.append(choices[kind])
            priority = generator.randrange(4)
            try:
                table.add(matches, "set", [number], priority)
            except TableError:
                continue
            entries.append((priority, number, matches))
        by_prefix = kinds.count(LPM) == 1 and kinds.count(EXACT) == 2
        for _ in range(200):
            key = [generator.getrandbits(4) & (3 if kind is EXACT else 15) for kind in kinds]
            hits = [entry for entry in entries if all(map(_suits, entry[2], key))]

            def rank(entry: tuple[int, int, list[Match]], prefix: bool = by_prefix) -> tuple[int, int]:
                longest = next((m.prefix for m in entry[2] if isinstance(m, Lpm)), 0)
                return (-longest if prefix else -entry[0], entry[1])

            expected = min(hits, key=rank)[1] if hits else None
            assert found(table, *key) == expected, (seed, kinds, key)


def _suits(match: Match, value: int) -> bool:
    match match:
        case Exact(wanted):
            return value == wanted
        case Ternary(wanted, mask):
            return value & mask == wanted & mask
        case Lpm(wanted, prefix):
            return value >> (4 - prefix) == wanted >> (4 - prefix)
        case Range(low, high):
            return low <= value <= high
        case Wildcard():
            return True


@pytest.mark.parametrize(
    ("kinds", "matches", "message"),
    [
        ([EXACT], [256], "k0: 0x100 does not fit 8 bits"),
        ([EXACT], [-1], "does not fit"),
        ([EXACT], [Ternary(1, 3)], "matched exact; ternary values do not suit it"),
        ([EXACT], [Wildcard()], "matched exact"),
        ([LPM], [Lpm(0, 9)], "prefix length 9 is not within 0..8"),
        ([TERNARY], [Ternary(0, 0x1FF)], "0x1ff does not fit 8 bits"),
        ([TERNARY], [Range(0, 1)], "matched ternary; range"),
        ([RANGE], [Range(5, 4)], "the range 5..4 is empty"),
        ([RANGE], [Range(0, 256)], "0x100 does not fit"),
        ([EXACT, EXACT], [1], "has 2 key fields \\(k0, k1\\), not 1"),
        ([EXACT], {"k0": 1, "other": 2}, "has no key field other; it has k0"),
        ([EXACT, TERNARY], {"k1": Ternary(1, 1)}, "exact key field k0 is missing"),
    ],
)
def test_keys_that_do_not_fit(kinds: list[MatchKind], matches: list[Match], message: str) -> None:
    with pytest.raises(TableError, match=message):
        make(*kinds).add(matches, "set", [1])


@pytest.mark.parametrize(
    ("action", "arguments", "message"),
    [
        ("sett", [1], "has no action sett; it has hit_only, miss_only, note, set"),
        ("set", [], "takes 1 arguments \\(value\\), not 0"),
        ("set", [1 << 16], "value: 0x10000 does not fit 16 bits"),
        ("set", {"val": 1}, "no parameter val; it takes value"),
        ("set", {}, "parameter value is missing"),
        ("note", [-129, 0], "delta"),
        ("note", [1, 2], "flag: 0x2 does not fit 1 bits"),
        ("miss_only", [], "is for the default only"),
    ],
)
def test_actions_that_do_not_fit(action: str, arguments: list[int], message: str) -> None:
    with pytest.raises(TableError, match=message):
        make(EXACT).add([1], action, arguments)


def test_arguments_are_values_of_their_types() -> None:
    table = make(EXACT)
    assert table.add([1], "note", [0xFF, 1]).args == (-1, True)
    assert table.add([2], "note", [-128, 0]).args == (-128, False)


def test_a_full_table_and_a_constant_one() -> None:
    table = make(EXACT, size=2)
    table.add([1], "set", [1])
    table.add([2], "set", [1])
    with pytest.raises(TableError, match=r"pipe\.t is full: it holds 2 entries"):
        table.add([3], "set", [1])
    with pytest.raises(TableError, match="has this entry already: k0=0x1"):
        table.add([1], "set", [2])
    constant = make(EXACT, constant=True)
    for refused in (
        lambda: constant.add([1], "set", [1]),
        constant.clear,
        lambda: constant.set_default("set", [1]),
    ):
        with pytest.raises(TableError, match="constant"):
            refused()


def test_the_default() -> None:
    table = make(EXACT)
    table.set_default("set", [5])
    assert (table.miss.args, table.miss.hit, table.miss.index) == ((5,), False, 0)
    table.reset_default()
    assert table.miss.action.name == "miss_only"
    with pytest.raises(TableError, match="not for the default"):
        table.set_default("hit_only")
    with pytest.raises(TableError, match="does not hold that entry"):
        table.remove(Entry(table.actions["set"], (1,), matches=((1, 255),)))


def test_members_and_groups() -> None:
    profile = ActionProfile("prof", 2, selector=True, select=lambda _, value: value)
    table = Table(
        "t", [KeyField("k", 8, EXACT)], make(EXACT).actions.values(), ("miss_only", ()), profile=profile
    )
    profile.actions.update(table.actions)
    profile.add_member(1, "set", [10])
    profile.add_member(2, "set", [20])
    with pytest.raises(TableError, match="full"):
        profile.add_member(3, "set", [30])
    profile.set_group(7, [1, 2])
    entry = table.add_choice([1], group=7)
    assert entry.choice is not None
    picked = [entry.choice.pick(number) for number in range(3)]
    assert [each.args[0] for each in picked if each is not None] == [10, 20, 10]
    profile.modify_member(2, "set", [21])
    profile.set_group(7, [2])
    member = entry.choice.pick(5)
    assert member is not None
    assert member.args == (21,)
    with pytest.raises(TableError, match="takes members and groups"):
        table.add([2], "set", [1])
    with pytest.raises(TableError, match="has no member 9"):
        table.add_choice([2], member=9)
    with pytest.raises(TableError, match="is in group 7"):
        profile.remove_member(2)
    profile.set_group(7, [])
    assert entry.choice.pick(0) is None
