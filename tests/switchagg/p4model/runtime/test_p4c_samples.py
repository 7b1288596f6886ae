"""The v1model tests of p4c itself, on the programs that come with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from switchagg.p4model.errors import P4Error
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.stf import run_stf

VARIABLE: Final = "P4C"
REFUSED: Final = {"extern-funcs-bmv2"}  # declares an extern function of its own


def test_p4c_samples() -> None:
    checkout = os.environ.get(VARIABLE)
    if checkout is None:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/p4lang/p4c")
    tests = sorted((Path(checkout) / "testdata/p4_16_samples").glob("*-bmv2.stf"))
    failed = {}
    for test in tests:
        program = test.with_suffix(".p4")
        if not program.exists() or "v1model.p4" not in program.read_text(errors="replace"):
            continue
        try:
            problems = run_stf(open_switch(program), test.read_text(), str(test)).problems
        except P4Error as error:
            problems = [str(error)]
        if problems:
            failed[test.stem] = problems
    assert len(tests) > 100
    assert failed.keys() == REFUSED, failed
