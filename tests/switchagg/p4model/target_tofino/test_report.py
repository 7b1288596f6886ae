"""Rules of a Tofino 1, and the estimate of the resources that a program takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchagg.p4model import P4Error
from switchagg.p4model.target_tofino.report import Estimate, check
from tests.switchagg.p4model.sources import tna, v1model

CELLS = """
    Register<bit<32>, bit<16>>(1024) cells;
    RegisterAction<bit<32>, bit<16>, bit<32>>(cells) add = {{
        void apply(inout bit<32> value, out bit<32> result) {{ {add} }}
    }};
    RegisterAction<bit<32>, bit<16>, bit<32>>(cells) store = {{
        void apply(inout bit<32> value) {{ value = hdr.h.a; }}
    }};
    action do_add() {{ meta.x = add.execute(hdr.h.slot); }}
    action do_store() {{ store.execute(hdr.h.slot); }}
    table adding {{
        key = {{ hdr.h.kind: exact; }} actions = {{ do_add; NoAction; }} default_action = NoAction;
    }}
    table storing {{
        key = {{ hdr.h.kind: exact; }} actions = {{ do_store; NoAction; }} default_action = NoAction;
    }}
    apply {{ {apply} }}
"""
PLAIN_ADD = "value = value + hdr.h.a; result = value;"


def estimate(folder: Path, *, add: str = PLAIN_ADD, apply: str = "adding.apply();") -> Estimate:
    return check(tna(folder, ingress=CELLS.format(add=add, apply=apply)))


def reasons(found: Estimate) -> list[str]:
    return [each.reason for each in found.findings]


@pytest.mark.parametrize(
    "apply",
    [
        "adding.apply(); storing.apply();",
        "adding.apply(); if (hdr.h.kind == 3) { storing.apply(); }",
        "if (adding.apply().hit) { storing.apply(); }",
    ],
)
def test_a_register_that_is_accessed_twice_is_refused(tmp_path: Path, apply: str) -> None:
    found = estimate(tmp_path, apply=apply)
    assert len(found.findings) == 1
    assert "`cells` is accessed twice" in reasons(found)[0]
    text = found.findings[0].text(found.sources)
    assert "store.execute(hdr.h.slot)" in text
    assert "add.execute(hdr.h.slot)" in text
    assert not found.fits


@pytest.mark.parametrize(
    "apply",
    [
        "if (hdr.h.kind == 1) { adding.apply(); } else { storing.apply(); }",
        "if (adding.apply().miss) { storing.apply(); }",
        "if (hdr.h.kind == 1) { adding.apply(); return; } storing.apply();",
        "switch (adding.apply().action_run) { NoAction: { storing.apply(); } }",
    ],
)
def test_accesses_of_which_one_happens_are_fine(tmp_path: Path, apply: str) -> None:
    found = estimate(tmp_path, apply=apply)
    assert reasons(found) == []
    stages = {each.table.name: each.stage for each in found.placed if each.table.registers}
    assert len(set(stages.values())) == 1, "a register is in one stage, and so is all that accesses it"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("value = value * 3; result = value;", "no `*`"),
        ("value = value + hdr.h.a + hdr.h.b; result = value;", "one operation"),
        ("if (value < 1) { value = 1; } else if (value < 2) { value = 2; } else if (value < 3) { value = 3; }"
         " result = value;", "comparisons; a stateful ALU has 2"),
        ("if (value < 1) { value = 1; } else if (value < 2) { value = 2; } else { value = 3; }"
         " result = value;",
         "gets 3 different values"),
        ("if (value == hdr.h.b) { value = hdr.h.a + value; } else { value = meta.y; } result = value;",
         "3 fields of the packet"),
        ("value = 1; result = value; meta.y = 3;", "writes its word and its result"),
    ],
)  # fmt: skip
def test_what_a_stateful_alu_cannot_do(tmp_path: Path, body: str, reason: str) -> None:
    assert any(reason in each for each in reasons(estimate(tmp_path, add=body)))


@pytest.mark.parametrize(
    "body",
    [
        PLAIN_ADD,
        "result = value; value = value | hdr.h.a;",
        "result = this.predicate(value == hdr.h.a, value == meta.y);",
        "if (value - hdr.h.a < 10 && value != 0) { value = value |+| 1; } else { value = hdr.h.a; }"
        " result = value;",
        "result = value & hdr.h.a; value = value & ~hdr.h.a;",
        "value = max(value, hdr.h.a); result = value;",
    ],
)
def test_what_it_can(tmp_path: Path, body: str) -> None:
    assert reasons(estimate(tmp_path, add=body)) == []


def test_a_fifth_action_of_a_register_is_refused(tmp_path: Path) -> None:
    more = "".join(
        f"RegisterAction<bit<32>, bit<16>, bit<32>>(cells) more{index} = {{\n"
        "    void apply(inout bit<32> value) { value = 0; } };\n"
        for index in range(3)
    )
    text = CELLS.format(add=PLAIN_ADD, apply="adding.apply();").replace(
        "    action do_add", more + "    action do_add", 1
    )
    assert any("has 5 actions" in each for each in reasons(check(tna(tmp_path, ingress=text))))


def test_dependencies_make_stages(tmp_path: Path) -> None:
    text = """
        action a() { meta.x = hdr.h.a; }
        action b() { meta.y = hdr.h.b; }
        action c() { hdr.h.b = 1; }
        table first { key = { hdr.h.kind: exact; } actions = { a; } default_action = a; }
        table second { key = { meta.x: exact; } actions = { b; } default_action = b; }
        table apart { key = { hdr.h.kind: exact; } actions = { c; } default_action = c; }
        apply { first.apply(); second.apply(); apart.apply(); }
    """
    found = check(tna(tmp_path, ingress=text))
    stages = {each.table.name.split(".")[-1]: each.stage for each in found.placed}
    assert stages == {"first": 0, "second": 1, "apart": 1}
    assert found.stages["ingress"] == 2
    assert found.fits
    why = {each.table.name.split(".")[-1]: each.because for each in found.placed}
    assert "meta.x" in why["second"]
    assert "reads" in why["apart"]


def test_four_registers_fill_a_stage(tmp_path: Path) -> None:
    parts, calls = [], []
    for index in range(9):
        parts.append(
            f"Register<bit<32>, bit<16>>(16) r{index};\n"
            f"RegisterAction<bit<32>, bit<16>, bit<32>>(r{index}) s{index} = {{\n"
            "    void apply(inout bit<32> value) { value = hdr.h.a; } };\n"
            f"action a{index}() {{ s{index}.execute(hdr.h.slot); }}\n"
            f"table t{index} {{ actions = {{ a{index}; }} default_action = a{index}; }}\n"
        )
        calls.append(f"t{index}.apply();")
    found = check(tna(tmp_path, ingress="".join(parts) + f"apply {{ {' '.join(calls)} }}"))
    per_stage = [sum(each.stage == stage for each in found.placed) for stage in range(3)]
    assert per_stage == [4, 4, 1]


def test_text_and_json_say_the_same(tmp_path: Path) -> None:
    found = estimate(tmp_path)
    data = json.loads(found.to_json())
    assert data["fits"] is True
    assert data["stages"] == found.stages
    text = found.to_text()
    assert f"stages: ingress {data['stages']['ingress']}, egress {data['stages']['egress']} of 12" in text
    assert "Ingress.adding" in text
    assert "cells" in text


def test_a_program_for_another_switch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match="is for TNA programs"):
        check(v1model(tmp_path))
