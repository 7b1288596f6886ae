"""The stage of each logical table, from the dependencies between tables and the room in a stage.

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
from switchagg.p4model.target_tofino import resources
from switchagg.p4model.target_tofino.logical_tables import LogicalTable, TableKind
from switchagg.p4model.target_tofino.resources import Memory, register_memory, table_memory


@dataclass(slots=True)
class PlacedTable:
    """A logical table and its stage; `because` is the dependency that put it there."""

    table: LogicalTable
    stage: int
    because: str
    memory: Memory


@dataclass(slots=True)
class _Stage:
    tables: int = 0
    sram: int = 0
    tcam: int = 0
    registers: set[ir.ExternInstance] = field(default_factory=set)


def dependency(earlier: LogicalTable, later: LogicalTable) -> tuple[int, str] | None:
    """The least distance in stages between the two, and the reason; None if they are independent."""
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


def place(tables: Sequence[LogicalTable]) -> list[PlacedTable]:
    """Puts every logical table into the first stage that its dependencies and the room allow."""
    floor = {id(each): 0 for each in tables}
    for _ in range(len(tables) + 1):
        placed = _attempt(tables, floor)
        moved = False
        for each in placed:
            together = [
                other.stage for other in placed if each.table.registers.keys() & other.table.registers.keys()
            ]
            target = max(together, default=each.stage)
            if target > each.stage and floor[id(each.table)] < target:
                floor[id(each.table)] = target
                moved = True
        if not moved:
            return placed
    return placed


def _attempt(tables: Sequence[LogicalTable], floor: dict[int, int]) -> list[PlacedTable]:
    stages: list[_Stage] = []
    placed: list[PlacedTable] = []
    for logical in tables:
        earliest, because = floor[id(logical)], "its register is there" if floor[id(logical)] else ""
        for before in placed:
            found = dependency(before.table, logical)
            if found is not None and before.stage + found[0] > earliest:
                earliest, because = before.stage + found[0], found[1]
        need = table_memory(logical)
        at = earliest
        while at < len(stages) and not _fits(stages[at], logical, need):
            at += 1
        stages.extend(_Stage() for _ in range(at + 1 - len(stages)))
        _take(stages[at], logical, need)
        reason = because if at == earliest else f"no room before ({because})"
        placed.append(PlacedTable(logical, at, reason, need))
    return placed


def _fits(stage: _Stage, logical: LogicalTable, need: Memory) -> bool:
    new = set(logical.registers) - stage.registers
    empty = not stage.tables
    blocks = need.sram + sum(register_memory(each).sram for each in new)
    return (
        stage.tables + (logical.kind is not TableKind.GATEWAY) <= resources.LOGICAL_TABLES
        and len(stage.registers | new) <= resources.STATEFUL_ALUS
        and (empty or stage.sram + blocks <= resources.SRAM_BLOCKS)
        and (empty or stage.tcam + need.tcam <= resources.TCAM_BLOCKS)
    )


def _take(stage: _Stage, logical: LogicalTable, need: Memory) -> None:
    new = set(logical.registers) - stage.registers
    # A gateway is a part of the table that it decides on.
    stage.tables += logical.kind is not TableKind.GATEWAY
    stage.sram += need.sram + sum(register_memory(each).sram for each in new)
    stage.tcam += need.tcam
    stage.registers |= new
