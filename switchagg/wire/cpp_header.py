"""Writes the wire format as a C++ header: ``python -m switchagg.wire.cpp_header`` makes ``wire.h``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from switchagg.wire import header as wire

PATH = Path(__file__).parents[1] / "native" / "shared" / "wire.h"

_CONSTANTS = {
    "kVersion": wire.VERSION,
    "kHeaderBytes": wire.HEADER_BYTES,
    "kDefaultPort": wire.DEFAULT_PORT,
    "kMinWords": wire.MIN_WORDS,
    "kMaxWords": wire.MAX_WORDS,
    "kMaxWorkers": wire.MAX_WORKERS,
    "kMaxPacketBytes": wire.MAX_UDP_PAYLOAD,
}

_HEAD = """\
// Generated from switchagg/wire/header.py by `python -m switchagg.wire.cpp_header`. Do not edit.
#pragma once

#include <cstdint>
#include <cstring>

namespace switchagg::wire {
"""

_ENDIAN = """\
// Big-endian words in memory; x86 and little-endian Arm swap, others do not.
inline uint16_t load16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, 2);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(value) : value;
}

inline uint32_t load32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
}

inline void store16(uint8_t* at, uint16_t value) {
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap16(value);
  std::memcpy(at, &value, 2);
}

inline void store32(uint8_t* at, uint32_t value) {
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap32(value);
  std::memcpy(at, &value, 4);
}
"""


def _byte_fields() -> list[list[tuple[wire.Field, int]]]:
    """Groups the fields that share a byte: [[(version, byte 0), (op, byte 0)], [(flags, byte 1)], ...]."""
    groups: list[list[tuple[wire.Field, int]]] = []
    bit = 0
    for field in wire.FIELDS:
        if bit % 8 == 0:
            groups.append([])
        groups[-1].append((field, bit // 8))
        bit += field.bits
    return groups


def _member_type(field: wire.Field) -> str:
    return f"uint{max(field.bits, 8)}_t"


def _header_struct() -> Iterable[str]:
    groups = _byte_fields()
    yield "// Every value of each field is representable, so that a checker sees what was really sent."
    yield "struct Header {"
    for field in wire.FIELDS:
        default = "kVersion" if field.name == "version" else "0"
        yield f"  {_member_type(field)} {field.name} = {default};  // {field.meaning}"
    yield ""
    yield "  // `at` has kHeaderBytes bytes."
    yield "  static Header parse(const uint8_t* at) {"
    yield "    Header header;"
    for group in groups:
        shift = sum(field.bits for field, _ in group)
        for field, byte in group:
            shift -= field.bits
            if len(group) > 1:
                value = (
                    f"(at[{byte}] >> {shift}) & {2**field.bits - 1:#x}"
                    if shift
                    else f"at[{byte}] & {2**field.bits - 1:#x}"
                )
            else:
                value = f"at[{byte}]" if field.bits == 8 else f"load{field.bits}(at + {byte})"
            yield f"    header.{field.name} = {value};"
    yield "    return header;"
    yield "  }"
    yield ""
    yield "  void write(uint8_t* at) const {"
    for group in groups:
        if len(group) > 1:
            shift = sum(field.bits for field, _ in group)
            parts = []
            for field, _ in group:
                shift -= field.bits
                parts.append(f"{field.name} << {shift}" if shift else field.name)
            yield f"    at[{group[0][1]}] = static_cast<uint8_t>({' | '.join(parts)});"
            continue
        field, byte = group[0]
        yield (
            f"    at[{byte}] = {field.name};"
            if field.bits == 8
            else f"    store{field.bits}(at + {byte}, {field.name});"
        )
    yield "  }"
    yield "};"


def _enum(name: str, members: Iterable[tuple[str, int]], comment: str) -> Iterable[str]:
    yield f"// {comment}"
    yield f"enum class {name} : uint8_t {{"
    for member, value in members:
        yield f"  {member} = {value},"
    yield "};"


def generate() -> str:
    """Returns the text of ``switchagg/native/shared/wire.h``."""
    lines: list[str] = [_HEAD.rstrip("\n"), ""]
    lines += [f"inline constexpr uint32_t {name} = {value};" for name, value in _CONSTANTS.items()]
    lines += ["", "// Offsets of fields in bytes; version and op share the first one."]
    for group in _byte_fields():
        for field, byte in group:
            lines.append(f"inline constexpr uint32_t k{field.name.capitalize()}Offset = {byte};")
    lines += ["", *_enum("Op", ((op.name, op.value) for op in wire.Op), "Operations of packets.")]
    lines += ["", "// Bits of Header::flags."]
    lines += [
        f"inline constexpr uint8_t kFlag{flag.name.capitalize()} = {flag.value};"
        for flag in wire.Flag
        if flag.name
    ]
    lines += [""]
    reasons = [(reason.value, index) for index, reason in enumerate(wire.DropReason)]
    lines += _enum(
        "DropReason",
        [*reasons, ("none", 255)],
        "Reasons for which a switch drops a packet, in the order of its checks.",
    )
    lines += [""]
    events = [(event.value, len(reasons) + index) for index, event in enumerate(wire.Event)]
    lines += _enum(
        "Event",
        events,
        "Other counters of a switch, numbered after DropReason, so that one array holds both.",
    )
    lines += ["", f"inline constexpr uint32_t kCounters = {len(wire.COUNTERS)};"]
    lines += ["inline constexpr const char* kCounterNames[kCounters] = {"]
    lines += [f'    "{name}",' for name in wire.COUNTERS]
    lines += ["};", "", _ENDIAN, *_header_struct(), "", "}  // namespace switchagg::wire", ""]
    return "\n".join(lines)


def main() -> None:
    """Rewrites the header beside the native sources."""
    PATH.write_text(generate())


if __name__ == "__main__":
    main()
