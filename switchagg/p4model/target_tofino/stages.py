"""Which stage each logical table comes to: the dependencies between them, then the room in a stage.

    match     a later table matches on what an earlier one writes       a stage later
    action    a later table reads or writes what an earlier one writes  a stage later
    control   an earlier one decides whether a later one runs           the same stage will do
    anti      a later one writes what an earlier one reads              the same stage will do

Tables of which at most one runs for a packet do not depend on each other. All that access one register
are in one stage, since the register is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from switchagg.p4model import ir
from switchagg.p4model.target_tofino import limits, memory
from switchagg.p4model.target_tofino.flow import Unit, UnitKind


@dataclass(slots=True)
class Placed:
    """A logical table and its stage; `because` is the dependency that put it there, empty where room did."""

    unit: Unit
    stage: int
    because: str
    memory: memory.Memory


@dataclass(slots=True)
class _Stage:
    tables: int = 0
    sram: int = 0
    tcam: int = 0
    registers: set[ir.ExternInstance] = field(default_factory=set)


def dependency(earlier: Unit, later: Unit) -> tuple[int, str] | None:
    """How many stages later the second must be, and why; None where the two are independent."""
    if earlier.gress != later.gress or earlier.excludes(later):
        return None
    fields = _overlap(earlier.writes, later.matches)
    if fields:
        return 1, f"matches on {fields} of {earlier.name}"
    fields = _overlap(earlier.writes, later.reads | later.writes)
    if fields:
        return 1, f"uses {fields} of {earlier.name}"
    if earlier in later.decided_by:
        return 0, f"decided by {earlier.name}"
    if _overlap(earlier.matches | earlier.reads, later.writes):
        return 0, f"writes what {earlier.name} reads"
    return None


def _overlap(left: set[str], right: set[str]) -> str:
    """A field in both, or one that is part of the other; empty if there is none."""
    for each in sorted(left):
        for other in right:
            if each == other or each.startswith(f"{other}.") or other.startswith(f"{each}."):
                return max(each, other, key=len)
    return ""


def place(units: Sequence[Unit]) -> list[Placed]:
    """Puts every logical table into the first stage that its dependencies and the room allow."""
    floor = {id(each): 0 for each in units}
    for _ in range(len(units) + 1):
        placed = _attempt(units, floor)
        moved = False
        for each in placed:
            together = [
                other.stage for other in placed if each.unit.registers.keys() & other.unit.registers.keys()
            ]
            target = max(together, default=each.stage)
            if target > each.stage and floor[id(each.unit)] < target:
                floor[id(each.unit)] = target
                moved = True
        if not moved:
            return placed
    return placed


def _attempt(units: Sequence[Unit], floor: dict[int, int]) -> list[Placed]:
    stages: list[_Stage] = []
    placed: list[Placed] = []
    for unit in units:
        earliest, because = floor[id(unit)], "its register is there" if floor[id(unit)] else ""
        for before in placed:
            found = dependency(before.unit, unit)
            if found is not None and before.stage + found[0] > earliest:
                earliest, because = before.stage + found[0], found[1]
        need = memory.of_table(unit)
        at = earliest
        while True:
            while at >= len(stages):
                stages.append(_Stage())
            if _fits(stages[at], unit, need):
                break
            at += 1
        _take(stages[at], unit, need)
        placed.append(Placed(unit, at, because if at == earliest else f"no room before ({because})", need))
    return placed


def _fits(stage: _Stage, unit: Unit, need: memory.Memory) -> bool:
    new = set(unit.registers) - stage.registers
    empty = not stage.tables
    blocks = need.sram + sum(memory.of_register(each).sram for each in new)
    return (
        stage.tables + (unit.kind is not UnitKind.GATEWAY) <= limits.LOGICAL_TABLES
        and len(stage.registers | new) <= limits.STATEFUL_ALUS
        and (empty or stage.sram + blocks <= limits.SRAM_BLOCKS)
        and (empty or stage.tcam + need.tcam <= limits.TCAM_BLOCKS)
    )


def _take(stage: _Stage, unit: Unit, need: memory.Memory) -> None:
    new = set(unit.registers) - stage.registers
    # A gateway is a part of the table that it decides on.
    stage.tables += unit.kind is not UnitKind.GATEWAY
    stage.sram += need.sram + sum(memory.of_register(each).sram for each in new)
    stage.tcam += need.tcam
    stage.registers |= new
