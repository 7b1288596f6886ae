from __future__ import annotations

import pytest

from switchagg.p4model.runtime.stf import (
    ActionText,
    Add,
    Check,
    Command,
    Expect,
    Packet,
    SetDefault,
    StfError,
    mismatch,
    parse_stf,
)


def test_statements() -> None:
    text = """
    # a comment
    add test2 100 data.f2:0x04040404 a.c4_6(val4:0x4040, val5:5 port:2);   # and one after
    add t data.$valid:0b1 data$2.f:0x**01 x/y.z:10/8 set()
    ADD "a table" k: 1 go(1, 0x2) = first
    setdefault ethertype_match l2_packet()
    packet 0 0102 0304 aB
    expect 1 *102 03$
    expect 2
    no_packet
    check_counter c.d(10) packets >= 2
    check_counter c($first) bytes = 0x10
    check_register r(3) lo = 7
    mc_node_create 400 6 7
    wait
    remove all
    """.replace("x/y.z", "z")
    statements = parse_stf(text, "f.stf")
    assert statements == [
        Add(
            3,
            "add",
            "test2",
            100,
            (("data.f2", "0x04040404"),),
            ActionText("a.c4_6", (("val4", "0x4040"), ("val5", "5"), ("port", "2"))),
            None,
        ),
        Add(
            4,
            "add",
            "t",
            None,
            (("data.$valid", "0b1"), ("data$2.f", "0x**01"), ("z", "10/8")),
            ActionText("set", ()),
            None,
        ),
        # Quoted names with blanks are not split.
        *statements[2:3],
        SetDefault(6, "setdefault", "ethertype_match", ActionText("l2_packet", ())),
        Packet(7, "packet", 0, bytes.fromhex("01020304ab")),
        Expect(8, "expect", 1, "*10203$"),
        Expect(9, "expect", 2, None),
        Expect(10, "no_packet", None, None),
        Check(11, "check_counter", "c.d", "10", "packets", ">=", 2),
        Check(12, "check_counter", "c", "$first", "bytes", "==", 16),
        Check(13, "check_register", "r", "3", "lo", "==", 7),
        Command(14, "mc_node_create", ("400", "6", "7")),
        Command(15, "wait", ()),
        Command(16, "remove", ("all",)),
    ]
    named = statements[2]
    assert isinstance(named, Add)
    assert (named.table, named.keys, named.name) == ("a table", (("k", "1"),), "first")
    assert named.action == ActionText("go", (("0", "1"), ("1", "0x2")))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("packet 0 123", "f.stf:1: this is no packet statement: packet 0 123"),
        ("packet x 12", "no packet statement"),
        ("packet 512 12", "f.stf:1: port is 512; accepted: 0..511"),
        ("expect -1 12", "f.stf:1: port is -1; accepted"),
        ("expect 1 xy", "no expect statement"),
        ("add t k:1", "no add statement"),
        ("add t k set()", "no add statement"),
        ("frobnicate 1", "f.stf:1: frobnicate is not a statement"),
        ("mc_node_associate 1", "no mc_node_associate statement"),
        ("check_counter c", "no check_counter statement"),
    ],
)
def test_lines_that_are_none(line: str, message: str) -> None:
    with pytest.raises(StfError, match=message):
        parse_stf(line, "f.stf")


@pytest.mark.parametrize(
    ("expected", "received", "same"),
    [
        ("0102", "0102", True),
        ("0102", "010203", True),
        ("0102$", "010203", False),
        ("0102$", "0102", True),
        ("010203", "0102", False),
        ("0*0*", "0f0e", True),
        ("0*0*", "1f0e", False),
        ("AB", "ab", True),
    ],
)
def test_comparison(expected: str, received: str, same: bool) -> None:
    assert (mismatch(expected, bytes.fromhex(received)) is None) is same
