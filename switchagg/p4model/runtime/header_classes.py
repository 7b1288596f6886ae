"""Python classes for the headers, structs and unions of a program, generated as source text.

    class ethernet_t_1:                       a header
        __slots__ = ("valid", "f_dst", ...)   fields are prefixed, so that none can clash with a method
        reset, assign, copy, make             values
        set_valid, set_invalid                headers only
        extract(packet), emit(out)            structs and stacks emit too

A header is a whole number of bytes: a Tofino's compiler pads one that has `@flexible` (here with zeros at
its end) and refuses others, as bmv2's does. A header that begins at a whole byte and needs no padding is
unpacked by one `struct` call, and fields that share bytes are cut out of what it gave. Any other comes from
`PacketIn.take` as one number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from switchagg.p4model.errors import P4Error
from switchagg.p4model.runtime.values import (
    HEADER_TOO_SHORT,
    PACKET_TOO_SHORT,
    PARSER_INVALID_ARGUMENT,
    ParserReject,
    Stack,
    signed,
)
from switchagg.p4model.types import (
    BoolType,
    FieldsType,
    HeaderType,
    IntType,
    StackType,
    TupleType,
    Type,
    UnionType,
    VarbitType,
    underlying,
    width_of,
)

_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
# Beyond this, one `from_bytes` is quicker than pieces of 64 bits put together.
_WIDEST_UNIT = 128


def is_aggregate(type_: Type) -> bool:
    """Returns True if values are objects that are assigned by copy."""
    return isinstance(underlying(type_), FieldsType | StackType)


def mask(width: int) -> str:
    """Returns the literal with `width` ones."""
    return hex((1 << width) - 1)


def from_pattern(type_: Type, code: str) -> str:
    """Returns code that reads a bit pattern of the right width as a value of a scalar type."""
    base = underlying(type_)
    if isinstance(base, IntType):
        half = 1 << (base.width - 1)
        return f"(({code}) ^ {half:#x}) - {half:#x}"
    if isinstance(base, BoolType):
        return f"({code}) == 1"
    return code


def to_pattern(type_: Type, code: str) -> str:
    """Returns code of the bit pattern of a scalar value."""
    base = underlying(type_)
    if isinstance(base, IntType):
        return f"({code} & {mask(base.width)})"
    if isinstance(base, BoolType):
        return f"({code} and 1 or 0)"
    return code


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar in a header: the path to it from the object, with its leading dot, and its type."""

    path: str
    type: Type
    width: int

    @property
    def varbit(self) -> bool:
        """True if its size is not fixed; `width` is the largest then."""
        return isinstance(underlying(self.type), VarbitType)


def leaves(type_: Type, path: str = "") -> list[Leaf]:
    """Returns all scalars of a header or of a struct inside of one, in order."""
    base = underlying(type_)
    if isinstance(base, FieldsType):
        return [leaf for each in base.fields for leaf in leaves(each.type, f"{path}.f_{each.name}")]
    width = width_of(base)
    return [Leaf(path, type_, 32 if width is None else width)]


