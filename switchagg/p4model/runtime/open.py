"""`open_switch` loads and translates a program for the architecture that its `main` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from switchagg.p4model import ir
from switchagg.p4model.check import load
from switchagg.p4model.errors import P4Error, unsupported
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4model.runtime.tna import TofinoSwitch
from switchagg.p4model.runtime.v1model import V1Switch


def open_switch(
    source: ir.Program | str | Path,
    *,
    include_dirs: Sequence[str] = (),
    defines: Sequence[str] = (),
    seed: int = 0,
    traced: bool = False,
) -> ModelSwitch:
    """Returns a switch that runs this program.

    Raises P4Error: the program is wrong, or uses what the model does not support, its architecture included.
    """
    program = source if isinstance(source, ir.Program) else load(source, include_dirs, defines)
    try:
        if program.architecture == "v1model":
            return V1Switch(program, seed=seed, traced=traced)
        if program.architecture == "tna":
            return TofinoSwitch(program, seed=seed, traced=traced)
    except P4Error as error:
        raise error.with_sources(program.sources) from None
    except (SyntaxError, RecursionError):
        # Python's limits: 100 levels of indentation, 20 nested loops, deep expressions.
        deep = P4Error("a block or an expression is nested too deeply for the model", program.main.location)
        raise deep.with_sources(program.sources) from None
    other = unsupported(f"the architecture {program.architecture or 'of main'}", program.main.location)
    raise other.with_sources(program.sources)
