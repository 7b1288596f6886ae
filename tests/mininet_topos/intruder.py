"""What a host without a place in a job may send: forged contributions, and forged results.

It has seen everything that passed another host's link, tokens too, and knows what comes next. As a program
it runs on that host, and sends what it is given on standard input, a frame a line in hexadecimal digits.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from switchagg.wire import header as wire

_ETHERNET = 14
_IPV4 = 20
_UDP = 8


def forged(frame: bytes, slots: int, random: np.random.Generator) -> Iterator[bytes]:
    """What comes after a frame that carries words: the same packet and those of the next rounds, with others.

    Nothing for any other frame.
    """
    start = _ETHERNET + _IPV4 + _UDP
    if len(frame) < start or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP:
        return
    length = struct.unpack(">H", frame[38:40])[0] - _UDP
    try:
        header, words = wire.decode(frame[start : start + length])
    except wire.WireError:
        return
    if words is None:
        return
    base = header.slot - header.slot % slots
    for ahead in range(4):
        seq = (header.seq + ahead) & 0xFFFFFFFF
        other = replace(header, seq=seq, slot=base + (header.slot - base + ahead) % slots)
        drawn = random.integers(0, 1 << 32, len(words), dtype=np.uint32)
        yield _whole(frame[:start], wire.encode(other, drawn))


def _whole(headers: bytes, datagram: bytes) -> bytes:
    """A frame with these headers, their lengths and checksums as they have to be."""
    ip = bytearray(headers[_ETHERNET : _ETHERNET + _IPV4])
    ip[2:4] = struct.pack(">H", _IPV4 + _UDP + len(datagram))
    ip[10:12] = b"\0\0"
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip[10:12] = struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF)
    udp = headers[-_UDP:-4] + struct.pack(">HH", _UDP + len(datagram), 0)
    return headers[:_ETHERNET] + bytes(ip) + udp + datagram


if __name__ == "__main__":
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((sys.argv[1], 0))
        for line in sys.stdin:
            out.send(bytes.fromhex(line))
