"""The heartbeat socket on its own."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from switchagg.control.heartbeats import HeartbeatSocket
from switchagg.wire.heartbeat import Heartbeat, Report
from tests.waiting import eventually


def test_a_heartbeat_that_cannot_be_taken_silences_nobody_else() -> None:
    heard: list[bytes] = []

    def beat(cookie: bytes, sequence: int, _: Mapping[str, int]) -> bool:
        if not sequence:
            raise ZeroDivisionError
        heard.append(cookie)
        return True

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    listening = HeartbeatSocket(address)
    listening.start(beat)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as member:
            for sequence, name in enumerate((b"bad", b"good")):
                member.sendto(Heartbeat(name.ljust(16), sequence, Report()).pack(), address)
        # A heartbeat is counted after it was taken.
        eventually(lambda: listening.outcomes == {"taken": 1, "unknown": 0, "malformed": 0, "failed": 1})
        assert heard == [b"good".ljust(16)]
    finally:
        listening.close()
