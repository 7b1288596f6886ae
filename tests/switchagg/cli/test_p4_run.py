"""`switchagg p4 run` and `switchagg p4 stf`, as typed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from switchagg.cli.main import main
from switchagg.errors import UsageError
from switchagg.p4model.runtime.pcap import read_pcap

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> a; bit<8> b; }
struct headers_t { h_t h; }
struct user_t {}
parser P(packet_in packet, out headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    state start { packet.extract(hdr.h); transition accept; }
}
control C(inout headers_t hdr, inout user_t user) { apply {} }
control In(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    counter(4, CounterType.packets) seen;
    action to(bit<9> port) { meta.egress_spec = port; seen.count(1); }
    action drop() { mark_to_drop(meta); }
    table t { key = { hdr.h.a: ternary; } actions = { to; drop; } default_action = drop(); }
    apply { t.apply(); hdr.h.b = hdr.h.b + STEP; }
}
control Out(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) { apply {} }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), C(), In(), Out(), C(), D()) main;
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "small.p4"
    path.write_text(PROGRAM)
    return str(path)


def _stf(folder: Path, text: str) -> str:
    path = folder / "test.stf"
    path.write_text(text)
    return str(path)


def test_run_tells_what_happened(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = _stf(tmp_path, "add t 1 h.a:0x1* to(port:7)\n")
    line = ["p4", "run", program, "-D", "STEP=2", "--entries", entries, "--hex", "1105 ff", "--hex", "2205"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "extract  hdr.h {a=0x11, b=0x5}" in out
    assert "table    In.t (hdr.h.a=0x11) hit" in out
    assert "action   In.to(port=0x7)" in out
    assert "7: 1107ff" in out
    assert "table    In.t (hdr.h.a=0x22) miss" in out
    assert "drop     egress_spec is 511 at the end of ingress" in out


def test_run_of_a_capture_as_json(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = tmp_path / "in.pcap"
    packets = b"".join(
        struct.pack("<IIII", 5, 500_000, len(data), len(data)) + data
        for data in (b"\x10\x01", b"\x20\x02\x03")
    )
    capture.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + packets)
    assert read_pcap(capture) == [(5.5, b"\x10\x01"), (5.5, b"\x20\x02\x03")]
    entries = _stf(tmp_path, "setdefault t to(port:3)\n")
    line = ["p4", "run", program, "-D", "STEP=1", "--entries", entries, "--pcap", str(capture), "--port", "2"]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["out"] for each in found] == [
        [{"port": 3, "data": "1002"}],
        [{"port": 3, "data": "200303"}],
    ]
    assert found[0]["events"][0] == {"kind": "packet", "text": "in at port 2, 2 bytes, new"}
    capture.write_bytes(capture.read_bytes()[:-1])
    with pytest.raises(UsageError, match="ends within a packet"):
        read_pcap(capture)
    capture.write_bytes(b"\n\r\r\n" * 20)
    with pytest.raises(UsageError, match="no pcap file"):
        read_pcap(capture)


def test_stf_passes_and_fails(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = """
        add t 1 h.a:0x1* to(port:7)
        add t 2 h.a:0x12 drop()
        packet 0 1105 ff
        expect 7 1106 f*$
        packet 0 1205
        packet 0 99
        check_counter seen(1) packets == 1
    """
    assert main(["p4", "stf", program, "-D", "STEP=1", _stf(tmp_path, good)]) == 0
    assert "passed, 3 packets sent" in capsys.readouterr().out
    for change, problem in (
        (("ff\n", "ee\n"), "test.stf:5: port 7, packet 1: got 1106ee, expected 1106f*"),
        (("f*$", "ff00"), "too short: got 1106ff, expected 1106ff00"),
        (("f*$", "$"), "too long"),
        (("expect 7 1106 f*$", "expect 0"), "port 0, packet 1: nothing came; expected a packet"),
        (("== 1", ">= 2"), "test.stf:8: seen(1) is 1, not >= 2"),
        (("drop()", "to(port:0)"), "port 0: unexpected packet 1206"),
    ):
        assert change[0] in good
        assert main(["p4", "stf", program, "-D", "STEP=1", _stf(tmp_path, good.replace(*change))]) == 1
        assert problem in capsys.readouterr().out, change


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("add none h.a:0x1* to(port:7)", "test.stf:1: there is no table none; there is In.t"),
        ("add t 1 h.z:0x1* to(port:7)", "test.stf:1: table In.t has no key field h.z; it has hdr.h.a"),
        ("add t 1 h.a:0x11 too(port:7)", "test.stf:1: there is no action of table In.t too"),
        (
            "\nadd t 1 h.a:0x11 to(port:512)",
            "test.stf:2: action In.to: parameter port: 0x200 does not fit 9 bits",
        ),
        ("add t 1 h.a:0x111 to(port:1)", "test.stf:1: table In.t: key field hdr.h.a"),
        ("add t 1 h.a:0x11 to()", "parameter port is missing"),
        ("add t 1 h.a:0xzz to(port:1)", "test.stf:1: '0xzz' is no number such as 12, 0x0c or 0b1100"),
        ("add t 1 h.a:1/2/3 to(port:1)", "test.stf:1: '2/3' is no number"),
        ("packet 512 1105", "test.stf:1: port is 512; accepted: 0..511"),
        ("mc_node_associate 1 0", "test.stf:1: there is no multicast node 0"),
        ("check_counter unseen(1) packets == 1", "there is no counter unseen"),
    ],
)
def test_stf_that_does_not_suit_the_program(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], test: str, problem: str
) -> None:
    assert main(["p4", "stf", program, "-D", "STEP=1", _stf(tmp_path, test)]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["run", "PROGRAM", "--hex", "00"], "small.p4:16:44: error: `STEP` is not declared"),
        (["run", "PROGRAM", "-D", "STEP=1", "--hex", "0x"], "--hex takes pairs of hexadecimal digits"),
        (["run", "PROGRAM", "-D", "STEP=1", "--pcap", "none.pcap"], "none.pcap: No such file"),
        (["run", "none.p4", "--hex", "00"], "none.p4"),
        (["stf", "PROGRAM", "-D", "STEP=1", "none.stf"], "none.stf: No such file"),
        (["run", "PROGRAM", "-D", "STEP=1", "--hex", "00", "--port", "512"], "port is 512; accepted: 0..511"),
        (["run", "PROGRAM", "-D", "STEP=1", "--hex", "00", "--port", "-1"], "port is -1; accepted: 0..511"),
        (["check", "PROGRAM", "-D", "3x=1"], "small.p4: error: -D takes NAME or NAME=value, not '3x=1'"),
        (["check", "PROGRAM", "-D", ""], "-D takes NAME or NAME=value, not ''"),
        (["info", "PROGRAM", "-D", "STEP=1", "-o", "/none/info.txt"], "/none/info.txt: No such file"),
    ],
)
def test_mistakes_have_one_line_and_no_traceback(
    program: str, capsys: pytest.CaptureFixture[str], line: list[str], problem: str
) -> None:
    assert main(["p4", *(program if word == "PROGRAM" else word for word in line)]) == 2
    assert problem in capsys.readouterr().err
