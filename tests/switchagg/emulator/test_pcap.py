"""The capture file, as scapy reads it."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import RawPcapNgReader, RawPcapReader

from switchagg.addresses import bound_socket
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.errors import UsageError
from switchagg.rules.slots import Address
from switchagg.wire.header import HEADER_BYTES
from tests.ipv6 import needs_ipv6
from tests.switchagg.emulator.plain_workers import PlainWorkers
from tests.waiting import eventually

Packet = tuple[Address, Address, bytes]


def read(path: Path) -> list[Packet]:
    """(from, to, UDP payload) of every record, its headers checked."""
    packets = []
    with RawPcapReader(str(path)) as reader:
        assert not isinstance(reader, RawPcapNgReader)
        assert reader.linktype == 101
        assert reader.nano
        for raw, meta in reader:
            assert abs(meta.sec - time.time()) < 600
            assert meta.wirelen == meta.caplen == len(raw)
            if raw[0] >> 4 == 6:
                packets.append(of_ipv6(raw))
                continue
            ip = IP(raw)
            assert (ip.version, ip.ihl, ip.len, ip.proto) == (4, 5, len(raw), 17)
            checksum, udp = ip.chksum, ip[UDP]
            assert udp.len == len(raw) - 20
            assert udp.chksum == 0
            del ip.chksum
            assert IP(bytes(ip)).chksum == checksum
            packets.append(((ip.src, udp.sport), (ip.dst, udp.dport), raw[28:]))
    return packets


def of_ipv6(raw: bytes) -> Packet:
    ip = IPv6(raw)
    assert (ip.version, ip.plen, ip.nh) == (6, len(raw) - 40, 17)
    checksum = ip[UDP].chksum
    assert ip[UDP].len == len(raw) - 40
    del ip[UDP].chksum
    assert IPv6(bytes(ip))[UDP].chksum == checksum != 0
    return (ip.src, ip[UDP].sport), (ip.dst, ip[UDP].dport), raw[48:]


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_every_packet_is_there(tmp_path: Path, host: str) -> None:
    path = tmp_path / "capture.pcap"
    sent: list[Packet] = []
    came: list[Packet] = []
    with Switch(host, pcap=path) as switch, PlainWorkers(2, words=364, host=host).join(switch) as workers:
        for seq in range(20):
            for bit in range(2):
                words = None if seq % 3 == 0 else np.full(364, seq + bit, np.uint32)
                workers.send(bit, seq, words)
                sent.append((workers.address(bit), switch.address, workers.packet(bit, seq, words)))
            for bit in range(2):
                packet = workers.sockets[bit].recv(65536)
                came.append((switch.address, workers.address(bit), packet))
        workers.send_bytes(0, b"")
        sent.append((workers.address(0), switch.address, b""))
        eventually(lambda: switch.port_counters()["packets_in"] == 41)
    captured = read(path)
    address = sent[0][1]
    assert [packet for packet in captured if packet[1] == address] == sent
    assert [packet for packet in captured if packet[0] == address] == came
    assert switch.capture_counters() == {"captured": 81, "missing": 0, "error": 0}


@needs_ipv6
def test_workers_and_strangers_of_both_kinds(tmp_path: Path) -> None:
    """A switch at :: has that address in the records, and 0.0.0.0 in those of IPv4."""
    path = tmp_path / "capture.pcap"
    with (
        Switch("::", pcap=path) as switch,
        bound_socket(socket.SOCK_DGRAM, "::1", 0) as six,
        bound_socket(socket.SOCK_DGRAM, "127.0.0.1", 0) as four,
    ):
        port = switch.address[1]
        strangers = six.getsockname()[:2], four.getsockname()
        six.sendto(b"six", ("::1", port))
        eventually(lambda: switch.port_counters()["packets_in"] == 1)
        four.sendto(b"four!", ("127.0.0.1", port))
        eventually(lambda: switch.port_counters()["packets_in"] == 2)
    assert read(path) == [
        (strangers[0], ("::", port), b"six"),
        (strangers[1], ("0.0.0.0", port), b"four!"),
    ]


def test_trains_and_large_packets(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    with Switch(pcap=path) as switch, PlainWorkers(1, words=16_372, slots=256).join(switch) as workers:
        for seq in range(40):
            workers.send(0, seq, np.full(16_372, seq, np.uint32))
            assert workers.receive(0)[0].seq == seq
    packets = read(path)
    assert [len(payload) for _, _, payload in packets] == [HEADER_BYTES + 4 * 16_372] * 80


def test_shows_what_the_switch_saw(tmp_path: Path) -> None:
    """Capture is between faults and switch: what is lost on the way out is in it, on the way in not."""
    path = tmp_path / "capture.pcap"
    with Switch(pcap=path, faults=Faults(loss=0.5, seed=1)) as switch, PlainWorkers(1) as workers:
        workers.first_seq = 8
        workers.join(switch)
        for _ in range(200):
            workers.send(0, 0)
        eventually(lambda: switch.port_counters()["packets_in"] == 200)
        lost = switch.fault_counters()
    packets = read(path)
    arrived = 200 - lost["lost_in"]
    assert len(packets) == 2 * arrived
    assert switch.port_counters()["packets_out"] == arrived - lost["lost_out"]


def test_written_while_idle(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    with Switch(pcap=path) as switch, PlainWorkers(1).join(switch) as workers:
        workers.send(0, 0)
        workers.receive(0)
        eventually(lambda: switch.capture_counters()["captured"] == 2)
        assert len(read(path)) == 2


def test_full_disk_is_a_warning() -> None:
    with Switch(pcap=Path("/dev/full")) as switch, PlainWorkers(1).join(switch) as workers:
        for seq in range(10):
            workers.send(0, seq)
            workers.receive(0)
    assert switch.capture_counters()["missing"] == 20
    (warning,) = switch.warnings
    assert "No space left on device" in warning
    assert "20 packets" in warning


def test_a_capture_cut_short_is_still_readable(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, before[1]))
    try:
        with Switch(pcap=path) as switch, PlainWorkers(1, words=2000, slots=256).join(switch) as workers:
            for seq in range(250):
                workers.send(0, seq, np.full(2000, seq, np.uint32))
                workers.receive(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    counters = switch.capture_counters()
    assert len(read(path)) == counters["captured"] > 100
    assert counters["captured"] + counters["missing"] == 500
    assert path.stat().st_size <= 1_500_000
    assert "File too large" in switch.warnings[0]


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pcap is .*nowhere"):
        Switch(pcap=tmp_path / "nowhere" / "capture.pcap").start()
    with pytest.raises(UsageError, match="pcap is"):
        Switch(pcap=tmp_path).start()
