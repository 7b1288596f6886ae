"""Frames from packet sockets are as they would be on a cable: with their tags, with whole checksums."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import checksum

from switchagg.emulator.packet_socket import complete_checksum
from tests.seeds import seed_of_this_run
from tests.switchagg.p4model.sources import V1MODEL

HEAD = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")


def _half_done(frame: Any, at: int, pseudo: bytes) -> bytes:
    """The frame as the kernel hands it on: the pseudo header's sum where the checksum belongs."""
    data = bytes(frame)
    return data[:at] + (checksum(pseudo) ^ 0xFFFF).to_bytes(2, "big") + data[at + 2 :]


@pytest.mark.parametrize("size", [0, 1, 2, 99, 1400])
@pytest.mark.parametrize("padding", [b"", b"\1\2\3"])
@pytest.mark.parametrize(("make", "number", "offset"), [(UDP, 17, 6), (TCP, 6, 16)])
@pytest.mark.parametrize("tags", [0, 2])
def test_half_done_checksums_are_completed(
    make: Any, number: int, offset: int, size: int, padding: bytes, tags: int
) -> None:
    seed = seed_of_this_run()
    print(f"seed {seed}")
    body = random.Random(seed).randbytes(size)
    head = HEAD
    for _ in range(tags):
        head = head / Dot1Q(vlan=5)
    whole = head / IP(src="10.0.0.1", dst="10.0.0.2") / make(sport=4000, dport=5000) / Raw(body)
    length = len(whole) - 34 - 4 * tags
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    at = 34 + 4 * tags + offset
    half = _half_done(whole, at, addresses + bytes([0, number]) + length.to_bytes(2, "big"))
    assert half != bytes(whole)
    assert complete_checksum(half + padding) == bytes(whole) + padding

    six = head / IPv6(src="::1", dst="::2") / IPv6ExtHdrDestOpt() / make(sport=4000, dport=5000) / Raw(body)
    addresses = bytes(15) + b"\1" + bytes(15) + b"\2"
    at = 14 + 4 * tags + 40 + 8 + offset
    half = _half_done(six, at, addresses + length.to_bytes(4, "big") + bytes([0, 0, 0, number]))
    assert complete_checksum(half + padding) == bytes(six) + padding


def test_a_udp_checksum_is_never_zero() -> None:
    whole = HEAD / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=4000, dport=5000) / Raw(b"\0\0")
    bare = bytes(whole)[:40] + b"\0\0\0\0"
    total = checksum(bare[34:])
    assert complete_checksum(bare[:42] + total.to_bytes(2, "big"))[40:42] == b"\xff\xff"


def test_other_frames_stay_as_they_are() -> None:
    seed = seed_of_this_run()
    print(f"seed {seed}")
    generator = random.Random(seed)
    udp = bytes(HEAD / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2) / Raw(b"x" * 20))
    fragment = udp[:20] + b"\x20\x00" + udp[22:]
    for frame in (b"", udp[:13], udp[:20], udp[:36], fragment, bytes(HEAD / IP(proto=47) / Raw(b"x" * 40))):
        assert complete_checksum(frame) == frame
    for _ in range(2000):
        size = generator.randrange(60)
        ether_type = generator.choice([b"\x08\x00", b"\x86\xdd", b"\x81\x00", b"\x12\x34"])
        frame = udp[:12] + ether_type + generator.randbytes(size)
        assert len(complete_checksum(frame)) == len(frame)


CABLE = V1MODEL.format(
    top="",
    parser="transition accept;",
    ingress="apply { standard.egress_spec = standard.ingress_port ^ 7; }",
)

RECEIVER = """
import json, socket, subprocess, sys

print("unshared", flush=True)
sys.stdin.readline()
for line in ("link set wire1 up", "addr add 10.77.0.2/24 dev wire1"):
    subprocess.run(["ip", *line.split()], check=True)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.77.0.2", 5000))
tagged = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tagged.bind(("wire1", 0))
tagged.setsockopt(263, 8, 1)
for each in (datagrams, tagged):
    each.settimeout(60)
print("ready", flush=True)
got = datagrams.recv(100).decode()
frame = b""
while b"tagged" not in frame:
    frame, data, _, _ = tagged.recvmsg(2000, 100)
print(json.dumps({"datagram": got, "size": len(frame), "data": data[0][2].hex()}))
"""

# Two hosts with the switch between them; the second is in a namespace of its own.
SCRIPT = """
import json, socket, subprocess, sys

def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True).stdout

receiver = subprocess.Popen(
    ["unshare", "-n", sys.executable, "-c", sys.argv[2]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
receiver.stdout.readline()
for left, right in (("wire0", "switch0"), ("wire1", "switch1")):
    ip("link", "add", left, "type", "veth", "peer", "name", right)
    ip("link", "set", right, "up")
mac = json.loads(ip("-j", "link", "show", "wire1"))[0]["address"]
ip("link", "set", "wire1", "netns", str(receiver.pid))
ip("link", "set", "wire0", "up")
ip("addr", "add", "10.77.0.1/24", "dev", "wire0")
ip("neigh", "add", "10.77.0.2", "lladdr", mac, "dev", "wire0")
receiver.stdin.write("go\\n")
receiver.stdin.flush()
receiver.stdout.readline()
switch = subprocess.Popen(
    [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", "p4", "--program", sys.argv[1],
     "--interface", "3=switch0", "--interface", "4=switch1"],
    stdout=subprocess.PIPE, text=True,
)
switch.stdout.readline()
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", ("10.77.0.2", 5000))
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("wire0", 0))
wire.send(b"\\xff" * 6 + b"\\x02" + bytes(5) + b"\\x81\\x00\\x60\\x05\\x88\\xb5" + b"tagged" * 10)
print(receiver.stdout.read())
switch.terminate()
switch.wait(120)
"""


def _has_namespaces() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    line = "ip link add wire0 type veth peer name wire1 && unshare -n true"
    probe = subprocess.run(["unshare", "-rn", "sh", "-c", line], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not _has_namespaces(), reason="no network namespaces with veth pairs here (unshare, ip)")
def test_datagrams_and_tags_get_through(tmp_path: Path) -> None:
    program = tmp_path / "cable.p4"
    program.write_text(CABLE)
    run = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", SCRIPT, str(program), RECEIVER],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["datagram"] == "hello"
    assert found["size"] == 74  # without its tag, which is in the data beside it
    data = bytes.fromhex(found["data"])
    assert int.from_bytes(data[16:18], sys.byteorder) == 0x6005
