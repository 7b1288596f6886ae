"""Parsers, controls and externs: instances, their names and constants, and what the architecture wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model import P4Error, ir, load
from switchagg.p4model.types import BitType
from tests.switchagg.p4model.sources import V1MODEL, excerpt, ingress, refused, tna, v1model

SUB = """
control Sub(inout bit<8> value)(bit<8> step) {
    register<bit<8>>(4) cells;
    action add() { value = value + step; }
    table t { actions = { add; } default_action = add(); }
    apply { t.apply(); }
}
"""


def test_each_instance_has_its_own_constants_and_names(tmp_path: Path) -> None:
    program = v1model(
        tmp_path, top=SUB, ingress="Sub(3) one; Sub(5) two; apply { one.apply(meta.x); two.apply(meta.x); }"
    )
    one, two = ingress(program).instances
    assert isinstance(one, ir.ControlInstance)
    assert isinstance(two, ir.ControlInstance)
    assert [each.tables[0].control_name for each in (one, two)] == ["MyIngress.one.t", "MyIngress.two.t"]
    assert [each.actions[0].control_name for each in (one, two)] == ["MyIngress.one.add", "MyIngress.two.add"]
    steps = []
    for each in (one, two):
        statement = each.actions[0].body.body[0]
        assert isinstance(statement, ir.Assign)
        assert isinstance(statement.value, ir.Binary)
        assert isinstance(statement.value.right, ir.Literal)
        steps.append(statement.value.right.value)
    assert steps == [3, 5]


def test_a_control_applied_by_its_name_is_an_instance(tmp_path: Path) -> None:
    top = SUB.replace("(bit<8> step)", "").replace("step", "1")
    program = v1model(tmp_path, top=top, ingress="apply { Sub.apply(meta.x); }")
    assert [each.control_name for each in ingress(program).instances] == ["MyIngress.Sub"]


def test_a_name_annotation_replaces_the_last_part_or_all(tmp_path: Path) -> None:
    text = """@name("inner") action a() { } @name(".outer") action b() { }
        table t { actions = { a; b; } } apply { t.apply(); }"""
    names = [each.control_name for each in ingress(v1model(tmp_path, ingress=text)).actions]
    assert names == ["MyIngress.inner", "outer"]


def test_extern_methods_see_their_type_arguments(tmp_path: Path) -> None:
    program = v1model(tmp_path, ingress="register<bit<16>>(8) r; apply { r.read(meta.y, 3); }")
    statement = ingress(program).body.body[0]
    assert isinstance(statement, ir.CallStmt)
    assert isinstance(statement.call, ir.MethodCall)
    assert [each.value.type for each in statement.call.args if each.value is not None] == [
        BitType(16),
        BitType(32),
    ]


def test_register_actions_refer_to_what_is_round_them(tmp_path: Path) -> None:
    text = """
    Register<bit<32>, bit<16>>(16) cells;
    RegisterAction<bit<32>, bit<16>, bit<32>>(cells) add = {
        void apply(inout bit<32> value, out bit<32> old) { old = value; value = value + hdr.h.a; }
    };
    apply { meta.x = add.execute(hdr.h.slot); }"""
    program = tna(tmp_path, ingress=text)
    assert program.architecture == "tna"
    pipe = program.main.args["pipe0"]
    assert isinstance(pipe, ir.PackageInstance)
    control = pipe.args["ingress"]
    assert isinstance(control, ir.ControlInstance)
    action = control.instances[1]
    assert isinstance(action, ir.ExternInstance)
    assert action.args["reg"] is control.instances[0]
    assert [each.name for each in action.methods["apply"].params] == ["value", "old"]


def test_select_and_states(tmp_path: Path) -> None:
    parser = """transition select(hdr.h.a, hdr.h.b) {
        (1, 2): second;
        (0x10 &&& 0xF0, 1 .. 5): accept;
        _: reject;
    } } state second { packet.extract(hdr.stack.next); transition accept;"""
    made = v1model(tmp_path, parser=parser).main.args["p"]
    assert isinstance(made, ir.ParserInstance)
    select = made.states["start"].transition
    assert isinstance(select, ir.Select)
    assert [[type(key) for key in case.keys] for case in select.cases] == [
        [ir.ExactSet, ir.ExactSet],
        [ir.MaskSet, ir.RangeSet],
        [ir.AnySet, ir.AnySet],
    ]


@pytest.mark.parametrize(
    ("parts", "at", "reason"),
    [
        ({"parser": "transition nowhere;"}, "nowhere", "no state `nowhere`"),
        ({"parser": "transition start;"}, "P", "never ends"),
        ({"parser": "transition select(hdr.h.a) { 16w1: accept; }"}, "16w1", "where `bit<8>` is needed"),
        ({"parser": "exit; transition accept;"}, "exit", "`exit` in a parser"),
        ({"parser": "packet.extract(meta); transition accept;"}, "meta", "`extract` takes a header"),
        ({"parser": "packet.frob(); transition accept;"}, "frob", "has no method `frob`"),
        ({"ingress": "Unknown() u; apply { }"}, "Unknown", "is not a type"),
        ({"ingress": "register<bit<8>>() r; apply { }"}, "r", "takes 1 argument"),
        ({"ingress": "register<bit<8>>(meta.x) r; apply { }"}, "x", "where `bit<32>` is needed"),
        ({"ingress": "register<bit<8>, bit<8>>(3) r; apply { }"}, "register", "needs 1 type argument"),
        ({"ingress": "register(3) r; apply { r.read(meta.x, 0); }"}, "meta", ""),
        ({"ingress": "action a() { } action a() { } apply { }"}, "a", "declared twice"),
        ({"ingress": "action a(bit<8> x, in bit<8> y) { } apply { }"}, "y", "come before"),
        ({"ingress": "apply { MyIngress.apply(hdr, meta, standard); }"}, "MyIngress", "not declared"),
        ({"ingress": "apply { NoSuch.apply(); }"}, "NoSuch", "not declared"),
        ({"top": "struct s { bit<8> a; bit<8> a; }"}, "a", "declared twice"),
        ({"top": "header u { string x; }"}, "x", "cannot have a field"),
        ({"top": "typedef bit<0x10000> wide;"}, "0x10000", "wider than"),
        ({"top": "enum e { a, a }"}, "a", "declared twice"),
        ({"top": "const bit<8> c = f();"}, "f", "not declared"),
        ({"top": "bit<8> f(in bit<8> x) { if (x == 1) { return 2; } }"}, "f", "without a `return`"),
        (
            {"top": 'const bool ok = static_assert(1 == 2, "no");'},
            "static_assert",
            "static_assert failed: no",
        ),
    ],
)
def test_mistakes_in_declarations(tmp_path: Path, parts: dict[str, str], at: str, reason: str) -> None:
    if parts.get("ingress", "").startswith("register(3)"):
        # Nothing tells the type of a cell but its use, which is enough.
        assert v1model(tmp_path, **parts).architecture == "v1model"
        return
    error = refused(tmp_path, **parts)
    assert reason in error.reason
    assert excerpt(error).startswith(at) or at.startswith(excerpt(error))


def test_a_block_that_does_not_fit_the_architecture(tmp_path: Path) -> None:
    text = V1MODEL.format(top="", parser="transition accept;", ingress="apply { }").replace(
        "control Verify(inout headers_t hdr", "control Verify(in headers_t hdr"
    )
    path = tmp_path / "p.p4"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(P4Error, match="`Verify`") as caught:
        load(path)
    assert caught.value.location.line == len(text.splitlines())


def test_a_program_without_main_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.p4"
    path.write_text("const bit<8> c = 1;", encoding="utf-8")
    with pytest.raises(P4Error, match="no instance named `main`"):
        load(path)


def test_errors_show_the_line_and_point_at_it(tmp_path: Path) -> None:
    error = refused(tmp_path, ingress="apply {\n\tmeta.x = meta.zz;\n}")
    first, line, caret = str(error).split("\n")
    assert first.endswith(": error: struct `meta_t` has no field `zz`")
    assert (line, caret) == ("\tmeta.x = meta.zz;", "\t              ^")
