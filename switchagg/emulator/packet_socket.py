"""Whole Ethernet frames from and to an interface of this host, as they would be on a cable.

    kernel: frame without its outer VLAN tag, checksum half done, + auxiliary data --> the frame

A packet socket takes the outer tag out of a frame and hands it out beside it. And what a process of this host
has sent over a virtual link has a checksum that the kernel left for a network card to complete; a receiver
behind us, who has to check it, would drop such a packet.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from switchagg.errors import SwitchError, UsageError

_ALL_PROTOCOLS: Final = 3
_PACKET_OUTGOING: Final = 4
_LARGEST: Final = 1 << 17
# From linux/if_packet.h; Python's socket module does not have them.
_SO_RCVBUFFORCE: Final = 33
_SOL_PACKET: Final = 263
_ADD_MEMBERSHIP: Final = 1
_PROMISCUOUS: Final = 1
_AUXDATA: Final = 8
_AUXILIARY: Final = struct.Struct("=IIIHHHH")  # status, two lengths, two offsets, tag, tag's EtherType
_CHECKSUM_NOT_READY: Final = 1 << 3
_TAG_VALID: Final = 1 << 4
_TAG_TYPE_VALID: Final = 1 << 6

_VLAN: Final = 0x8100
_TAGS: Final = (_VLAN, 0x88A8)
_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_TCP: Final = 6
_UDP: Final = 17
_CHECKSUM_AT: Final = {_TCP: 16, _UDP: 6}
# Hop-by-hop, routing and destination headers: 8 bytes, and 8 more for each unit of their second byte.
_IPV6_EXTENSIONS: Final = (0, 43, 60)


def open_interface(name: str) -> socket.socket:
    """Returns a socket that gets all frames of an interface.

    Raises:
        UsageError: there is no such interface.
        SwitchError: no permission for packet sockets.
    """
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    except PermissionError:
        raise SwitchError("packet sockets need root or CAP_NET_RAW") from None
    try:
        made.setsockopt(_SOL_PACKET, _AUXDATA, 1)
        made.bind((name, 0))
        # A switch also takes the frames that are addressed to other stations.
        request = struct.pack("IHH8s", socket.if_nametoindex(name), _PROMISCUOUS, 0, b"")
        made.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
    except OSError as error:
        made.close()
        raise UsageError(f"interface {name}: {error.strerror}; `ip link` lists those of this host") from None
    return made


def open_buffered(name: str, size: int) -> socket.socket:
    """Returns a socket of `open_interface` that does not block and holds `size` bytes of frames."""
    made = open_interface(name)
    made.setblocking(False)
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
    except PermissionError:  # root of a user namespace only
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    return made


def receive(opened: socket.socket) -> bytes | None:
    """Returns the next frame; None for one that this host sent. Raises OSError as sockets do."""
    frame, ancillary, _, source = opened.recvmsg(_LARGEST, socket.CMSG_SPACE(_AUXILIARY.size))
    # A packet socket also gets the frames that this host sends.
    if source[2] == _PACKET_OUTGOING:
        return None
    return whole(frame, ancillary)


def whole(frame: bytes, ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """Returns a frame as it would be on a cable, from what `recvmsg` gave of a socket of `open_interface`."""
    for level, kind, data in ancillary:
        if (level, kind) != (_SOL_PACKET, _AUXDATA) or len(data) < _AUXILIARY.size:
            continue
        status, _, _, _, _, tag, tag_type = _AUXILIARY.unpack_from(data)
        if status & _CHECKSUM_NOT_READY:
            frame = complete_checksum(frame)
        if status & _TAG_VALID:
            outer = tag_type if status & _TAG_TYPE_VALID else _VLAN
            frame = frame[:12] + struct.pack(">HH", outer, tag) + frame[12:]
    return frame


def complete_checksum(frame: bytes) -> bytes:
    """Returns a frame whose TCP or UDP checksum covers its pseudo header only with the whole checksum.

    Other frames come back as they are.
    """
    segment = _segment(frame)
    if segment is None:
        return frame
    start, end, protocol = segment
    at = start + _CHECKSUM_AT[protocol]
    if at + 2 > end or end > len(frame):
        return frame
    covered = frame[start:end] + bytes((end - start) % 2)
    total: int = sum(struct.unpack(f">{len(covered) // 2}H", covered))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    # 0 would mean that a UDP packet has no checksum; all ones is the same number.
    checksum = (total ^ 0xFFFF) or 0xFFFF
    return frame[:at] + checksum.to_bytes(2, "big") + frame[at + 2 :]


def _segment(frame: bytes) -> tuple[int, int, int] | None:
    """Returns begin, end and IP protocol of a frame's TCP or UDP segment; None for other frames."""
    at = 12
    while (ether_type := _number(frame, at)) in _TAGS:
        at += 4
    at += 2
    if ether_type == _IPV4 and len(frame) >= at + 20:
        if _number(frame, at + 6) & 0x3FFF:  # a fragment
            return None
        protocol, start, end = frame[at + 9], at + 4 * (frame[at] & 15), at + _number(frame, at + 2)
    elif ether_type == _IPV6 and len(frame) >= at + 40:
        protocol, start, end = frame[at + 6], at + 40, at + 40 + _number(frame, at + 4)
        while protocol in _IPV6_EXTENSIONS and len(frame) >= start + 8:
            protocol, start = frame[start], start + 8 + 8 * frame[start + 1]
    else:
        return None
    return (start, end, protocol) if protocol in _CHECKSUM_AT else None


def _number(frame: bytes, at: int) -> int:
    return int.from_bytes(frame[at : at + 2], "big")
