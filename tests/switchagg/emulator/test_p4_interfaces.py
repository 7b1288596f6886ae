"""A P4 program between interfaces, in a network namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from switchagg.cli.main import main

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<48> to; bit<48> from; bit<16> type; }
struct headers_t { h_t h; }
struct user_t {}
parser P(packet_in packet, out headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    state start { packet.extract(hdr.h); transition accept; }
}
control C(inout headers_t hdr, inout user_t user) { apply {} }
control In(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    action to(bit<9> port) { meta.egress_spec = port; hdr.h.type = 0x88B6; }
    action drop() { mark_to_drop(meta); }
    table t { key = { hdr.h.to: exact; } actions = { to; drop; } default_action = drop(); }
    apply { if (hdr.h.type == 0x88B5) { t.apply(); } else { drop(); } }
}
control Out(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) { apply {} }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), C(), In(), Out(), C(), D()) main;
"""

ENTRIES = """
add t hdr.h.to:0x020000000002 to(port:4)
add t hdr.h.to:0x020000000003 to(port:9)
"""

# Runs where only its own interfaces are: two pairs, the switch at one end of each.
SCRIPT = """
import json, socket, subprocess, sys

for left, right in (("wire0", "switch0"), ("wire1", "switch1")):
    subprocess.run(["ip", "link", "add", left, "type", "veth", "peer", "name", right], check=True)
    for name in (left, right):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)

def port(name):
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B6))
    made.bind((name, 0x88B6))
    made.settimeout(60)
    return made

a, b = port("wire0"), port("wire1")
switch = subprocess.Popen(
    [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", "p4",
     "--program", sys.argv[1], "--json",
     "--entries", sys.argv[2], "--interface", "3=switch0", "--interface", "4=switch1", *sys.argv[4:]],
    stdout=subprocess.PIPE, text=True,
)
ready = json.loads(switch.stdout.readline())
head = bytes.fromhex("020000000002 020000000001 88b5".replace(" ", ""))
sent = [head + bytes([number]) * 60 for number in range(5)]
for each in sent:
    a.send(each)
copies = int(sys.argv[3])
received = [b.recv(2000) for _ in sent for _ in range(copies)]
a.send(bytes.fromhex("020000000003 020000000001 88b5".replace(" ", "")) + bytes(50))
a.send(bytes.fromhex("020000000004 020000000001 88b5".replace(" ", "")) + bytes(50))
a.send(sent[0])
received += [b.recv(2000) for _ in range(copies)]
switch.terminate()
stopped = json.loads(switch.communicate(timeout=240)[0])
expected = [each[:12] + b"\\x88\\xb6" + each[14:] for each in [*sent, sent[0]] for _ in range(copies)]
same = received == expected
print(json.dumps({"same": same, "ready": ready, "stopped": stopped, "exit": switch.returncode}))
"""


# Frames that another thread sends are held back too, and leave though nothing comes in.
SENDER = """
import subprocess, time
from switchagg.emulator.faults import Faults
from switchagg.emulator.p4_interfaces import P4Interfaces

class Silent:
    def process(self, port, data, now):
        return []

subprocess.run(["ip", "link", "add", "wire0", "type", "veth", "peer", "name", "wire1"], check=True)
for name in ("wire0", "wire1"):
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
with P4Interfaces(Silent(), {0: "wire0"}, faults=Faults(delay=0.2)) as switch:
    time.sleep(0.05)
    switch.send([(0, bytes(60))] * 3)
    while switch.counters()["packets_out"] < 3:
        time.sleep(0.01)
    assert switch.fault_counters()["delayed_out"] == 3
"""


def _has_namespaces() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    line = "ip link add wire0 type veth peer name wire1"
    probe = subprocess.run(["unshare", "-rn", "sh", "-c", line], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    program, entries = tmp_path / "wire.p4", tmp_path / "wire.stf"
    program.write_text(PROGRAM)
    entries.write_text(ENTRIES)
    return str(program), str(entries)


@pytest.mark.skipif(not _has_namespaces(), reason="no network namespaces with veth pairs here (unshare, ip)")
@pytest.mark.parametrize("faults", [[], ["--duplicate", "1", "--delay", "0.01", "--seed", "4"]])
def test_frames_go_from_interface_to_interface(files: tuple[str, str], faults: list[str]) -> None:
    # Doubled as it comes in, and as it goes out.
    copies = 4 if faults else 1
    run = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", textwrap.dedent(SCRIPT), *files, str(copies), *faults],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["same"]
    assert found["ready"]["interfaces"] == {"3": "switch0", "4": "switch1"}
    counters = found["stopped"]["port"]
    assert (counters["port_4_packets_out"], counters["port_3_packets_out"]) == (6 * copies, 0)
    assert counters["no_such_port"] == copies
    assert found["ready"]["seed"] == (4 if faults else None)
    counted = found["stopped"]["faults"]
    if faults:
        # With what the kernel sends on its own.
        assert counted["duplicated_in"] >= 8
        assert counted["delayed_in"] == 2 * counted["duplicated_in"]
    else:
        assert counted == {}
    assert (found["exit"], found["stopped"]["failure"]) == (0, None)


@pytest.mark.skipif(not _has_namespaces(), reason="no network namespaces with veth pairs here (unshare, ip)")
def test_frames_of_another_thread_are_held_back() -> None:
    subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", SENDER],
        check=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["--engine", "p4", "--program", "P", "--entries", "E"], "--entries is for --interface"),
        (["--engine", "p4", "--program", "P", "--interface", "lo"], "--interface takes PORT=NAME"),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--interface", "0=a"],
            "port 0 is given twice",
        ),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--job", "x"],
            "--job is for a switch on",
        ),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=no-such-one"],
            "interface no-such-one: No such",
        ),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--entries", "none"],
            "none: No such file",
        ),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--entries", sys.executable],
            "is no text",
        ),
        (["--engine", "p4", "--program", "P", "--interface", "512=lo"], "port is 512; accepted: 0..511"),
        (["--engine", "p4", "--program", "P", "--interface", "²=lo"], "--interface takes PORT=NAME"),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--stats-interval", "-1"],
            "stats-interval is -1.0; accepted",
        ),
        (
            ["--engine", "p4", "--program", "P", "--interface", "0=lo", "--stats-interval", "nan"],
            "stats-interval is nan; accepted",
        ),
    ],
)
def test_what_cannot_work(
    files: tuple[str, str], line: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"P": files[0], "E": files[1]}
    assert main(["switch", *(names.get(word, word) for word in line)]) == 2
    assert problem in capsys.readouterr().err
