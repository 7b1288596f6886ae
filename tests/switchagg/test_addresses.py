"""Addresses as people write them, and what is refused of them."""

from __future__ import annotations

import socket

import pytest

from switchagg.addresses import (
    bound_socket,
    exchanges,
    local_address_towards,
    parse_address,
    parse_host_port,
    resolve,
    show_address,
)
from switchagg.errors import NetworkError, UsageError
from tests.ipv6 import needs_ipv6


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::", "::"),
        ("FD00:0::1", "fd00::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_addresses_are_made_canonical(text: str, canonical: str) -> None:
    assert str(parse_address("host", text)) == canonical


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "accepted: an IPv4 or IPv6 address"),
        ("localhost", "accepted: an IPv4 or IPv6 address"),
        ("[::1]", "accepted: an IPv4 or IPv6 address"),
        ("::1:", "accepted: an IPv4 or IPv6 address"),
        ("10.0.0.256", "accepted: an IPv4 or IPv6 address"),
        ("fe80::1", "a link-local address"),
        ("fe80::1%eth0", "a link-local address"),
        ("fd00::1%eth0", "a link-local address"),
        ("0.0.0.7", "which no host has"),
        ("::ffff:0.0.0.7", "which no host has"),
    ],
)
def test_no_address_of_a_host(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_address("host", text)
    assert str(raised.value).startswith(f"host is {text!r}")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[::1]:5000", ("::1", 5000)),
        ("[FD00::1]:0", ("fd00::1", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("node1:80", ("node1", 80)),
        (":80", ("", 80)),
    ],
)
def test_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_host_port("listen", text, "127.0.0.1:8080") == parts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("::1:5000", r"accepted: an IPv6 address in brackets, such as \[::1\]:5000"),
        ("::1", "accepted: an IPv6 address in brackets"),
        ("[::1]", "accepted: "),
        ("[::1]:x", "accepted: HOST:PORT such as 127.0.0.1:8080"),
        ("node1", "accepted: HOST:PORT such as 127.0.0.1:8080"),
        ("10.0.0.1:65536", "accepted: HOST:PORT such as 127.0.0.1:8080"),
        ("[fe80::1%lo]:80", "a link-local address"),
        ("[node1]:80", "accepted: an IPv4 or IPv6 address"),
    ],
)
def test_no_host_and_port(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"listen is '.*{problem}"):
        parse_host_port("listen", text, "127.0.0.1:8080")


def test_shown_with_brackets() -> None:
    assert show_address("::1", 80) == "[::1]:80"
    assert show_address("10.0.0.1", 80) == "10.0.0.1:80"


def test_who_exchanges_packets() -> None:
    assert exchanges("::1", "fd00::1")
    assert exchanges("::", "fd00::1")
    assert exchanges("::", "10.0.0.1")
    assert exchanges("0.0.0.0", "10.0.0.1")
    assert not exchanges("0.0.0.0", "fd00::1")
    assert not exchanges("fd00::1", "10.0.0.1")


@needs_ipv6
def test_the_address_towards_a_host() -> None:
    assert local_address_towards("::1", 9) == "::1"
    assert local_address_towards("127.0.0.5", 9) == "127.0.0.1"
    assert resolve("localhost") == "127.0.0.1"  # also where ::1 is listed first
    with pytest.raises(NetworkError, match=r"no route to \[2001:db8::1\]:9|no route to no\.such"):
        local_address_towards("no.such.host.invalid", 9)


@needs_ipv6
def test_a_socket_for_both_families() -> None:
    with bound_socket(socket.SOCK_STREAM, "::", 0) as made:
        made.listen()
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, made.getsockname()[1]), timeout=60).close()
