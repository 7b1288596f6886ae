"""Writes the wire format as a C++ header: ``python -m switchagg.wire.cpp_header`` makes ``wire.h``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, groupby
from pathlib import Path

from switchagg.wire import header as wire

PATH = Path(__file__).parents[1] / "native" / "shared" / "wire.h"

_TEXT = """\
// Generated from switchagg/wire/header.py by `python -m switchagg.wire.cpp_header`. Do not edit.
#pragma once

#include <cstdint>
#include <cstring>

namespace switchagg::wire {{

inline constexpr uint32_t kVersion = {wire.VERSION};
inline constexpr uint32_t kHeaderBytes = {wire.HEADER_BYTES};
inline constexpr uint32_t kDefaultPort = {wire.DEFAULT_PORT};
inline constexpr uint32_t kMinWords = {wire.MIN_WORDS};
inline constexpr uint32_t kMaxWords = {wire.MAX_WORDS};
inline constexpr uint32_t kMaxWorkers = {wire.MAX_WORKERS};
inline constexpr uint32_t kBlockSlots = {wire.BLOCK_SLOTS};
inline constexpr uint32_t kMaxPacketBytes = {wire.MAX_UDP_PAYLOAD};

// Offsets of fields in bytes; version and op share the first one.
{offsets}

// Operations of packets.
enum class Op : uint8_t {{
{ops}
}};

// Bits of Header::flags.
{flags}

// Reasons for which a switch drops a packet, in the order of its checks.
enum class DropReason : uint8_t {{
{reasons}
  none = 255,
}};

// Other counters of a switch, numbered after DropReason, so that one array holds both.
enum class Event : uint8_t {{
{events}
}};

inline constexpr uint32_t kCounters = {count};
inline constexpr const char* kCounterNames[kCounters] = {{
{names}
}};

// Big-endian words in memory; x86 and little-endian Arm swap, others do not.
inline uint16_t load16(const uint8_t* at) {{
  uint16_t value;
  std::memcpy(&value, at, 2);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(value) : value;
}}

inline uint32_t load32(const uint8_t* at) {{
  uint32_t value;
  std::memcpy(&value, at, 4);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
}}

inline void store16(uint8_t* at, uint16_t value) {{
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap16(value);
  std::memcpy(at, &value, 2);
}}

inline void store32(uint8_t* at, uint32_t value) {{
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap32(value);
  std::memcpy(at, &value, 4);
}}

// Every value of each field is representable, so that a checker sees what was really sent.
struct Header {{
{members}

  // `at` has kHeaderBytes bytes.
  static Header parse(const uint8_t* at) {{
    Header header;
{parse}
    return header;
  }}

  void write(uint8_t* at) const {{
{write}
  }}
}};

}}  // namespace switchagg::wire
"""


def _member(field: wire.Field) -> str:
    default = "kVersion" if field.name == "version" else "0"
    return f"  uint{max(field.bits, 8)}_t {field.name} = {default};  // {field.meaning}"


def _load(field: wire.Field, byte: int, shift: int) -> str:
    if field.bits > 8:
        return f"load{field.bits}(at + {byte})"
    if field.bits == 8:
        return f"at[{byte}]"
    return (f"(at[{byte}] >> {shift})" if shift else f"at[{byte}]") + f" & {2**field.bits - 1:#x}"


def _store(byte: int, fields: list[tuple[wire.Field, int]]) -> str:
    bits, name = fields[0][0].bits, fields[0][0].name
    if bits > 8:
        return f"store{bits}(at + {byte}, {name})"
    parts = " | ".join(f"{field.name} << {shift}" if shift else field.name for field, shift in fields)
    return f"at[{byte}] = " + (name if bits == 8 else f"static_cast<uint8_t>({parts})")


def generate() -> str:
    """Returns the text of ``switchagg/native/shared/wire.h``."""
    starts = accumulate((field.bits for field in wire.FIELDS), initial=0)
    # Each field with its first byte, and the number of bits behind it in that byte.
    placed = [(f, start // 8, -(start + f.bits) % 8) for f, start in zip(wire.FIELDS, starts, strict=False)]
    shared = [
        (byte, [(f, shift) for f, _, shift in at]) for byte, at in groupby(placed, lambda each: each[1])
    ]

    def enum(names: Iterable[str], first: int = 0) -> str:
        return "\n".join(f"  {name} = {value}," for value, name in enumerate(names, first))

    return _TEXT.format(
        wire=wire,
        offsets="\n".join(
            f"inline constexpr uint32_t k{f.name.capitalize()}Offset = {byte};" for f, byte, _ in placed
        ),
        ops="\n".join(f"  {op.name} = {op.value}," for op in wire.Op),
        flags="\n".join(
            f"inline constexpr uint8_t kFlag{name.capitalize()} = {flag.value};"
            for name, flag in wire.Flag.__members__.items()
        ),
        reasons=enum(wire.DropReason),
        events=enum(wire.Event, len(wire.DropReason)),
        count=len(wire.COUNTERS),
        names="\n".join(f'    "{name}",' for name in wire.COUNTERS),
        members="\n".join(map(_member, wire.FIELDS)),
        parse="\n".join(f"    header.{f.name} = {_load(f, byte, shift)};" for f, byte, shift in placed),
        write="\n".join(f"    {_store(byte, fields)};" for byte, fields in shared),
    )


def main() -> None:
    """Rewrites the header beside the native sources."""
    PATH.write_text(generate())


if __name__ == "__main__":
    main()
