"""The programs' headers and codes are those of the rest of the project."""

from __future__ import annotations

import re
from collections import Counter
from enum import IntEnum
from pathlib import Path

import pytest

from switchagg.p4model.preprocess import preprocess
from switchagg.p4program import program as p4_program
from switchagg.p4program.program import Form, NextHop, Outcome, Traffic
from switchagg.p4program.sources import source_path
from switchagg.wire.header import DEFAULT_PORT, FIELDS, HEADER_BYTES, Op

from .model import PROGRAMS

CONSTANTS = (PROGRAMS / "include" / "constants.p4").read_text()
HEADERS = (PROGRAMS / "include" / "headers.p4").read_text()


def _constants(prefix: str) -> dict[str, int]:
    found = re.findall(rf"^const \S+ {prefix}_(\w+) = (\w+);", CONSTANTS, re.MULTILINE)
    return {name: int(value, 0) for name, value in found}


def _macro(name: str) -> str:
    match = re.search(rf"^#define {name} (.+?)(?:\s*/\*.*)?$", CONSTANTS, re.MULTILINE)
    assert match, name
    return match[1]


def test_the_header_is_that_of_the_wire() -> None:
    body = re.search(r"header switchagg_h \{(.*?)\}", HEADERS, re.DOTALL)
    assert body
    fields = [(name, int(bits)) for bits, name in re.findall(r"bit<(\d+)> (\w+);", body[1])]
    assert fields == [(field.name, field.bits) for field in FIELDS]


@pytest.mark.parametrize(
    ("prefix", "enum"),
    [("FORM", Form), ("TRAFFIC", Traffic), ("NEXT_HOP", NextHop), ("OUTCOME", Outcome)],
)
def test_codes(prefix: str, enum: type[IntEnum]) -> None:
    assert _constants(prefix) == {each.name: each.value for each in enum}


def test_numbers() -> None:
    # INIT is known by the admission table's entries alone.
    assert _constants("OP") == {each.name: each.value for each in Op if each is not Op.INIT}
    assert re.search(rf"^const outcome_t COMPLETING = {p4_program.COMPLETING};", CONSTANTS, re.MULTILINE)
    assert int(_macro("AGG_UDP_PORT")) == DEFAULT_PORT
    assert int(_macro("AGG_JOBS")) == p4_program.MAX_JOBS
    assert int(_macro("UDP_BYTES_BARE")) == 8 + HEADER_BYTES
    assert _macro("UDP_BYTES_FULL") == f"({8 + HEADER_BYTES} + 4 * AGG_WORDS)"
    assert int(_macro("IPV4_BYTES_BARE")) == 28 + HEADER_BYTES
    assert _macro("IPV4_BYTES_FULL") == f"({28 + HEADER_BYTES} + 4 * AGG_WORDS)"
    target = p4_program.v1model()
    assert (target.words, target.slots) == (int(_macro("AGG_WORDS")), int(_macro("AGG_SLOTS")))
    ports = re.findall(r"#define AGG_CONTROLLER_PORT (\d+)", CONSTANTS)
    assert ports == [str(p4_program.tna().controller_port), str(target.controller_port)]


@pytest.mark.parametrize(("name", "target"), [("v1model", "BMV2")])
def test_every_constant_is_used(name: str, target: str) -> None:
    """p4c's newer releases warn of those that are not."""
    lines = preprocess(source_path(name), defines=[f"__TARGET_{target}__=1"]).lines
    words = Counter(
        re.findall(r"\w+", "\n".join(line.text for line in lines if "/p4model/" not in line.file))
    )
    declared = re.findall(r"^const \S+ (\w+) =", CONSTANTS, re.MULTILINE)
    assert len(declared) > 40
    assert [each for each in declared if words[each] == 1] == []


@pytest.mark.parametrize("program", ["switchagg_v1model.p4", "switchagg_tna.p4"])
def test_every_include_is_here(program: str) -> None:
    waiting, seen = [PROGRAMS / program], set()
    while waiting:
        path: Path = waiting.pop()
        seen.add(path)
        for name in re.findall(r'#include "(.+)"', path.read_text()):
            assert (path.parent / name).is_file(), f"{path}: {name}"
            waiting += {path.parent / name} - seen