class HeaderClasses:
    """Makes the classes on demand, in `namespace`; `emit.Target` explains the options."""

    def __init__(
        self, namespace: dict[str, Any], *, clear_on_valid: bool, on_length: bool, pads_flexible: bool
    ) -> None:
        self._namespace = namespace
        self._names: dict[int, str] = {}
        self._keep: list[Type] = []
        self._clear_on_valid = clear_on_valid
        self._on_length = on_length
        self._pads_flexible = pads_flexible
        namespace.update(Stack=Stack, ParserReject=ParserReject, signed=signed)
        self.source: list[str] = []

    def name(self, type_: FieldsType) -> str:
        """Returns the name of this type's class in the namespace.

        Raises P4Error for a header that is no whole number of bytes.
        """
        known = self._names.get(id(type_))
        if known is not None:
            return known
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', type_.name) or 'struct'}_{len(self._names)}"
        self._names[id(type_)] = name
        self._keep.append(type_)
        for each in type_.fields:
            self.default(each.type)
        if isinstance(type_, HeaderType):
            lines = self._header(name, type_)
        elif isinstance(type_, UnionType):
            lines = self._union(name, type_)
        else:
            lines = self._struct(name, type_)
        text = "\n".join(lines) + "\n"
        self.source.append(text)
        exec(compile(text, f"<{type_.name}>", "exec"), self._namespace)
        return name

    def cls(self, type_: FieldsType) -> Any:
        """Returns the class of this type."""
        return self._namespace[self.name(type_)]

    def default(self, type_: Type) -> str:
        """Returns code for the value of a variable without initializer: zero, invalid."""
        base = underlying(type_)
        if isinstance(base, FieldsType):
            return f"{self.name(base)}()"
        if isinstance(base, StackType):
            return f"Stack({self.name(base.element)}, {base.size})"
        if isinstance(base, BoolType):
            return "False"
        if isinstance(base, VarbitType):
            return "(0, 0)"
        if isinstance(base, TupleType):
            return f"({''.join(self.default(each) + ', ' for each in base.elements)})"
        return "0"

    # ---- the parts of a class ----

    def _common(self, name: str, type_: FieldsType, *, header: bool = False) -> list[str]:
        slots = ["valid"] * header + [f"f_{each.name}" for each in type_.fields]
        invalid = ["        self.valid = False"] * header
        initial = [f"        self.f_{each.name} = {self.default(each.type)}" for each in type_.fields]
        cleared = [
            f"        self.f_{each.name}.reset()" if is_aggregate(each.type) else line
            for each, line in zip(type_.fields, initial, strict=True)
        ]
        lines = [f"class {name}:", f"    __slots__ = ({', '.join(map(repr, slots))}{',' if slots else ''})"]
        lines += ["    def __init__(self):", *invalid, *initial, "        pass"]
        lines += ["    def reset(self):", *invalid, *cleared, "        pass"]
        lines += ["    def copy(self):", "        new = self.__class__()", "        new.assign(self)"]
        return [*lines, "        return new", "    __hash__ = None", "    def assign(self, o):"]

    def _copies(self, type_: FieldsType, indent: str) -> list[str]:
        lines = []
        for each in type_.fields:
            if is_aggregate(each.type):
                lines.append(f"{indent}self.f_{each.name}.assign(o.f_{each.name})")
            else:
                lines.append(f"{indent}self.f_{each.name} = o.f_{each.name}")
        return lines or [f"{indent}pass"]

    def _make(self, name: str, type_: FieldsType, *, header: bool = False) -> list[str]:
        names = [f"a{position}" for position in range(len(type_.fields))]
        lines = [f"    def make({', '.join(names)}):", f"        new = {name}.__new__({name})"]
        lines += ["        new.valid = True"] * header
        for argument, each in zip(names, type_.fields, strict=True):
            lines.append(f"        new.f_{each.name} = {argument}")
        return [*lines, "        return new", "    make = staticmethod(make)"]

    def _equal(self, type_: FieldsType, *, header: bool = False) -> list[str]:
        same = " and ".join(f"self.f_{each.name} == o.f_{each.name}" for each in type_.fields) or "True"
        test = f"(self.valid and o.valid and {same}) or not (self.valid or o.valid)" if header else same
        return ["    def __eq__(self, o):", f"        return {test}"]

    def _struct(self, name: str, type_: FieldsType) -> list[str]:
        lines = [*self._common(name, type_), *self._copies(type_, "        ")]
        lines += [*self._make(name, type_), *self._equal(type_), "    def emit(self, out):"]
        lines += [f"        self.f_{each.name}.emit(out)" for each in type_.fields if is_aggregate(each.type)]
        return [*lines, "        pass"]

    def _union(self, name: str, type_: UnionType) -> list[str]:
        fields = [each.name for each in type_.fields]
        lines = [*self._common(name, type_), *self._copies(type_, "        ")]
        lines += ["    @property", "    def valid(self):"]
        lines += [f"        return {' or '.join(f'self.f_{each}.valid' for each in fields) or 'False'}"]
        # Making one header valid makes the others invalid.
        for each in fields:
            others = [f"        self.f_{other}.valid = False" for other in fields if other != each]
            lines += [f"    def only_{each}(self):", *others, f"        return self.f_{each}"]
        lines += [*self._equal(type_), "    def emit(self, out):"]
        return [*lines, *(f"        self.f_{each}.emit(out)" for each in fields), "        pass"]

    def _header(self, name: str, type_: HeaderType) -> list[str]:
        lines = self._common(name, type_, header=True)
        lines += ["        if o.valid:", "            self.valid = True"]
        lines += [*self._copies(type_, "            "), "        else:", "            self.valid = False"]
        lines += [*self._make(name, type_, header=True), *self._equal(type_, header=True)]
        cells = leaves(type_)
        varbits = [leaf for leaf in cells if leaf.varbit]
        size = sum(leaf.width for leaf in cells if not leaf.varbit)
        padding = self._padding(type_, sum(leaf.width for leaf in cells))
        lines += ["    def set_valid(self):", "        if not self.valid:"]
        lines += ["            self.reset()"] * self._clear_on_valid + ["            self.valid = True"]
        lines += [f"            on_length({size // 8})"] * self._on_length
        lines += ["    def set_invalid(self):", "        if self.valid:", "            self.valid = False"]
        lines += [f"            on_length(-{size // 8})"] * self._on_length
        if varbits:
            return lines + self._variable(cells, size, padding)
        return lines + self._fixed(name, cells, size, padding)

    def _padding(self, type_: HeaderType, width: int) -> int:
        marks = [*type_.annotations, *(mark for each in type_.fields for mark in each.annotations)]
        if width % 8 and not (self._pads_flexible and any(mark.name == "flexible" for mark in marks)):
            hint = ", or is @flexible" if self._pads_flexible else ""
            raise P4Error(
                f"header {type_.name} has {width} bits; accepted: a multiple of 8{hint}", type_.location
            )
        return -width % 8

    def _fixed(self, name: str, cells: list[Leaf], size: int, padding: int) -> list[str]:
        lines = ["    def bits(self):", f"        return {_placed(cells) or '0'}"]
        lines += ["    def set_bits(self, v):", *(f"        {line}" for line in _numbered(cells))]
        lines += ["        self.valid = True"]
        if padding or not size:
            whole = size + padding
            lines += ["    def extract(self, packet):"]
            lines += [f"        self.set_bits(packet.take({whole}) >> {padding})"]
            lines += ["    def emit(self, out):", "        if self.valid:"]
            return [*lines, f"            out.put(self.bits() << {padding}, {whole})"]
        units = _units(cells)
        form = struct.Struct(">" + "".join(unit.format for unit in units))
        self._namespace[f"{name}_unpack"], self._namespace[f"{name}_pack"] = form.unpack_from, form.pack
        lines += ["    def extract(self, packet):", "        p = packet.position", f"        e = p + {size}"]
        lines += ["        if e > packet.end:", f"            raise ParserReject({PACKET_TOO_SHORT})"]
        lines += ["        packet.position = e", "        if p & 7:", "            packet.position = p"]
        lines += [f"            self.set_bits(packet.take({size}))", "            return"]
        targets = [target for number, unit in enumerate(units) for target in unit.targets(number)]
        lines += [f"        {', '.join(targets)}, = {name}_unpack(packet.data, p >> 3)"]
        lines += [f"        {line}" for number, unit in enumerate(units) for line in unit.reads(number)]
        lines += ["        self.valid = True"]
        values = [value for unit in units for value in unit.values()]
        lines += ["    def emit(self, out):", "        if self.valid:"]
        return [*lines, f"            out.put_bytes({name}_pack({', '.join(values)}))"]

    def _variable(self, cells: list[Leaf], size: int, padding: int) -> list[str]:
        limit = sum(leaf.width for leaf in cells if leaf.varbit)
        lines = ["    def extract(self, packet, n=0):"]
        lines += ["        if n & 7:", f"            raise ParserReject({PARSER_INVALID_ARGUMENT})"]
        lines += [f"        if packet.position + {size + padding} + n > packet.end:"]
        lines += [f"            raise ParserReject({PACKET_TOO_SHORT})"]
        lines += [f"        if n > {limit}:", f"            raise ParserReject({HEADER_TOO_SHORT})"]
        for leaf in cells:
            taken = from_pattern(leaf.type, f"packet.take({leaf.width})")
            lines.append(f"        self{leaf.path} = {'(n, packet.take(n))' if leaf.varbit else taken}")
        lines += [f"        packet.advance({padding})"] * bool(padding)
        lines += ["        self.valid = True", "    def emit(self, out):", "        if self.valid:"]
        for leaf in cells:
            fixed = f"{to_pattern(leaf.type, 'self' + leaf.path)}, {leaf.width}"
            put = f"self{leaf.path}[1], self{leaf.path}[0]" if leaf.varbit else fixed
            lines.append(f"            out.put({put})")
        return [*lines, *[f"            out.put(0, {padding})"] * bool(padding)]


