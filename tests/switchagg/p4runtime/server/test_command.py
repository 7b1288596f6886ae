"""`switchagg switch --p4runtime` as a person starts it, alone and between interfaces of a namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import finsy
import pytest

from switchagg.cli.main import main
from switchagg.p4runtime import protos
from tests.switchagg.emulator.test_p4_interfaces import _has_namespaces
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.programs import EVERYTHING

REPOSITORY = str(harness.REPOSITORY)

# Runs where only its own interfaces are: two pairs, the switch at one end of each.
SCRIPT = """
import json, signal, socket, subprocess, sys
from tests.switchagg.p4runtime.plain_client import PlainClient
from switchagg.p4entities.matches import Exact
from tests.switchagg.p4runtime.server.harness import INSERT, Names, packet_out, update

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for left, right in (("wire0", "switch0"), ("wire1", "switch1")):
    subprocess.run(["ip", "link", "add", left, "type", "veth", "peer", "name", right], check=True)
    for name in (left, right):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)

def port(name):
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B9))
    made.bind((name, 0x88B9))
    made.settimeout(60)
    return made

a, b = port("wire0"), port("wire1")
switch = subprocess.Popen(
    [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", "p4", "--program", sys.argv[1],
     "--json", "--p4runtime", "127.0.0.1:0", "--device-id", "5", "-i", "3@switch0", "-i", "4@switch1"],
    stdout=subprocess.PIPE, text=True,
)
ready = json.loads(switch.stdout.readline())
client = PlainClient(5, ready["p4runtime"], (0, 1))
names = Names(client.p4info())
client.write(
    update(INSERT, table_entry=names.entry("l2", {"hdr.eth.to": Exact(2)}, "to", {"port": 4})),
    update(INSERT, table_entry=names.entry("l2", {"hdr.eth.to": Exact(3)}, "up", {"why": 1})),
)
head = bytes.fromhex("020000000001 88b9".replace(" ", ""))
across, up = [(0).to_bytes(5, "big") + bytes([to]) + head + bytes([to]) * 60 for to in (2, 3)]
a.send(across)
crossed = b.recv(2000) == across
a.send(up)
packet = client.drained("packet").packet
metadata = [each.value.hex() for each in packet.metadata]
packet_out(client, across, {1: 3, 2: 0})
back = a.recv(2000) == across
client.close()
switch.send_signal(signal.SIGTERM)
stopped = json.loads(switch.communicate(timeout=240)[0])
print(json.dumps({"crossed": crossed, "back": back, "up": packet.payload == up, "metadata": metadata,
                  "ready": ready, "stopped": stopped, "exit": switch.returncode}))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "everything.p4"
    path.write_text(EVERYTHING)
    return str(path)


