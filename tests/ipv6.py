"""A mark for tests that need IPv6 on loopback."""

from __future__ import annotations

import socket

import pytest

from switchagg.addresses import bound_socket


def _why_not() -> str:
    try:
        bound_socket(socket.SOCK_DGRAM, "::1", 0).close()
    except OSError as error:
        return f"no IPv6 on loopback here: {error.strerror}"
    return ""


needs_ipv6 = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