def concatenated(pieces: Iterable[tuple[str, int]]) -> str:
    """Returns code of the number that bit patterns one after the other are, each (code, width)."""
    terms, left = [], 0
    for code, width in reversed(list(pieces)):
        terms.append(f"{code} << {left}" if left else code)
        left += width
    return " | ".join(reversed(terms))


def _placed(cells: list[Leaf]) -> str:
    """Returns code of the leaves' patterns as one number."""
    return concatenated((to_pattern(leaf.type, "self" + leaf.path), leaf.width) for leaf in cells)


def _numbered(cells: list[Leaf]) -> list[str]:
    """Returns assignments that take the leaves out of the number `v`."""
    total, lines = sum(leaf.width for leaf in cells), []
    for leaf in cells:
        total -= leaf.width
        lines.append(f"self{leaf.path} = {from_pattern(leaf.type, f'v >> {total} & {mask(leaf.width)}')}")
    return lines


@dataclass(slots=True)
class _Unit:
    """Leaves that together are whole bytes, and the `struct` codes that they are read with."""

    cells: list[Leaf]
    width: int

    @property
    def pieces(self) -> list[int]:
        if self.width > _WIDEST_UNIT:
            return [self.width]
        left, sizes = self.width, []
        for size in (64, 32, 16, 8):
            while left >= size:
                sizes.append(size)
                left -= size
        return sizes

    @property
    def format(self) -> str:
        if self.width > _WIDEST_UNIT:
            return f"{self.width // 8}s"
        return "".join(_CODES[size] for size in self.pieces)

    @property
    def plain(self) -> bool:
        """True if there is one leaf, exactly as `struct` gives it."""
        return (
            len(self.cells) == 1
            and self.width in _CODES
            and not isinstance(underlying(self.cells[0].type), IntType | BoolType)
        )

    def targets(self, number: int) -> list[str]:
        if self.plain:
            return [f"self{self.cells[0].path}"]
        return [f"u{number}_{piece}" for piece in range(len(self.pieces))]

    def reads(self, number: int) -> list[str]:
        if self.plain:
            return []
        whole = concatenated(zip(self.targets(number), self.pieces, strict=True))
        if self.width > _WIDEST_UNIT:
            whole = f"int.from_bytes(u{number}_0, 'big')"
        return [f"v = {whole}", *_numbered(self.cells)]

    def values(self) -> list[str]:
        if self.plain:
            return [f"self{self.cells[0].path}"]
        whole = _placed(self.cells)
        if self.width > _WIDEST_UNIT:
            return [f"({whole}).to_bytes({self.width // 8}, 'big')"]
        if len(self.pieces) == 1:
            return [whole]
        left, values = self.width, []
        for size in self.pieces:
            left -= size
            shifted = f"({whole}) >> {left}" if left else f"({whole})"
            values.append(f"{shifted} & {mask(size)}")
        return values


def _units(cells: list[Leaf]) -> list[_Unit]:
    units: list[_Unit] = []
    group: list[Leaf] = []
    for leaf in cells:
        group.append(leaf)
        width = sum(each.width for each in group)
        if width % 8 == 0 and width:
            units.append(_Unit(group, width))
            group = []
    if group and units:
        units[-1].cells.extend(group)
    return units
