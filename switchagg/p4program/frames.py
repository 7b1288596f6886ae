"""Packets of the controller's port: UDP payloads as Ethernet frames behind the programs' controller headers.

UDP payload -> packet_out -> [2 bytes: port] [Ethernet | IPv4 | UDP | payload]   to the controller's port
from the controller's port   [2 bytes: port] [the same] -> packet_in -> UDP payload
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

from switchagg.errors import UsageError
from switchagg.p4program.program import SwitchAddress, Target

_PACKET_OUT: Final = struct.Struct(">H")
_ETHERNET_IPV4: Final = struct.Struct(">6s6sH BBHHHBBHII HHHH")
_ETHERTYPE_IPV4: Final = 0x0800
_UDP: Final = 17


def frame(
    payload: bytes,
    source: tuple[int, str, int],
    destination: tuple[int, str, int],
    *,
    pad: bool = True,
    ecn: int = 0,
) -> bytes:
    """Returns a UDP datagram as an Ethernet frame of at least 60 bytes.

    Args:
        source, destination: (MAC, IPv4 address, UDP port) each.
        pad: False leaves a short frame as short as it is.
        ecn: IP's field of ECN.
    """
    ips = [int(ipaddress.IPv4Address(ip)) for _, ip, _ in (source, destination)]
    macs = [mac.to_bytes(6, "big") for mac, _, _ in (destination, source)]
    fields = [0x45, ecn, 28 + len(payload), 0, 0x4000, 64, _UDP, 0, *ips]
    fields[7] = _checksum(struct.pack(">BBHHHBBHII", *fields))
    udp = source[2], destination[2], 8 + len(payload), 0
    whole = _ETHERNET_IPV4.pack(*macs, _ETHERTYPE_IPV4, *fields, *udp) + payload
    return whole.ljust(60, b"\0") if pad else whole


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


CONTROLLER_MAC: Final = 0x020000000001
CONTROLLER_IP: Final = "169.254.0.1"


def packet_out(target: Target, address: SwitchAddress, payload: bytes) -> bytes:
    """Returns what the controller sends to its port for an INIT, or any UDP payload to the switch itself."""
    source = (CONTROLLER_MAC, CONTROLLER_IP, address.udp_port)
    head = _PACKET_OUT.pack(target.packet_out_port)
    return head + frame(payload, source, (address.mac, address.ip, address.udp_port))


def packet_in(packet: bytes) -> bytes:
    """Returns the UDP payload of what came to the controller's port. Raises `UsageError` for others."""
    body = packet[_PACKET_OUT.size :]
    if len(body) < _ETHERNET_IPV4.size or body[12:14] != b"\x08\x00" or body[23] != _UDP:
        raise UsageError(f"a packet-in of {len(packet)} bytes holds no UDP datagram")
    size = int.from_bytes(body[38:40], "big")
    return bytes(body[42 : 34 + size])
