"""Expressions: their types, what converts by itself, what is folded, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model import ir
from switchagg.p4model.types import BitType, IntType
from tests.switchagg.p4model.sources import assigned, excerpt, refused, v1model


@pytest.mark.parametrize(
    ("target", "value", "expected"),
    [
        ("meta.x", "300", 44),
        ("meta.x", "-1", 255),
        ("meta.y", "8w1 ++ 8w2", 0x102),
        ("meta.x", "(bit<8>) 16w0x1234", 0x34),
        ("meta.x", "16w0x1234[11:4]", 0x23),
        ("meta.x", "255 |+| 8w3", 255),
        ("meta.x", "7 / 2 + 7 % 4", 6),
        ("meta.x", "true ? 8w1 : 2", 1),
        ("hdr.h.s", "8s100 + 100", -56),
        ("meta.x", "((bit<8>) ((bit<1>) true)) << 3", 8),
        ("meta.x", "(bit<8>) h_t.minSizeInBits()", 40),
        ("meta.x", "(bit<8>) hdr.stack.size", 3),
    ],
)
def test_constants_are_folded(tmp_path: Path, target: str, value: str, expected: int) -> None:
    literal = assigned(v1model(tmp_path, ingress=f"apply {{ {target} = {value}; }}"))
    assert isinstance(literal, ir.Literal)
    assert literal.value == expected


def test_numbers_take_the_width_of_the_other_operand(tmp_path: Path) -> None:
    value = assigned(v1model(tmp_path, ingress="apply { meta.x = hdr.h.a + 1; }"))
    assert isinstance(value, ir.Binary)
    assert value.right.type == BitType(8)


def test_division_by_a_power_of_two_becomes_a_shift_or_a_mask(tmp_path: Path) -> None:
    divided = assigned(v1model(tmp_path, ingress="apply { meta.x = hdr.h.a / 4; }"))
    rest = assigned(v1model(tmp_path, ingress="apply { meta.x = hdr.h.a % 4; }"))
    assert isinstance(divided, ir.Binary)
    assert isinstance(rest, ir.Binary)
    assert (divided.op, rest.op) == (ir.BinaryOp.SHIFT_RIGHT, ir.BinaryOp.BIT_AND)


def test_members_of_a_serializable_enum_are_numbers_where_one_is_needed(tmp_path: Path) -> None:
    top = "enum bit<8> color { red = 1, green = 2 }"
    value = assigned(v1model(tmp_path, top=top, ingress="apply { meta.x = hdr.h.a + color.green; }"))
    assert isinstance(value, ir.Binary)
    assert isinstance(value.right, ir.Literal)
    assert value.right.value == 2


def test_initializers_fill_a_struct_by_name_and_order(tmp_path: Path) -> None:
    value = assigned(v1model(tmp_path, ingress="apply { meta = {y = 2, flag = true, x = 1}; }"))
    assert isinstance(value, ir.StructLiteral)
    assert [each.value for each in value.elements if isinstance(each, ir.Literal)] == [1, 2, True]
    value = assigned(v1model(tmp_path, ingress="apply { meta = {7, ...}; }"))
    assert isinstance(value, ir.StructLiteral)
    assert [each.value for each in value.elements if isinstance(each, ir.Literal)] == [7, 0, False]


def test_a_generic_function_is_made_once_for_each_type(tmp_path: Path) -> None:
    top = "T pick<T>(in T a, in T b) { return a; }"
    body = "apply { meta.x = pick(hdr.h.a, 1); meta.y = pick(hdr.h.b, 1); meta.x = pick<bit<8>>(2, 3); }"
    program = v1model(tmp_path, top=top, ingress=body)
    control = program.main.args["ig"]
    assert isinstance(control, ir.ControlInstance)
    made = [
        each.value.function
        for each in control.body.body
        if isinstance(each, ir.Assign) and isinstance(each.value, ir.FunctionCall)
    ]
    assert made[0] is made[2]
    assert made[0] is not made[1]
    assert made[1].returns == BitType(16)


def test_compound_assignment_is_an_assignment(tmp_path: Path) -> None:
    value = assigned(v1model(tmp_path, ingress="apply { hdr.h.s -= 1; }"))
    assert isinstance(value, ir.Binary)
    assert (value.op, value.type) == (ir.BinaryOp.SUB, IntType(8))


@pytest.mark.parametrize(
    ("statement", "at", "reason"),
    [
        ("meta.x = unknown;", "unknown", "`unknown` is not declared"),
        ("meta.x = hdr.h.nothing;", "nothing", "header `h_t` has no field `nothing`"),
        ("meta.x = hdr.h.b;", "b", "`bit<16>` where `bit<8>` is needed"),
        ("meta.x = hdr.h.a + hdr.h.b;", "+", "one type, not `bit<8>` and `bit<16>`"),
        ("meta.x = hdr.h.s;", "s", "`int<8>` where `bit<8>` is needed"),
        ("meta.flag = hdr.h.a;", "a", "where `bool` is needed"),
        ("meta.x = (bit<8>) hdr.h.b[20:13];", "20", "not within the 16 bits"),
        ("meta.x = hdr.h.a[0:7];", "0", "the higher one comes first"),
        ("meta.x = hdr.h.a[meta.x:0];", "x", "known at compile time"),
        ("if (hdr.h.a) { }", "a", "where `bool` is needed"),
        ("hdr.h.a + 1 = 3;", "+", "unexpected"),
        ("8w3 = hdr.h.a;", "8w3", "unexpected"),
        ("hdr.stack[5].a = 1;", "5", "has no element 5"),
        ("meta.x = hdr.stack.last.a;", "last", "for parsers alone"),
        ("meta.x = hdr.h.a / 3;", "/", "power of 2"),
        ("meta.x = hdr.h.a / 0;", "/", "division by zero"),
        ("meta.x = hdr.h.a << hdr.h.s;", "s", "unsigned number of bits"),
        ("meta.x = hdr.h.a ++ 1;", "++", "both need a width"),
        ("hdr.h.frob();", "frob", "has no method `frob`"),
        ("hdr.h = {1, 2};", "{", "has 5 fields, and here are 2"),
        ("meta = {x = 1, z = 2, ...};", "z", "has no field `z`"),
        ("mark_to_drop(standard, 1);", "mark_to_drop", "no `mark_to_drop` takes these arguments"),
        ("truncate(1, 2);", "truncate", "takes 1 argument"),
        ("random(meta.x, 0, hdr.h.b);", "b", "where `bit<8>` is needed"),
        ("hash(3, HashAlgorithm.crc16, 16w0, {hdr.h.a}, 16w9);", "3", "cannot be assigned to"),
        ("hash(meta.y, HashAlgorithm.md5, 16w0, {hdr.h.a}, 16w9);", "md5", "has no member `md5`"),
        ("frobnicate(meta.x);", "frobnicate", "`frobnicate` is not declared"),
        ("verify(true, error.NoError);", "verify", "only be called in a parser"),
        ("bit<8> meta = 1;", "meta", "hides a parameter"),
        ("bit<8> v; bit<8> v;", "v", "declared twice"),
        ("break;", "break", "outside a loop"),
        ("return 3;", "return", "nothing can be returned"),
    ],
)
def test_mistakes_are_found_where_they_are(tmp_path: Path, statement: str, at: str, reason: str) -> None:
    error = refused(tmp_path, ingress=f"apply {{\n    {statement}\n}}")
    assert reason in error.reason
    assert excerpt(error).startswith(at) or at.startswith(excerpt(error))


def test_an_error_names_a_similar_name(tmp_path: Path) -> None:
    assert "did you mean `standard`?" in refused(tmp_path, ingress="apply { meta.x = standrd.x; }").reason


def test_too_deep_a_nesting_has_a_place(tmp_path: Path) -> None:
    error = refused(tmp_path, ingress=f"apply {{\nmeta.x = {'- ' * 2000}1; }}")
    assert error.reason == "this is nested too deeply"
    assert (error.location.line, error.location.column > 100) == (13, True)
