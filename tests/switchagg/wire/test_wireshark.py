from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.wire import wireshark as wire_wireshark
from switchagg.wire.header import DEFAULT_PORT, FIELDS, Flag, Header, Op, encode

WORDS = np.arange(1, 18, dtype=np.uint32)
DATA = encode(Header(Op.SUM, Flag.RETRANSMISSION, 7, 0xA0B0C0D0, 2**32 - 1, 11), WORDS)
SKIP = encode(Header(Op.OR, 0, 0xFFFF, 1, 5, 0xFFFE, 0x1234))
RESULT = encode(Header(Op.RESULT, 0, 7, 0xFEEDF00D, 3, 11), WORDS)
INIT = encode(Header(Op.INIT, 0, 7, 0, 2**32 - 4, 8))
LIED = bytes([DATA[0], 0]) + DATA[2:]  # a payload without the flag
UNKNOWN_OP = bytes([0x1F]) + SKIP[1:]
OTHERS = [SKIP[:15], b"\x20" + SKIP[1:]]  # not ours: too short, version 2


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """tshark's view: the layers of each packet, by field name."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed: the Wireshark dissector is not exercised")
    pytest.importorskip("scapy", reason="scapy is not installed: it writes the capture that tshark reads")
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw
    from scapy.utils import wrpcap

    folder = tmp_path_factory.mktemp("wireshark")
    lua, capture = folder / "switchagg.lua", folder / "packets.pcap"
    lua.write_text(wire_wireshark.generate())
    ip = IP(src="10.0.0.1", dst="10.0.0.2")
    frames = [
        Ether() / ip / UDP(sport=DEFAULT_PORT, dport=4000) / Raw(payload)
        if payload[0] == 0x12
        else Ether() / ip / UDP(sport=4000, dport=DEFAULT_PORT) / Raw(payload)
        for payload in [DATA, SKIP, RESULT, INIT, LIED, UNKNOWN_OP, *OTHERS]
    ]
    wrpcap(str(capture), frames)
    fields = [f"switchagg.{field.name}" for field in FIELDS]
    fields += [
        "switchagg.flags.payload",
        "switchagg.flags.retransmission",
        "switchagg.words",
        "switchagg.payload",
    ]
    fields += ["switchagg.bad_length", "_ws.col.Info", "_ws.col.Protocol"]
    return _tshark(lua, capture, fields)


def _tshark(lua: Path, capture: Path, fields: list[str]) -> list[dict[str, Any]]:
    command = ["tshark", "-X", f"lua_script:{lua}", "-r", str(capture), "-T", "fields", "-E", "separator=|"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Lua" not in done.stderr, done.stderr
    return [dict(zip(fields, line.split("|"), strict=True)) for line in done.stdout.splitlines()]


def _header(packet: dict[str, Any]) -> list[int]:
    return [int(packet[f"switchagg.{field.name}"], 0) for field in FIELDS]


def test_every_header_field(packets: list[dict[str, Any]]) -> None:
    assert _header(packets[0]) == [1, Op.SUM, 3, 7, 0xA0B0C0D0, 2**32 - 1, 11, 0]
    assert _header(packets[1]) == [1, Op.OR, 0, 0xFFFF, 1, 5, 0xFFFE, 0x1234]
    assert _header(packets[2]) == [1, Op.RESULT, 1, 7, 0xFEEDF00D, 3, 11, 0]
    assert _header(packets[3]) == [1, Op.INIT, 0, 7, 0, 2**32 - 4, 8, 0]


def test_flags_and_payload(packets: list[dict[str, Any]]) -> None:
    data, skip = packets[:2]
    assert data["switchagg.flags.payload"] in ("1", "True")
    assert data["switchagg.flags.retransmission"] in ("1", "True")
    assert skip["switchagg.flags.payload"] in ("0", "False")
    assert data["switchagg.words"] == "17"
    assert bytes.fromhex(data["switchagg.payload"].replace(":", "")) == DATA[16:]
    assert skip["switchagg.words"] == skip["switchagg.payload"] == ""


def test_what_a_person_reads(packets: list[dict[str, Any]]) -> None:
    assert [packet["_ws.col.Info"] for packet in packets[:6]] == [
        "SUM, 17 words, job 7, seq 4294967295, slot 11",
        "OR, no payload, job 65535, seq 5, slot 65534",
        "RESULT, 17 words, job 7, seq 3, slot 11",
        "INIT, job 7, seq 4294967292, slot 8",
        "SUM, 17 words, job 7, seq 4294967295, slot 11",
        "unknown op, no payload, job 65535, seq 5, slot 65534",
    ]
    assert {packet["_ws.col.Protocol"] for packet in packets[:6]} == {"SwitchAgg"}


def test_a_length_that_contradicts_the_flags_is_marked(packets: list[dict[str, Any]]) -> None:
    assert [bool(packet["switchagg.bad_length"]) for packet in packets[:6]] == [False] * 4 + [True, False]


def test_other_datagrams_on_the_port_are_left_alone(packets: list[dict[str, Any]]) -> None:
    assert len(packets) == 8
    assert all(packet["switchagg.version"] == "" for packet in packets[6:])


def test_the_command_prints_the_dissector() -> None:
    command = [sys.executable, "-m", "switchagg.wire.wireshark"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == wire_wireshark.generate()
