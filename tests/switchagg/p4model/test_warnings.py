"""Warnings: arguments that overlap, and out parameters that a way through a body leaves unwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model.warnings import warnings_of

from .sources import v1model

TOP = """
bit<8> two(out bit<8> a, inout bit<8> b) { a = 1; return b; }
bit<8> some(in bit<8> x, out bit<8> y) { if (x == 0) { return 1; } y = x; return y; }
bit<8> all(in bit<8> x, out bit<8> y) { if (x == 0) { y = 1; return 1; } else { y = 2; } return y; }
control Half(in bit<8> x, out bit<8> low, out bit<8> high) {
    action lower() { low = x; }
    action upper() { high = x; }
    action both() { low = x; high = x; }
    table t {
        key = { x : exact; }
        actions = { lower; upper; both; }
        default_action = both();
    }
    apply { t.apply(); }
}
"""


def found(folder: Path, ingress: str, top: str = TOP) -> list[str]:
    """Returns the first line of each warning, without the folder."""
    program = v1model(folder, top=top, ingress=ingress)
    return [text.split("\n")[0].removeprefix(f"{folder}/program.p4:") for text in warnings_of(program)]


def apply(body: str) -> str:
    return f"apply {{ {body} }}"


@pytest.mark.parametrize(
    ("call", "overlaps"),
    [
        ("two(hdr.h.a, hdr.h.a)", True),
        ("two(meta.x, hdr.h.a)", False),
        ("two(meta.y[7:0], meta.y[15:8])", False),
        ("two(meta.y[8:1], meta.y[15:8])", True),
        ("two(hdr.stack[0].a, hdr.stack[1].a)", False),
        ("two(hdr.stack[1].a, hdr.stack[1].a)", True),
        ("two(hdr.stack[meta.x].a, hdr.stack[meta.x].a)", False),  # it may, but need not
    ],
)
def test_overlapping_arguments_of_a_function(tmp_path: Path, call: str, overlaps: bool) -> None:
    warnings = found(tmp_path, apply(f"{call};"))
    wanted = "warning: `a` and `b` write to the same place: the value of `b` stays"
    assert [text.split(": ", 1)[1] for text in warnings] == [wanted] * overlaps


def test_a_warning_has_its_place_and_the_other_argument(tmp_path: Path) -> None:
    program = v1model(
        tmp_path,
        top="control Sub(inout meta_t all, out bit<8> part) { apply { part = all.x; } }",
        ingress="Sub() sub; Sub() two_; apply {\n    sub.apply(meta, meta.x);\n two_.apply(meta, hdr.h.a); }",
    )
    [text] = warnings_of(program)
    path = tmp_path / "program.p4"
    lines = path.read_text().split("\n")
    line = next(number for number, each in enumerate(lines, 1) if "sub.apply" in each)
    assert text.split("\n") == [
        f"{path}:{line}:26: warning: `all` and `part` write to the same place: the value of `part` stays",
        "    sub.apply(meta, meta.x);",
        "                         ^",
        f"{path}:{line}:15: note: the argument for `all` is here",
        "    sub.apply(meta, meta.x);",
        "              ^",
    ]


def test_bound_arguments_of_a_tables_action(tmp_path: Path) -> None:
    ingress = """
        action a(inout bit<8> first, inout bit<8> second) { first = second; }
        table t { actions = { a(meta.x, meta.x); } default_action = a(meta.x, meta.x); }
        apply { t.apply(); }
    """
    [text] = found(tmp_path, ingress)
    assert text.endswith("`first` and `second` write to the same place: the value of `second` stays")


def test_functions_that_leave_a_parameter_unwritten(tmp_path: Path) -> None:
    assert found(tmp_path, apply("meta.x = all(1, hdr.h.a);")) == []
    [text] = found(tmp_path, apply("meta.x = some(1, hdr.h.a);"))
    assert text.endswith("warning: `some` may leave its out parameter `y` unwritten")


def test_actions_that_leave_a_parameter_unwritten(tmp_path: Path) -> None:
    program = v1model(
        tmp_path, top=TOP, ingress="Half() one; Half() two_; apply { one.apply(1, meta.x, hdr.h.a);"
        "two_.apply(2, meta.x, hdr.h.a); }"
    )  # fmt: skip
    texts = warnings_of(program)
    heads = [[line for line in text.split("\n") if "warning:" in line or "note:" in line] for text in texts]
    said = [[line.split(": ", 1)[1] for line in lines] for lines in heads]
    assert said == [
        [
            "warning: `Half` may leave its out parameter `low` unwritten",
            "note: action `upper` does not write it",
        ],
        [
            "warning: `Half` may leave its out parameter `high` unwritten",
            "note: action `lower` does not write it",
        ],
    ]


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("if (x == 0) { o = 1; }", False),
        ("if (x == 0) { o = 1; } else { exit; }", True),
        ("if (x == 0) { return; } o = 1;", False),
        ("o[3:0] = 1;", True),
        ("switch (x) { 1: { o = 1; } 2: { o = 2; } }", False),
        ("switch (x) { 1: { o = 1; } default: { o = 2; } }", True),
        ("for (bit<8> i in 0..x) { o = i; }", True),
        ("set();", True),
        ("t.apply();", False),
        ("if (t.apply().hit) { } else { o = 3; }", True),
        ("if (!t.apply().hit) { o = 3; }", True),
        ("if (t.apply().miss) { } else { o = 3; }", False),
        ("switch (t.apply().action_run) { NoAction: { o = 0; } }", True),
        ("switch (t.apply().action_run) { set: { o = 0; } }", False),
        ("switch (t.apply().action_run) { set: { o = 0; } default: { o = 1; } }", True),
        ("o = all(x, o);", True),
    ],
)
def test_ways_through_a_body(tmp_path: Path, body: str, written: bool) -> None:
    sub = f"""
        control Sub(in bit<8> x, out bit<8> o) {{
            action set() {{ o = 7; }}
            table t {{ key = {{ x : exact; }} actions = {{ set; @defaultonly NoAction; }} }}
            apply {{ {body} }}
        }}
    """
    warnings = found(tmp_path, "Sub() sub; apply { sub.apply(1, meta.x); }", TOP + sub)
    assert len(warnings) == (not written), warnings


def test_headers_and_the_blocks_of_the_architecture_are_left_alone(tmp_path: Path) -> None:
    sub = "struct both_t { h_t h; } control Sub(out h_t h, out both_t both) { apply { } }"
    assert found(tmp_path, "both_t both; Sub() sub; apply { sub.apply(hdr.h, both); }", TOP + sub) == []
