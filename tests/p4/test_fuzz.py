"""A short run of the fuzzer on every device, and what it finds in programs that are wrong on purpose.

SWITCHAGG_TEST_SEED repeats a run; `make fuzz` makes a long one.
"""

from __future__ import annotations

import os
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.p4program import program as p4_program
from switchagg.rules import slots
from switchagg.wire import header as wire

from .conftest import DEVICES
from .fuzz import steps
from .fuzz.open_device import open_device
from .fuzz.replay import replay
from .fuzz.run import fuzz
from .fuzz.steps import Admit, as_test
from .model import PROGRAMS

PACKETS = 2000
LONGEST = 8
"""Steps that the mistakes below need, at most, with room for jobs that cannot be made smaller."""


def _seed() -> str:
    seed = os.environ.get("SWITCHAGG_TEST_SEED", str(secrets.randbelow(2**32)))
    print(f"SWITCHAGG_TEST_SEED={seed}")
    return seed


@pytest.mark.parametrize("name", DEVICES)
def test_no_device_differs_from_the_native_table(name: str, tmp_path: Path) -> None:
    seed = _seed()
    with open_device(name, 64, tmp_path) as dut:
        report = fuzz(dut, PACKETS, seed)
    print(report)
    found = report.found
    if found is not None:
        print(as_test(f"open_device({name!r}, 64, tmp_path)", found.steps, found.what, seed))
        pytest.fail(found.what)
    assert report.packets >= PACKETS
    assert report.following * 2 > report.packets
    assert report.hits["counter: accepted"] * 10 > report.packets
    assert not report.missed


V1MODEL, TNA = "model-v1model", "model-tna"
MISTAKES = {
    "words are or-ed where they are to be added": (
        V1MODEL,
        "include/words_v1model.p4",
        "AGG_COMBINE(high, +)",
        "AGG_COMBINE(high, |)",
    ),
    "a slot forgets its words with the next SKIP": (
        V1MODEL,
        "switchagg_v1model.p4",
        "filled.write(slot, meta.filled | meta.brought);",
        "filled.write(slot, meta.brought);",
    ),
    "a round's first worker may come again": (
        V1MODEL,
        "switchagg_v1model.p4",
        "missing.write(slot, meta.others);",
        "missing.write(slot, meta.others | meta.worker);",
    ),
    "a reply is not set aside": (V1MODEL, "include/slot_rules.p4", "hdr.agg.reply = 0;", ""),
    "the sender's checksum stays": (V1MODEL, "include/rewrite.p4", "hdr.udp.checksum = 0;", ""),
    "repeats are not counted": (V1MODEL, "switchagg_v1model.p4", "hdr.agg.flags[1:1] == 1", "false"),
    "a token's last bit does not matter": (
        V1MODEL,
        "include/admission.p4",
        "hdr.agg.token: ternary;",
        'hdr.agg.token | 1: ternary @name("hdr.agg.token");',
    ),
    "fragments are taken for whole": (
        V1MODEL,
        "include/frame_states.p4",
        "(4, 5, 0 &&& 1, 0, PROTOCOL_UDP): parse_udp;",
        "(4, 5, _, _, PROTOCOL_UDP): parse_udp;",
    ),
    "the second pass reads the first half": (
        TNA,
        "include/words_tna.p4",
        "odd = stored.odd;",
        "odd = stored.even;",
    ),
    "a repeat is answered in one pass": (
        TNA,
        "switchagg_tna.p4",
        "(AUDIENCE_SENDER, 0, WORDS_STORED): answer_again();",
        "(AUDIENCE_SENDER, 0, WORDS_STORED): send_own_to_one();",
    ),
    "a repeat names a reader": (
        V1MODEL,
        "include/admission.p4",
        "4 &&& 6: name_reader();",
        "4 &&& 4: name_reader();",
    ),
    "the words of a directed RESULT go to all": (
        TNA,
        "include/frame_states.p4",
        "default: leave_words_out;",
        "default: accept;",
    ),
}


def _wrong_program(mistake: str, folder: Path) -> Path:
    device, file, right, wrong = MISTAKES[mistake]
    shutil.copytree(PROGRAMS, folder)
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    return folder / f"switchagg_{device.removeprefix('model-')}.p4"


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(name, marks=[pytest.mark.long] * (i % 3 > 0)) for i, name in enumerate(MISTAKES)],
)
def test_a_mistake_is_found_and_made_short(mistake: str, tmp_path: Path) -> None:
    seed = _seed()
    program = _wrong_program(mistake, tmp_path / "p4")
    with open_device(MISTAKES[mistake][0], 16, tmp_path, program=program) as dut:
        found = fuzz(dut, 5 * PACKETS, seed).found
    assert found is not None
    print(as_test("open_device()", found.steps, found.what, seed))
    assert "Not seen again" not in found.what
    assert len(found.steps) <= LONGEST
    assert len([step for step in found.steps if isinstance(step, Admit)]) <= 1


def test_what_is_printed_is_a_test(tmp_path: Path) -> None:
    """It passes on the program as it is, and fails on the wrong one."""
    seed = _seed()
    program = _wrong_program("a reply is not set aside", tmp_path / "p4")
    with open_device(V1MODEL, 16, tmp_path, program=program) as dut:
        found = fuzz(dut, 5 * PACKETS, seed).found
    assert found is not None
    printed = as_test(f"open_device({V1MODEL!r}, 16, tmp_path)", found.steps, found.what, seed)
    print(printed)
    names: dict[str, Any] = {"Path": Path, "replay": replay, "open_device": open_device, "np": np}
    names |= vars(p4_program) | vars(slots) | vars(wire) | vars(steps)
    exec(printed, names)
    names["test_found_by_fuzzing"](tmp_path)
    names["open_device"] = partial(open_device, program=program)
    with pytest.raises(AssertionError):
        names["test_found_by_fuzzing"](tmp_path)
