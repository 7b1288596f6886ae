"""The largest packets of an interface, and the largest K that fits them."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from switchagg.addresses import is_loopback
from switchagg.wire.header import max_words

LOOPBACK_WORDS: Final = 16_000  # the loopback interface takes any datagram
ETHERNET_MTU: Final = 1500  # assumed of an interface that does not say

_SIOCGIFADDR: Final = 0x8915
_SIOCGIFMTU: Final = 0x8921
_IFREQ: Final = struct.Struct("16s24s")


def mtu_of(name: str) -> int:
    """Returns the MTU in bytes of an interface. Raises `OSError` where there is none of this name."""
    return int(struct.unpack_from("i", _ask(_SIOCGIFMTU, name), 16)[0])


def interface_mtu(address: str) -> int:
    """Returns the MTU in bytes of the interface that has this address, 1500 where none says so.

    Of :: it is the smallest of all interfaces that have an IPv6 address and are not loopback.
    """
    if ":" in address:
        return min(_mtus_of_ipv6(address), default=ETHERNET_MTU)
    wanted = socket.inet_aton(address)
    for _, name in socket.if_nameindex():
        try:
            found = _ask(_SIOCGIFADDR, name)[20:24]
            if found == wanted or (found[0] == 127 and wanted[0] == 127):
                return mtu_of(name)
        except OSError:  # an interface without an IPv4 address
            continue
    return ETHERNET_MTU


def _mtus_of_ipv6(address: str) -> Iterator[int]:
    wanted = IPv6Address(address)
    with suppress(OSError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, *_, name = line.split()
            found = IPv6Address(int(number, 16))
            if found == wanted or (wanted.is_unspecified and not found.is_loopback):
                yield mtu_of(name)


def _ask(request: int, name: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return fcntl.ioctl(asked, request, _IFREQ.pack(name.encode(), b""))


def words_at(address: str) -> int:
    """Returns the largest K that fits the packets of the interface with this address."""
    if is_loopback(address):
        return LOOPBACK_WORDS
    return max_words(interface_mtu(address), ipv6=":" in address)
