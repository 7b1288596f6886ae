"""Frames that are no packets of the protocol, and what a switch must do with them, said a second time.

They pass between stations, ask for the switch, or look so much like packets of the protocol that only an
address, an option or a fragment's offset tells them apart. None of them may change a slot or a counter.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from random import Random

from switchagg.wire.header import DEFAULT_PORT
from tests.p4.device_under_test import Frame
from tests.p4.engine import ADDRESS, mac_of

BROADCAST = 0xFFFFFFFFFFFF
_OURS = ipaddress.IPv4Address(ADDRESS.ip).packed
_MAC = ADDRESS.mac.to_bytes(6, "big")
_TAGS = (b"\x81\0", b"\x88\xa8")
_SHORTEST = 60
KINDS = ("own source", "ARP answered", "echo answered", "not served", "forwarded", "flooded")


def switched(
    port: int, frame: bytes, stations: Mapping[int, int], ports: tuple[int, ...]
) -> tuple[str, list[Frame]] | None:
    """Returns one of `KINDS` and what comes of a whole frame; None for a packet of the protocol.

    Args:
        stations: ports by MAC.
        ports: all of the switch's.
    """
    destination, source, kind = frame[:6], frame[6:12], frame[12:14]
    arp, ipv4 = kind == b"\x08\x06", kind == b"\x08\x00"
    tags = 4 if kind in _TAGS else 0
    inner = frame[12 + tags : 14 + tags]
    if (
        source == _MAC
        or (inner == b"\x08\x06" and frame[28 + tags : 32 + tags] == _OURS)
        or (inner == b"\x08\x00" and frame[26 + tags : 30 + tags] == _OURS)
    ):
        return "own source", []
    if inner in _TAGS or (destination[:5] == b"\x01\x80\xc2\0\0" and 1 <= destination[5] <= 15):
        return "not served", []
    if arp and frame[16:18] == b"\x08\x00" and frame[20:22] == b"\0\x01" and frame[38:42] == _OURS:
        head = source + _MAC + frame[12:20] + b"\0\x02"
        return "ARP answered", [(port, head + _MAC + _OURS + frame[22:32] + frame[42:])]
    if destination == _MAC:
        plain = ipv4 and frame[14] == 0x45 and not (frame[20] & 0x3F or frame[21]) and frame[30:34] == _OURS
        if plain and frame[23] == 17 and frame[36:38] == DEFAULT_PORT.to_bytes(2, "big"):
            return None
        if plain and frame[23] == 1 and frame[34:36] == b"\x08\0":
            checksum = (int.from_bytes(frame[36:38], "big") + 0x0800) % 0xFFFF
            header = frame[14:22] + b"\x40" + frame[23:24] + bytes(2) + _OURS + frame[26:30]
            header = header[:10] + _checksum(header).to_bytes(2, "big") + header[12:]
            head = source + _MAC + frame[12:14] + header + bytes(2)
            return "echo answered", [(port, head + checksum.to_bytes(2, "big") + frame[38:])]
        return "not served", []
    known = stations.get(int.from_bytes(destination, "big"))
    if known is not None:
        return "forwarded", [(known, frame)] if known != port else []
    return "flooded", [(each, frame) for each in ports if each != port]


def draw(rng: Random, hosts: list[str], payload: bytes) -> bytes:
    """Returns a random frame, which may be one of the protocol after all.

    Args:
        hosts: addresses of stations.
        payload: of a packet of the protocol.
    """
    host, other = rng.sample(hosts, 2)
    source_ip = rng.choice([host] * 9 + [ADDRESS.ip])
    target_ip = rng.choice([other, ADDRESS.ip, "10.9.9.9"])
    source = rng.choice([mac_of(host)] * 9 + [ADDRESS.mac])
    destination = rng.choice([mac_of(other), ADDRESS.mac, BROADCAST, mac_of("10.9.9.9")])
    if rng.random() < 0.5:
        target_ip, destination = ADDRESS.ip, ADDRESS.mac
    head = destination.to_bytes(6, "big") + source.to_bytes(6, "big")
    ips = [ipaddress.IPv4Address(ip).packed for ip in (source_ip, target_ip)]
    body = rng.choice([payload, rng.randbytes(rng.randrange(200))])
    match rng.choice(["ARP", "echo", "echo", "UDP", "UDP", "UDP", "TCP", "other", "VLAN"]):
        case "ARP":
            operation = rng.choice([1, 1, 1, 2, 3])
            kind = rng.choice([0x0800, 0x0800, 0x0800, 0x86DD])
            packet = struct.pack(">HHBBH", 1, kind, 6, 4, operation)
            packet += source.to_bytes(6, "big") + ips[0] + bytes(6) + ips[1]
            return (head + b"\x08\x06" + packet).ljust(_SHORTEST, b"\0")
        case "echo":
            message = bytes([rng.choice([8, 8, 8, 0, 3]), rng.choice([0, 0, 0, 1])])
            packet = message + bytes(2) + rng.randbytes(4) + body
            packet = packet[:2] + _checksum(packet).to_bytes(2, "big") + packet[4:]
            return _ipv4(rng, head, 1, ips, packet)
        case "UDP":
            udp_ports = rng.choice([4000, 4001]), rng.choice([DEFAULT_PORT, DEFAULT_PORT, 99])
            packet = struct.pack(">HHHH", *udp_ports, 8 + len(body), 0) + body
            return _ipv4(rng, head, 17, ips, packet)
        case "TCP":
            return _ipv4(rng, head, 6, ips, rng.randbytes(20) + body)
        case "VLAN":
            untagged = _ipv4(rng, head, 17, ips, body)
            tag = rng.choice([b"\x81\0\0\x05", b"\x81\0\0\0", b"\x88\xa8\0\x05"])
            return untagged[:12] + tag * rng.choice([1, 1, 1, 2]) + untagged[12:]
        case _:
            return (head + rng.choice([b"\x86\xdd", b"\x88\xb5"]) + body).ljust(_SHORTEST, b"\0")


def _ipv4(rng: Random, head: bytes, protocol: int, ips: list[bytes], body: bytes) -> bytes:
    options = rng.choice([b""] * 5 + [b"\x01\x01\x01\x00"])
    fragment = rng.choice([0x4000] * 3 + [0] * 3 + [0x2000, 0x0001])
    words = 5 + len(options) // 4
    fields = (0x40 | words, rng.randrange(256), 4 * words + len(body), rng.randrange(1 << 16), fragment)
    ip = struct.pack(">BBHHHBBH", *fields, rng.randint(1, 255), protocol, 0) + b"".join(ips) + options
    ip = ip[:10] + _checksum(ip).to_bytes(2, "big") + ip[12:]
    return (head + b"\x08\x00" + ip + body).ljust(_SHORTEST, b"\0")


def _checksum(data: bytes) -> int:
    even = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(even) // 2}H", even))
    return -total % 0xFFFF
