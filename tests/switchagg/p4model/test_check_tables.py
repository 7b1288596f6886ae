"""Tables: keys, actions, entries and their priorities."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model import ir
from tests.switchagg.p4model.sources import excerpt, ingress, refused, v1model

TABLE = """
    action set(bit<8> value) {{ meta.x = value; }}
    action copy(in bit<8> from, bit<8> more) {{ meta.x = from + more; }}
    table t {{
        key = {{ {key} }}
        actions = {{ set; copy(hdr.h.a); NoAction; }}
        {rest}
    }}
    apply {{ t.apply(); }}
"""


def table(folder: Path, key: str = "hdr.h.a: exact;", rest: str = "") -> ir.Table:
    return ingress(v1model(folder, ingress=TABLE.format(key=key, rest=rest))).tables[0]


def test_keys_have_the_names_that_p4c_gives(tmp_path: Path) -> None:
    key = """hdr.h.a: exact; hdr.h.isValid(): exact; hdr.h.b[7:0]: ternary;
        meta.x & 0xF0: exact @name("masked"); hdr.stack[1].a & 0x0F: exact;"""
    names = [each.control_name for each in table(tmp_path, key).keys]
    assert names == ["hdr.h.a", "hdr.h.$valid$", "hdr.h.b[7:0]", "masked", "hdr.stack[1].a & 0xf"]


def test_bound_parameters_are_in_every_call(tmp_path: Path) -> None:
    made = table(tmp_path, rest="default_action = copy(3); const entries = { 1: set(2); 2: copy(4); }")
    assert made.default is not None
    assert [each.param.name for each in made.default.args] == ["from", "more"]
    assert isinstance(made.default.args[0].value, ir.FieldAccess)
    values = [each.call.args[-1].value for each in made.entries]
    assert [each.value for each in values if isinstance(each, ir.Literal)] == [2, 4]
    assert all(each.priority is None and each.const for each in made.entries)


@pytest.mark.parametrize(
    ("head", "entries", "expected"),
    [
        ("", "1: set(1); 2: set(2); 3: set(3);", [3, 2, 1]),
        ("largest_priority_wins = false;", "1: set(1); 2: set(2); 3: set(3);", [1, 2, 3]),
        (
            "priority_delta = 10;",
            "priority = 100: 1: set(1); 2: set(2); priority = 7: 3: set(3);",
            [100, 90, 7],
        ),
    ],
)
def test_entries_get_their_priorities(tmp_path: Path, head: str, entries: str, expected: list[int]) -> None:
    made = table(tmp_path, "hdr.h.a: ternary;", f"{head} entries = {{ {entries} }}")
    assert [each.priority for each in made.entries] == expected


def test_properties_are_evaluated(tmp_path: Path) -> None:
    text = "direct_counter(CounterType.packets) hits;" + TABLE.format(
        key="hdr.h.a: exact;", rest="size = 4 * 16; counters = hits; implementation = action_profile(32);"
    )
    made = ingress(v1model(tmp_path, ingress=text)).tables[0]
    assert made.size == 64
    hits, profile = made.properties["counters"], made.properties["implementation"]
    assert isinstance(hits, ir.ExternInstance)
    assert isinstance(profile, ir.ExternInstance)
    assert (hits.control_name, profile.args) == ("MyIngress.hits", {"size": 32})


@pytest.mark.parametrize(
    ("key", "rest", "at", "reason"),
    [
        ("hdr.h.a: closest;", "", "closest", "not a match kind"),
        ("hdr.h: exact;", "", "hdr.h", "a key cannot be of type"),
        ("hdr.h.a + 1: exact;", "", "+", "needs a name"),
        ("hdr.h.a: exact;", "default_action = unknown;", "unknown", "`unknown` is not declared"),
        ("hdr.h.a: exact;", "default_action = meta;", "meta", "is not an action"),
        ("hdr.h.a: exact;", "default_action = set;", "set", "takes 1 argument"),
        ("hdr.h.a: exact;", "default_action = set(1, 2);", "set", "takes 1 argument"),
        (
            "hdr.h.a: exact;",
            "const entries = { 16w1: set(1); }",
            "16w1",
            "`bit<16>` where `bit<8>` is needed",
        ),
        (
            "hdr.h.a: exact;",
            "const entries = { 1: set(16w1); }",
            "16w1",
            "`bit<16>` where `bit<8>` is needed",
        ),
        ("hdr.h.a: exact;", "const entries = { meta.x: set(1); }", "x", "known at compile time"),
        ("hdr.h.a: exact;", "const entries = { (1, 2): set(1); }", "1", "2 value(s) for a key of 1"),
        ("hdr.h.a: exact;", "const entries = { 1 &&& 3: set(1); }", "1", "an exact key takes one value"),
        ("hdr.h.a: lpm;", "const entries = { 1 &&& 5: set(1); }", "1", "not a prefix"),
        ("hdr.h.a: exact;", "entries = { priority = 3: 1: set(1); }", "1", "have no priorities"),
        ("hdr.h.a: exact;", "size = meta.x;", "x", "known at compile time"),
        ("hdr.h.a: exact;", "size = 1; size = 2;", "size", "given twice"),
        ("hdr.h.a: exact;", "actions = { set; }", "actions", "given twice"),
    ],
)
def test_mistakes_in_a_table(tmp_path: Path, key: str, rest: str, at: str, reason: str) -> None:
    error = refused(tmp_path, ingress=TABLE.format(key=key, rest=rest))
    assert reason in error.reason
    assert excerpt(error).startswith(at) or at.startswith(excerpt(error))
