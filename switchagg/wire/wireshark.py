"""The wire format as a Wireshark dissector: ``python -m switchagg.wire.wireshark > switchagg.lua``.

Use it with ``tshark -X lua_script:switchagg.lua``, or put it into Wireshark's personal plugin folder. It
takes UDP port 48879; for others use "Decode As".
"""

from __future__ import annotations

from switchagg.wire import header as wire

_LUA = """\
-- Generated from switchagg/wire/header.py by `python -m switchagg.wire.wireshark`. Do not edit.
local switchagg = Proto("switchagg", "SwitchAgg in-network aggregation")

local ops = {{ {ops} }}

local fields = {{
{fields}
}}
local flag_fields = {{
{flags}
}}
local words_field = ProtoField.uint32("switchagg.words", "Words", base.DEC, nil, nil, "K, from the length")
local payload_field = ProtoField.bytes("switchagg.payload", "Payload")
local bad_length = ProtoExpert.new("switchagg.bad_length", "The payload is not what the flags say",
  expert.group.MALFORMED, expert.severity.ERROR)

switchagg.fields = {{ {names}, words_field, payload_field }}
switchagg.experts = {{ bad_length }}

local HEADER, MIN_WORDS, VERSION = {header_bytes}, {min_words}, {version}

function switchagg.dissector(buffer, info, tree)
  if buffer:len() < HEADER or buffer(0, 1):bitfield(0, 4) ~= VERSION then return 0 end
  info.cols.protocol = "SwitchAgg"
  local root = tree:add(switchagg, buffer())
{adds}
  local payload = buffer:len() - HEADER
  local op = ops[buffer(0, 1):bitfield(4, 4)] or "unknown op"
  local what = op
  if payload > 0 then
    root:add(words_field, math.floor(payload / 4)):set_generated()
    root:add(payload_field, buffer(HEADER))
    what = what .. string.format(", %d words", math.floor(payload / 4))
  elseif op ~= "INIT" then
    what = what .. ", no payload"
  end
  local flagged = buffer(1, 1):bitfield({payload_bit}, 1) == 1
  if flagged and (payload % 4 ~= 0 or payload < 4 * MIN_WORDS) or not flagged and payload ~= 0 then
    root:add_proto_expert_info(bad_length)
  end
  info.cols.info = string.format("%s, {summary}", what, {summary_values})
  return buffer:len()
end

DissectorTable.get("udp.port"):add({port}, switchagg)
"""


def generate() -> str:
    """Returns the text of the dissector."""
    fields: list[str] = []
    adds: list[str] = []
    bit = 0
    at: dict[str, str] = {}
    for field in wire.FIELDS:
        width = max(field.bits, 8)
        mask = "nil"
        if field.bits < 8:
            mask = f"{((1 << field.bits) - 1) << (8 - field.bits - bit % 8):#x}"
        base = "HEX" if field.hexadecimal else "DEC"
        values = "ops" if field.name == "op" else "nil"
        filter_name, title = f"switchagg.{field.name}", field.name.capitalize()
        fields.append(
            f'  {field.name} = ProtoField.uint{width}("{filter_name}", "{title}", '
            f'base.{base}, {values}, {mask}, "{field.meaning}"),'
        )
        bytes_of = f"buffer({bit // 8}, {width // 8})"
        at[field.name] = bytes_of
        item = "local flags = " if field.name == "flags" else ""
        adds.append(f"  {item}root:add(fields.{field.name}, {bytes_of})")
        if field.name == "flags":
            adds.append("  for _, flag in ipairs(flag_fields) do flags:add(flag, " + bytes_of + ") end")
        bit += field.bits
    flags = [
        f'  ProtoField.bool("switchagg.flags.{name.lower()}", "{name.capitalize()}", 8, nil, {bit:#x}),'
        for name, bit in wire.Flag.__members__.items()
    ]
    shown = ("job", "seq", "slot")
    return _LUA.format(
        ops=", ".join(f'[{op.value}] = "{op.name}"' for op in wire.Op),
        fields="\n".join(fields),
        flags="\n".join(flags),
        names=", ".join(
            [f"fields.{field.name}" for field in wire.FIELDS]
            + [f"flag_fields[{index + 1}]" for index in range(len(flags))]
        ),
        header_bytes=wire.HEADER_BYTES,
        min_words=wire.MIN_WORDS,
        version=wire.VERSION,
        adds="\n".join(adds),
        payload_bit=8 - wire.Flag.PAYLOAD.bit_length(),
        summary=", ".join(f"{name} %d" for name in shown),
        summary_values=", ".join(f"{at[name]}:uint()" for name in shown),
        port=wire.DEFAULT_PORT,
    )


def main() -> None:
    """Prints the dissector."""
    print(generate(), end="")


if __name__ == "__main__":
    main()
