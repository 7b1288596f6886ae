"""IP addresses and ports as people write them: 10.0.0.1:8080, [fd00::1]:8080.

An IPv6 address of a host is global, unique local (fd00::/8) or ::1. Link-local ones, such as fe80::1%eth0,
are refused: the interface beside them means nothing to a peer.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final

from switchagg.errors import NetworkError, UsageError

ACCEPTED: Final = "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1"
ANY_IPV6: Final = "::"  # a socket there also takes packets of IPv4
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")


def parse_address(what: str, text: str) -> IPv4Address | IPv6Address:
    """Returns an address that a host can have, or the unspecified one; of ::ffff:a.b.c.d, a.b.c.d.

    Raises `UsageError` for anything else; `what` begins its message.
    """
    try:
        found = ip_address(text)
    except ValueError:
        raise UsageError(f"{what} is {text!r}; accepted: {ACCEPTED}") from None
    if isinstance(found, IPv6Address):
        if found.scope_id is not None or found.is_link_local:
            raise UsageError(
                f"{what} is {text!r}, a link-local address, which means nothing without an interface; "
                f"accepted: a global or unique local one, such as fd00::1"
            )
        found = found.ipv4_mapped or found
    if isinstance(found, IPv4Address) and found in _THIS_NETWORK and not found.is_unspecified:
        raise UsageError(f"{what} is {text!r}, which no host has; accepted: {ACCEPTED}")
    return found


def parse_host_port(what: str, text: str, example: str) -> tuple[str, int]:
    """Returns host and port of ``host:port`` or ``[fd00::1]:port``; the host may be empty.

    Raises `UsageError` for anything else; `what` begins its message, and `example` ends it.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise UsageError(f"{what} is {text!r}; accepted: an IPv6 address in brackets, such as [::1]:{port}")
    host = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 0xFFFF):
        raise UsageError(f"{what} is {text!r}; accepted: HOST:PORT such as {example}")
    if bracketed:
        host = str(parse_address(what, host))
    return host, int(port)


def show_address(host: str, port: int) -> str:
    """Returns ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def exchanges(at: str, other: str) -> bool:
    """Returns True if a socket that is bound to one address exchanges packets with another one."""
    return at == ANY_IPV6 or (":" in at) == (":" in other)


def is_loopback(host: str) -> bool:
    """Returns whether only this computer reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(name: str) -> str:
    """Returns the first IPv4 address of a name, or the first IPv6 one if it has none; of an address, itself.

    Raises `OSError` or `UnicodeError` if there is none.
    """
    with suppress(ValueError):
        return str(ip_address(name))
    found = [str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)]
    return min(found, key=lambda address: ":" in address)


def local_address_towards(host: str, port: int) -> str:
    """Returns the address of this host from which packets go to `host`.

    Raises `NetworkError` if there is no route, or the name does not resolve.
    """
    try:
        there = resolve(host)
        with socket.socket(family_of(there), socket.SOCK_DGRAM) as probe:
            probe.connect((there, port))
            return str(parse_address("address", str(probe.getsockname()[0])))
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NetworkError(f"no route to {show_address(host, port)}: {reason}") from error


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bound_socket(kind: socket.SocketKind, host: str, port: int) -> socket.socket:
    """Returns a socket that is bound there; at ::, for both families. Raises `OSError`."""
    made = socket.socket(family_of(host), kind)
    try:
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OverflowError:
        made.close()
        raise OSError(errno.EINVAL, f"there is no port {port}") from None
    except OSError:
        made.close()
        raise
    return made
