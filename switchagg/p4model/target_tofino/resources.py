"""The sizes of a Tofino 1, and estimates of the memory and header bits that a program needs.

Sizes are those of public sources: the TNA documentation and the open-source compiler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from switchagg.p4model import ir, walk
from switchagg.p4model.ast import find_annotation
from switchagg.p4model.p4info import DEFAULT_TABLE_SIZE
from switchagg.p4model.target_tofino.logical_tables import LogicalTable
from switchagg.p4model.types import Direction, FieldsType, StackType, StructType, width_of

STAGES: Final = 12
LOGICAL_TABLES: Final = 16
"""of a stage, tables and gateways with a result of their own together"""
STATEFUL_ALUS: Final = 4
"""of a stage, one for each register"""
REGISTER_ACTIONS: Final = 4
"""of a register"""
SRAM_BLOCKS: Final = 80
"""of a stage"""
SRAM_ROWS: Final = 1024
SRAM_ROW_BITS: Final = 128
TCAM_BLOCKS: Final = 24
"""of a stage"""
TCAM_ROWS: Final = 512
TCAM_ROW_BITS: Final = 44
PHV_CONTAINERS: Final = {32: 64, 16: 96, 8: 64}
"""Containers of a pipeline by width; ingress and egress share them."""
PHV_BITS: Final = sum(width * count for width, count in PHV_CONTAINERS.items())
"""4,096"""
COMPARISONS: Final = 2
"""of a stateful ALU's program"""
PHV_OPERANDS: Final = 2
"""fields of the packet that a stateful ALU's program can use, besides the index"""
UPDATES: Final = 2
"""different new values of one half of a register's word, each under a predicate"""
_ENTRY_OVERHEAD = 12
"""bits of an entry beside key and data: version and pointer to the action"""


@dataclass(frozen=True, slots=True)
class Memory:
    """Blocks."""

    sram: int = 0
    tcam: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.sram + other.sram, self.tcam + other.tcam)


def table_memory(logical: LogicalTable) -> Memory:
    """Memory for a table's keys and action data, without registers."""
    table = logical.table
    if table is None or not table.keys:
        return Memory()
    key = sum(width_of(each.expr.type) or 0 for each in table.keys)
    data = max((_data_bits(ref.action) for ref in table.actions), default=0)
    entries = max(len(table.entries), 1) if table.const_entries else table.size or DEFAULT_TABLE_SIZE
    if any(each.match_kind in ("ternary", "lpm", "range", "optional") for each in table.keys):
        wide = _up(key, TCAM_ROW_BITS)
        return Memory(_blocks(entries, data), wide * _up(entries, TCAM_ROWS))
    if key <= 10:
        # A key that can index a block directly needs no hash.
        return Memory(_up((1 << key) * max(data, 1), SRAM_ROWS * SRAM_ROW_BITS))
    width = key + data + _ENTRY_OVERHEAD
    across = _up(width, SRAM_ROW_BITS)
    packed = max(SRAM_ROW_BITS * across // width, 1)
    ways = max(_up(entries, packed * SRAM_ROWS), 4 if entries > packed * SRAM_ROWS // 4 else 2)
    return Memory(ways * across)


def register_memory(register: ir.ExternInstance) -> Memory:
    """A register's words of a power of two bits, and one block more to read and write in the same cycle."""
    size = register.args.get("size")
    width = width_of(register.type.type_args[0]) or 0
    count = size if isinstance(size, int) else DEFAULT_TABLE_SIZE
    return Memory(_blocks(count, 1 << max(width - 1, 0).bit_length()) + 1)


def counter_memory(counter: ir.ExternInstance) -> Memory:
    """An indirect counter, 64 bits a cell (packets and bytes: 128)."""
    size = counter.args.get("size")
    unit = counter.args.get("type")
    both = isinstance(unit, ir.EnumLiteral) and unit.name == "PACKETS_AND_BYTES"
    return Memory(_blocks(size if isinstance(size, int) else DEFAULT_TABLE_SIZE, 64 if both else 32) + 1)


def _data_bits(action: ir.Action) -> int:
    return sum(width_of(each.type) or 0 for each in action.params if each.direction is Direction.NONE)


def _blocks(count: int, width: int) -> int:
    return _up(count * width, SRAM_ROWS * SRAM_ROW_BITS) if width else 0


def _up(value: int, by: int) -> int:
    return -(-value // by)


def phv_bits(blocks: Iterable[ir.BlockInstance | None]) -> int:
    """Bits of headers and of used metadata in the blocks of ingress, or of egress.

    A header that is extracted or made valid counts whole, in whole bytes. Other
    fields count if something mentions them, rounded up to containers of 8, 16 and 32 bits.
    """
    headers: dict[str, int] = {}
    mentioned: dict[str, int] = {}
    for block in blocks:
        for node in walk.nodes(*_bodies(block)) if block is not None else ():
            match node:
                case ir.MethodCall(method=method, args=args) if method.name == "extract":
                    if args[0].value is not None:
                        _header(args[0].value, headers)
                case ir.BuiltinCall(builtin=ir.Builtin.SET_VALID, base=base):
                    _header(base, headers)
                case ir.FieldAccess(base=base, name=name) if isinstance(base.type, StructType):
                    width = width_of(node.type)
                    if width is not None and not isinstance(node.type, FieldsType | StackType):
                        mentioned[f"{base.type.name}.{name}"] = width
                case ir.Declare(variable=variable):
                    mentioned[f"{variable.name}@{node.location}"] = width_of(variable.type) or 0
                case _:
                    pass
    return sum(headers.values()) + sum(map(_container, mentioned.values()))


def _header(expr: ir.Expr, found: dict[str, int]) -> None:
    """Adds a header by the struct that it is a field of, and its name there; of a stack, all of it."""
    if isinstance(expr, ir.StackNext | ir.StackLast | ir.Index):
        expr = expr.base
    if find_annotation(getattr(expr.type, "annotations", ()), "__intrinsic_metadata") is not None:
        return
    name = f"{expr.base.type}.{expr.name}" if isinstance(expr, ir.FieldAccess) else str(expr.type)
    count = expr.type.size if isinstance(expr.type, StackType) else 1
    element = expr.type.element if isinstance(expr.type, StackType) else expr.type
    found[name] = count * -(-(width_of(element) or 0) // 8) * 8


def _bodies(block: ir.BlockInstance) -> list[object]:
    if isinstance(block, ir.ParserInstance):
        states = block.states.values()
        return [block.prologue, *(each.body for each in states), *(each.transition for each in states)]
    bodies: list[object] = [block.prologue, block.body]
    bodies += [each.body for each in block.actions]
    bodies += [key.expr for table in block.tables for key in table.keys]
    for instance in block.instances:
        if isinstance(instance, ir.ControlInstance):
            bodies += _bodies(instance)
        elif isinstance(instance, ir.ExternInstance):
            bodies += [each.body for each in instance.methods.values()]
    return bodies


def _container(width: int) -> int:
    whole, rest = divmod(width, 32)
    return whole * 32 + next(each for each in (0, 8, 16, 32) if rest <= each)
