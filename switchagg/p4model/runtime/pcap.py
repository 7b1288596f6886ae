"""Reading the classic pcap format: the packets of a capture, for `switchagg p4 run`."""

from __future__ import annotations

import struct
from pathlib import Path

from switchagg.errors import UsageError

_MAGICS = {
    b"\xa1\xb2\xc3\xd4": ">",
    b"\xd4\xc3\xb2\xa1": "<",
    b"\xa1\xb2\x3c\x4d": ">",
    b"\x4d\x3c\xb2\xa1": "<",
}
_NANOSECONDS = (b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1")


def read_pcap(path: Path) -> list[tuple[float, bytes]]:
    """The (time in seconds, packet) of a capture. Raises UsageError if it is none, or is cut off."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    order = _MAGICS.get(data[:4])
    if order is None or len(data) < 24:
        raise UsageError(f"{path} is no pcap file (pcapng is not read; `editcap -F pcap` converts it)")
    fraction = 1e9 if data[:4] in _NANOSECONDS else 1e6
    packets = []
    place = 24
    while place < len(data):
        if place + 16 > len(data):
            raise UsageError(f"{path} ends within a packet's header")
        seconds, rest, size, _ = struct.unpack_from(order + "IIII", data, place)
        place += 16
        if place + size > len(data):
            raise UsageError(f"{path} ends within a packet")
        packets.append((seconds + rest / fraction, data[place : place + size]))
        place += size
    return packets