@pytest.mark.skipif(not _has_namespaces(), reason="no network namespaces with veth pairs here (unshare, ip)")
def test_between_interfaces(program: str) -> None:
    run = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", textwrap.dedent(SCRIPT), program],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([REPOSITORY, *sys.path])},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["crossed"], found["back"], found["up"]) == (True, True, True)
    assert found["metadata"] == ["03", "01"]
    assert found["ready"]["interfaces"] == {"3": "switch0", "4": "switch1"}
    assert found["ready"]["device_id"] == 5
    counters = found["stopped"]["port"]
    assert (counters["packet_ins"], counters["packet_outs"], counters["port_4_packets_out"]) == (1, 1, 1)
    assert (found["exit"], found["stopped"]["failure"]) == (0, None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            ["--p4runtime", "127.0.0.1:0", "-i", "1@lo", "--engine", "native", "--address", "10.0.0.1"],
            "--address and --station are not for --p4runtime",
        ),
        (["--p4runtime", "127.0.0.1:0", "--program", "x.p4"], "--program, -D and -I are for --engine p4"),
        (["--p4runtime", "127.0.0.1:0", "--port", "0", "--job", "x"], "--job and --entries are not for"),
        (["--no-p4", "--packet-in", "ipc:///x"], "packets come by interfaces (-i), not by a nanomsg socket"),
        (
            ["program.json", "--", "--grpc-server-addr", "127.0.0.1:0"],
            "program.json: this switch runs P4 sources",
        ),
        (["-i", "1@lo", "/nowhere.p4", "--", "--cpu-port", "600"], "cpu-port is 600"),
        (["--no-p4", "/nowhere.p4"], "--no-p4 is for a switch without a program"),
        (["--no-p4", "--drop-port", "7"], "drop-port is 7; accepted: 511"),
        (["--no-p4", "--grpc-server-cert", "x"], "are for --grpc-server-ssl"),
        (["--no-p4", "--grpc-server-ssl"], "needs --grpc-server-cert and --grpc-server-key"),
        (
            ["--no-p4", "--grpc-server-ssl", "--grpc-server-cert", "/nowhere.pem", "--grpc-server-key", "x"],
            "name a PEM file that can be read",
        ),
        (["--engine", "p4", "--p4runtime", "9559"], "accepted: HOST:PORT"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "--job", "x"], "--job and --entries are not for"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-D", "A"], "-D and -I are for a --program"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "--loss", "0.1"], "faults are done to frames"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "eth0"], "-i takes PORT@NAME"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "1@a", "-i", "1@b"], "port 1 is given twice"),
        (
            ["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "1@lo", "--cpu-port", "1"],
            "port 1 is the CPU port",
        ),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "²@lo"], "-i takes PORT@NAME"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "512@lo"], "port is 512; accepted: 0..511"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "-i", "1@no-such"], "interface no-such: No such"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "--cpu-port", "512"], "cpu-port is 512"),
        (["--engine", "p4", "--device-id", "1"], "are for --p4runtime"),
        (["--engine", "p4", "--p4runtime", "127.0.0.1:0", "--program", "/nowhere.p4"], "/nowhere.p4"),
    ],
)
def test_what_cannot_work(line: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["switch", *line]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["grpc", "google"])
def test_without_the_extra(missing: str, program: str) -> None:
    # A module that is None in sys.modules is one that is not there.
    script = f"""
import sys
sys.modules[{missing!r}] = sys.modules["finsy"] = None
from switchagg.cli.main import main
sys.exit(main(["switch", "--engine", "p4", "--program", sys.argv[1], "--p4runtime", "127.0.0.1:0"]))
"""
    run = subprocess.run(
        [sys.executable, "-c", script, program], capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 2
    assert 'pip install "switchagg[p4runtime]"' in run.stderr
    assert "Traceback" not in run.stderr


def test_messages_come_from_an_environment_of_their_own_where_finsy_is_not_installed(
    tmp_path: Path,
) -> None:
    made = tmp_path / "switchagg" / protos.FINSY.folder.name
    inside = made / protos.FINSY.packages.relative_to(protos.FINSY.folder) / "finsy"
    inside.mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin" / "python").symlink_to(sys.executable)
    (inside / "proto").symlink_to(Path(finsy.__file__).parent / "proto")
    (inside / "__init__.py").write_text("raise RuntimeError('nothing but messages is needed')")
    script = """
import sys
sys.modules["finsy"] = None
from switchagg.p4runtime.client.connection import Client
from switchagg.p4runtime.protos import p4runtime_pb2, p4runtime_pb2_grpc, status_pb2
from switchagg.p4runtime.server.server import P4RuntimeServer
entity = p4runtime_pb2.Entity(table_entry={"table_id": 7})
assert p4runtime_pb2.Entity.FromString(entity.SerializeToString()).table_entry.table_id == 7
assert status_pb2.Status(code=3).code == 3 and p4runtime_pb2_grpc.P4RuntimeStub
print(p4runtime_pb2.__name__)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == "switchagg.p4runtime.messages.p4.v1.p4runtime_pb2\n"


def test_others_do_without_grpc() -> None:
    script = """
import sys
from switchagg.cli.main import main
import worker_lib, switchagg.control.embedded, switchagg.emulator.p4_switch
try:
    main(["switch", "--help"])
except SystemExit:
    pass
print(sorted({"grpc", "google.protobuf", "finsy"} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    assert run.stdout.splitlines()[-1] == "[]"
