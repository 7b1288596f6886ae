"""A model of P4_16: reads, checks and runs the programs that a bmv2 or a Tofino would run.

    source ─ preprocess ─ lexer ─ parser ─► ast ─ check ─► ir ─► runtime
             (pcpp)                 (lark)   as written     typed, elaborated

`load()` does all but the last step. What it returns is described in `switchagg.p4model.ir`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchagg.p4model.errors import Location, P4Error

if TYPE_CHECKING:
    from switchagg.p4model.check import load

__all__ = ["Location", "P4Error", "load"]


def __getattr__(name: str) -> object:
    # Imported when asked for: tables and their like, in `runtime`, need no parser nor its packages.
    if name == "load":
        from switchagg.p4model.check import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
