"""How much memory a logical table and a register need: SRAM and TCAM blocks, and bits of the packet
header vector.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchagg.p4model import ir
from switchagg.p4model.p4info import DEFAULT_TABLE_SIZE
from switchagg.p4model.target_tofino import limits
from switchagg.p4model.target_tofino.flow import Unit
from switchagg.p4model.types import Direction, width_of

_ENTRY_OVERHEAD = 12
"""bits of an entry beside key and data: version and pointer to the action"""


@dataclass(frozen=True, slots=True)
class Memory:
    """Blocks."""

    sram: int = 0
    tcam: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.sram + other.sram, self.tcam + other.tcam)


def of_table(unit: Unit) -> Memory:
    """What a table's entries, counters and the rest of its indirect data need; registers not included."""
    table = unit.table
    if table is None or not table.keys:
        return Memory()
    key = sum(width_of(each.expr.type) or 0 for each in table.keys)
    data = max((_data_bits(ref.action) for ref in table.actions), default=0)
    entries = max(len(table.entries), 1) if table.const_entries else table.size or DEFAULT_TABLE_SIZE
    if any(each.match_kind in ("ternary", "lpm", "range", "optional") for each in table.keys):
        wide = _up(key, limits.TCAM_ROW_BITS)
        return Memory(_blocks(entries, data), wide * _up(entries, limits.TCAM_ROWS))
    if key <= 10:
        # A key that can index a block directly needs no hash, and no ways.
        return Memory(_up((1 << key) * max(data, 1), limits.SRAM_ROWS * limits.SRAM_ROW_BITS))
    width = key + data + _ENTRY_OVERHEAD
    across = _up(width, limits.SRAM_ROW_BITS)
    packed = max(limits.SRAM_ROW_BITS * across // width, 1)
    ways = max(_up(entries, packed * limits.SRAM_ROWS), 4 if entries > packed * limits.SRAM_ROWS // 4 else 2)
    return Memory(ways * across)


def of_register(register: ir.ExternInstance) -> Memory:
    """A register's words, and the one block more that lets it read and write in the same cycle."""
    size = register.args.get("size")
    width = width_of(register.type.type_args[0]) or 0
    count = size if isinstance(size, int) else DEFAULT_TABLE_SIZE
    return Memory(_blocks(count, _power(width)) + 1)


def of_counter(counter: ir.ExternInstance) -> Memory:
    """An indirect counter, 64 bits a cell (packets and bytes: 128)."""
    size = counter.args.get("size")
    unit = counter.args.get("type")
    both = isinstance(unit, ir.EnumLiteral) and unit.name == "PACKETS_AND_BYTES"
    return Memory(_blocks(size if isinstance(size, int) else DEFAULT_TABLE_SIZE, 64 if both else 32) + 1)


def _data_bits(action: ir.Action) -> int:
    return sum(width_of(each.type) or 0 for each in action.params if each.direction is Direction.NONE)


def _blocks(count: int, width: int) -> int:
    return _up(count * width, limits.SRAM_ROWS * limits.SRAM_ROW_BITS) if width else 0


def _power(width: int) -> int:
    power = 1
    while power < width:
        power *= 2
    return power


def _up(value: int, by: int) -> int:
    return -(-value // by)
