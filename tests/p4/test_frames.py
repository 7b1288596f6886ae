"""The switch as a rack's switch: its own addresses, stations, and what it does not let through."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator

import pytest

from switchagg.p4program.entries import station_entry
from switchagg.p4program.frames import CONTROLLER_MAC, frame
from switchagg.p4program.program import Entries, Station
from switchagg.wire.header import Header, Op, encode

from .device_under_test import DeviceUnderTest
from .engine import ADDRESS, PORTS, mac_of

ME, YOU = "10.0.7.1", "10.0.7.2"
BROADCAST = 0xFFFFFFFFFFFF


@pytest.fixture
def dut(installed: tuple[DeviceUnderTest, Entries]) -> Iterator[DeviceUnderTest]:
    """A device that knows two stations: ME behind port 3 and YOU behind port 6."""
    dut, _ = installed
    entries = [station_entry(Station(3, mac_of(ME))), station_entry(Station(6, mac_of(YOU)))]
    for entry in entries:
        dut.insert(entry)
    yield dut
    for entry in entries:
        dut.delete(entry)


def _ip(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def _ethernet(destination: int, source: int, ether_type: int, body: bytes) -> bytes:
    head = destination.to_bytes(6, "big") + source.to_bytes(6, "big") + ether_type.to_bytes(2, "big")
    return (head + body).ljust(60, b"\0")


def _arp(operation: int, sender: tuple[int, str], target: tuple[int, str]) -> bytes:
    head = struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation)
    return b"".join(
        [head, sender[0].to_bytes(6, "big"), _ip(sender[1]), target[0].to_bytes(6, "big"), _ip(target[1])]
    )


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _echo(kind: int, source: str, destination: str, body: bytes, code: int = 0) -> bytes:
    icmp = bytearray(struct.pack(">BBHHH", kind, code, 0, 77, 1) + body)
    icmp[2:4] = _checksum(bytes(icmp)).to_bytes(2, "big")
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(icmp), 9, 0x4000, 64, 1, 0))
    ip += _ip(source) + _ip(destination)
    ip[10:12] = _checksum(bytes(ip)).to_bytes(2, "big")
    return bytes(ip + icmp)


def test_arp_requests_for_the_switch_are_answered(dut: DeviceUnderTest) -> None:
    request = _arp(1, (mac_of(ME), ME), (0, ADDRESS.ip))
    reply = _arp(2, (ADDRESS.mac, ADDRESS.ip), (mac_of(ME), ME))
    answer = [(3, _ethernet(mac_of(ME), ADDRESS.mac, 0x0806, reply))]
    assert dut.send(3, _ethernet(BROADCAST, mac_of(ME), 0x0806, request)) == answer
    assert dut.send(3, _ethernet(ADDRESS.mac, mac_of(ME), 0x0806, request)) == answer


def test_other_arp_requests_are_flooded(dut: DeviceUnderTest) -> None:
    request = _ethernet(BROADCAST, mac_of(ME), 0x0806, _arp(1, (mac_of(ME), ME), (0, YOU)))
    assert sorted(dut.send(3, request)) == [(port, request) for port in PORTS if port != 3]


def test_arp_replies_are_forwarded(dut: DeviceUnderTest) -> None:
    reply = _arp(2, (mac_of(YOU), YOU), (mac_of(ME), ME))
    whole = _ethernet(mac_of(ME), mac_of(YOU), 0x0806, reply)
    assert dut.send(6, whole) == [(3, whole)]


@pytest.mark.parametrize(
    "body", [b"", b"abcdefgh" * 7, b"\xff\xff" * 4, bytes(2) + b"\xf7\xff" * 3, bytes(700)]
)
def test_echo_requests_are_answered(dut: DeviceUnderTest, body: bytes) -> None:
    request = _ethernet(ADDRESS.mac, mac_of(ME), 0x0800, _echo(8, ME, ADDRESS.ip, body))
    ((port, answer),) = dut.send(3, request)
    expected = _ethernet(mac_of(ME), ADDRESS.mac, 0x0800, _echo(0, ADDRESS.ip, ME, body))
    assert port == 3
    size = 34 + 8 + len(body)
    assert answer[:36] + answer[38:] == expected[:36] + expected[38:]
    assert _checksum(answer[34:size]) in (0, 0xFFFF)


def test_an_echo_has_its_own_time_to_live(dut: DeviceUnderTest) -> None:
    request = bytearray(_ethernet(ADDRESS.mac, mac_of(ME), 0x0800, _echo(8, ME, ADDRESS.ip, b"far away")))
    request[22] = 1
    request[24:26] = bytes(2)
    request[24:26] = _checksum(bytes(request[14:34])).to_bytes(2, "big")
    ((_, answer),) = dut.send(3, bytes(request))
    assert answer[22] == 64
    assert _checksum(answer[14:34]) == 0


def test_every_echo_checksum_is_right(dut: DeviceUnderTest) -> None:
    """Around the carry: the identifier makes the checksum what is wanted."""
    for wanted in (0x0000, 0x0001, 0xF7FE, 0xF7FF, 0xF800, 0xF801, 0xFFFE):
        body = (_checksum(struct.pack(">BBHHHH", 8, 0, wanted, 77, 1, 0))).to_bytes(2, "big")
        packet = bytearray(_echo(8, ME, ADDRESS.ip, body))
        packet[22:24] = wanted.to_bytes(2, "big")
        ((_, answer),) = dut.send(3, _ethernet(ADDRESS.mac, mac_of(ME), 0x0800, bytes(packet)))
        assert answer[34] == 0
        assert _checksum(answer[34 : 34 + 10]) in (0, 0xFFFF), hex(wanted)


def test_frames_pass_unchanged(dut: DeviceUnderTest) -> None:
    token = encode(Header(Op.SUM, 1, 7, 1, 2, 3)) + bytes(64)
    frames = [
        frame(b"x" * 100, (mac_of(ME), ME, 5), (mac_of(YOU), YOU, 6)),
        frame(token, (mac_of(ME), ME, 5), (mac_of(YOU), YOU, ADDRESS.udp_port)),
        frame(token[:3], (mac_of(ME), ME, 5), (mac_of(YOU), YOU, ADDRESS.udp_port)),
        _ethernet(mac_of(YOU), mac_of(ME), 0x0800, _echo(8, ME, YOU, b"ping")),
        _ethernet(mac_of(YOU), mac_of(ME), 0x86DD, bytes(60)),
        _ethernet(mac_of(YOU), mac_of(ME), 0x8100, b"\x00\x05\x08\x00" + bytes(64)),
        _ethernet(mac_of(YOU), mac_of(ME), 0x88A8, b"\x00\x05\x86\xdd" + bytes(64)),
        _ethernet(mac_of(YOU), mac_of(ME), 0x8100, b"\x00\x05\x08\x00" + _echo(8, ME, YOU, b"ping")),
        _ethernet(mac_of(YOU), mac_of(ME), 0x8100, b"\x00\x00\x08\x06" + _arp(2, (1, ME), (2, YOU))),
    ]
    broken = bytearray(frames[0])
    broken[24] ^= 1  # a wrong IPv4 checksum stays wrong
    for each in (*frames, bytes(broken)):
        assert dut.send(3, each) == [(6, each)]


def test_unknown_stations_are_flooded_but_not_back(dut: DeviceUnderTest) -> None:
    stray = frame(b"x", (mac_of(ME), ME, 5), (mac_of("10.0.9.9"), "10.0.9.9", 6))
    assert sorted(dut.send(17, stray)) == [(port, stray) for port in PORTS if port != 17]


def test_frames_do_not_go_back_where_they_came_from(dut: DeviceUnderTest) -> None:
    """As when a switch behind a port floods what it does not know: sent back, it would go round for ever."""
    before = dut.cell("SwitchEgress.returned", 0)
    there = frame(b"x", (mac_of(YOU), YOU, 5), (mac_of(ME), ME, 6))
    assert dut.send(3, there) == []
    assert dut.send(6, there) == [(3, there)]
    assert len(dut.send(3, _ethernet(BROADCAST, mac_of(ME), 0x88B5, bytes(46)))) == len(PORTS) - 1
    assert dut.cell("SwitchEgress.returned", 0) == before + 1


@pytest.mark.parametrize("last", range(0x12))
def test_what_is_for_neighbours_on_a_link_is_not_forwarded(dut: DeviceUnderTest, last: int) -> None:
    sent = _ethernet(0x0180C2000000 | last, mac_of(ME), 0x8809, bytes(46))
    assert len(dut.send(3, sent)) == (0 if 1 <= last <= 0xF else len(PORTS) - 1)


def test_what_is_for_the_switch_and_not_served_goes_nowhere(dut: DeviceUnderTest) -> None:
    to_switch = ADDRESS.mac, ADDRESS.ip, 99
    fragment = bytearray(frame(bytes(40), (mac_of(ME), ME, 5), (*to_switch[:2], ADDRESS.udp_port)))
    fragment[20] = 0x20
    frames = [
        frame(b"x", (mac_of(ME), ME, 5), to_switch),
        _ethernet(ADDRESS.mac, mac_of(ME), 0x86DD, bytes(60)),
        _ethernet(ADDRESS.mac, mac_of(ME), 0x0800, _echo(8, ME, YOU, b"another address" + b"!")),
        _ethernet(ADDRESS.mac, mac_of(ME), 0x0800, _echo(0, ME, ADDRESS.ip, b"a reply!")),
        bytes(fragment),
    ]
    for each in frames:
        assert dut.send(3, each) == []


def test_nothing_with_the_switchs_own_source_passes(dut: DeviceUnderTest) -> None:
    own = ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port
    result = encode(Header(Op.RESULT, 0, 7, 1, 2, 3))
    frames = [
        frame(result, own, (mac_of(YOU), YOU, 6)),
        frame(result, (mac_of(ME), *own[1:]), (mac_of(YOU), YOU, 6)),
        frame(result, (ADDRESS.mac, ME, 5), (mac_of(YOU), YOU, 6)),
        _ethernet(BROADCAST, mac_of(ME), 0x0806, _arp(2, (mac_of(ME), ADDRESS.ip), (0, YOU))),
        _ethernet(BROADCAST, ADDRESS.mac, 0x0806, _arp(1, (mac_of(ME), ME), (0, YOU))),
        _ethernet(BROADCAST, ADDRESS.mac, 0x88B5, bytes(46)),
    ]
    for each in frames:
        assert dut.send(3, each) == []


@pytest.mark.parametrize("tag", [b"\x81\x00\0\0", b"\x81\x00\xa0\x05", b"\x88\xa8\0\0", b"\x81\x00\0\0" * 2])
def test_a_tag_does_not_hide_the_switchs_own_source(dut: DeviceUnderTest, tag: bytes) -> None:
    """Stations take a frame of VLAN 0 for one without a tag."""
    frames = [
        frame(b"x" * 30, (mac_of(ME), ADDRESS.ip, ADDRESS.udp_port), (mac_of(YOU), YOU, 6)),
        frame(b"x" * 30, (ADDRESS.mac, ME, 5), (mac_of(YOU), YOU, 6)),
        _ethernet(BROADCAST, mac_of(ME), 0x0806, _arp(2, (mac_of(ME), ADDRESS.ip), (0, YOU))),
    ]
    for each in frames:
        assert dut.send(3, each[:12] + tag + each[12:]) == []


def test_nothing_with_a_tag_is_for_the_switch(dut: DeviceUnderTest) -> None:
    own = ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port
    packet = frame(encode(Header(Op.SUM, 0, 7, 1, 2, 3)), (mac_of(ME), ME, 5), own)
    request = _ethernet(ADDRESS.mac, mac_of(ME), 0x0806, _arp(1, (mac_of(ME), ME), (0, ADDRESS.ip)))
    for each in (packet, request):
        assert dut.send(3, each[:12] + b"\x81\x00\0\0" + each[12:]) == []


def test_frames_that_end_too_early_go_nowhere(dut: DeviceUnderTest) -> None:
    whole = frame(bytes(80), (mac_of(ME), ME, 5), (mac_of(YOU), YOU, ADDRESS.udp_port))
    for size in (5, 20, 36, 50):
        assert dut.send(3, whole[:size]) == []


def test_the_controller_sends_by_any_port(dut: DeviceUnderTest) -> None:
    sent = _ethernet(BROADCAST, CONTROLLER_MAC, 0x88CC, b"hello".ljust(46, b"\0"))
    target = dut.target
    assert dut.send(target.controller_port, (9).to_bytes(2, "big") + sent) == [(9, sent)]
