"""Lexer and parser: P4's ambiguities, and syntax errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model import ast
from switchagg.p4model.errors import P4Error
from switchagg.p4model.parser import parse
from switchagg.p4model.preprocess import preprocess


def parsed(folder: Path, text: str) -> ast.Program:
    path = folder / "p.p4"
    path.write_text(text, encoding="utf-8")
    return parse(preprocess(path))


def value(folder: Path, text: str, before: str = "") -> ast.Expr:
    decl = parsed(folder, f"{before}\nconst bit<8> c = {text};").declarations[-1]
    assert isinstance(decl, ast.ConstDecl)
    return decl.value


def test_a_cast_is_told_from_parentheses_by_what_is_a_type(tmp_path: Path) -> None:
    assert isinstance(value(tmp_path, "(t) - 1", "typedef bit<8> t;"), ast.CastExpr)
    assert isinstance(value(tmp_path, "(t) - 1", "const bit<8> t = 3;"), ast.BinaryExpr)


def test_angles_are_type_arguments_only_after_a_generic_name(tmp_path: Path) -> None:
    generic = "extern T f<T>(in T x); const bit<8> a = 1; const bit<8> b = 2;"
    assert isinstance(value(tmp_path, "f<bit<8>>(1)", generic), ast.CallExpr)
    compared = value(tmp_path, "a < b ? a : b", generic)
    assert isinstance(compared, ast.TernaryExpr)
    assert isinstance(compared.condition, ast.BinaryExpr)


def test_two_closing_angles_are_no_shift(tmp_path: Path) -> None:
    program = parsed(tmp_path, "struct s<T> { T x; } struct u { s<bit<8>> y; } const bit<8> c = 16 >> 2;")
    decl = program.declarations[-1]
    assert isinstance(decl, ast.ConstDecl)
    assert isinstance(decl.value, ast.BinaryExpr)
    assert decl.value.op == ">>"


def test_words_that_are_keywords_only_in_their_place_can_be_names(tmp_path: Path) -> None:
    text = (
        "struct s { bit<8> key; bit<8> actions; bit<8> entries; bit<8> state; bit<8> type; bit<8> priority; }"
    )
    decl = parsed(tmp_path, text).declarations[0]
    assert isinstance(decl, ast.FieldsDecl)
    assert [each.name for each in decl.fields] == ["key", "actions", "entries", "state", "type", "priority"]


def test_a_type_parameter_ends_with_its_declaration(tmp_path: Path) -> None:
    program = parsed(tmp_path, "extern e<T> { e(T x); } const bit<8> T = 1; const bit<8> c = (T) + 1;")
    decl = program.declarations[-1]
    assert isinstance(decl, ast.ConstDecl)
    assert isinstance(decl.value, ast.BinaryExpr)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", ("+", "*")),
        ("1 | 2 & 3", ("|", "&")),
        ("1 ++ 2 << 3", ("<<", "++")),
        ("1 == 2 && 3 < 4", ("&&", "==")),
    ],
)
def test_precedence(tmp_path: Path, text: str, expected: tuple[str, str]) -> None:
    outer = value(tmp_path, text)
    assert isinstance(outer, ast.BinaryExpr)
    inner = outer.left if isinstance(outer.left, ast.BinaryExpr) else outer.right
    assert isinstance(inner, ast.BinaryExpr)
    assert (outer.op, inner.op) == expected


@pytest.mark.parametrize(
    ("text", "number", "width", "signed"),
    [
        ("0x1F", 31, 0, False),
        ("8w0b1010_1010", 170, 8, False),
        ("4s7", 7, 4, True),
        ("0o17", 15, 0, False),
        ("32w1_000", 1000, 32, False),
    ],
)
def test_numbers(tmp_path: Path, text: str, number: int, width: int, signed: bool) -> None:
    literal = value(tmp_path, text)
    assert isinstance(literal, ast.IntExpr)
    assert (literal.value, literal.width, literal.signed) == (number, width, signed)


def test_annotations_hold_anything_and_are_read_where_they_are_values(tmp_path: Path) -> None:
    text = """@name("a" ++ "b") @list(1, 0x10, true) @free(x < (y) {;}) @pairs[k = "v", n = 2] @bare
        const bit<8> c = 1;"""
    notes = {each.name: each for each in parsed(tmp_path, text).declarations[0].annotations}
    assert notes["name"].values == ("ab",)
    assert notes["list"].values == (1, 16, True)
    assert notes["free"].body == "x < ( y ) { ; }"
    assert notes["pairs"].pairs == (("k", "v"), ("n", 2))
    assert notes["bare"].body is None


def test_a_pragma_ends_with_its_line(tmp_path: Path) -> None:
    decl = parsed(tmp_path, "@pragma stage 3 extra\nconst bit<8> c = 1;").declarations[0]
    assert [(each.name, each.body) for each in decl.annotations] == [("stage", "3 extra")]


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("const bit<8> c = 1", (1, 18), "too early"),
        ("const bit<8> c = ;", (1, 18), "unexpected `;`"),
        ("control c() {\n  foo(5) x;\n apply { } }", (2, 3), "`foo` is not a type"),
        ("struct s {\n  unknown x;\n}", (2, 3), "`unknown` is not a type"),
        ("const bit<8> c = 1 $ 2;", (1, 20), r"unexpected character '\$'"),
        ("const bit<8> c = 8x1;", (1, 18), "8x1 is no number"),
        ('@name("x const bit<8> c = 1;', (1, 7), "does not end on its line"),
        ("@name(", (1, 6), "never closed"),
        ("@name(3) const bit<8> c = 1;", (1, 1), "takes one string"),
    ],
)
def test_syntax_errors_have_their_place(
    tmp_path: Path, text: str, place: tuple[int, int], reason: str
) -> None:
    with pytest.raises(P4Error, match=reason) as caught:
        parsed(tmp_path, text)
    assert (caught.value.location.line, caught.value.location.column) == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 5000, "a number of 5000 characters; accepted: up to 3500"),
        ("8w" + "1" * 5000, "a number of 5002 characters"),
        ("99999999999w1", "99999999999w1 is wider than the 2048 bits supported"),
    ],
)
def test_numbers_have_a_size(tmp_path: Path, text: str, reason: str) -> None:
    for program in (f"const int c = {text};", f"@note({text}) const int c = 1;"):
        with pytest.raises(P4Error, match=reason) as error:
            parsed(tmp_path, program)
        assert error.value.location.line == 1
