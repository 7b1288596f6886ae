"""Marks of queues (ECN), from the IP headers of contributions to the RESULT, on real sockets."""

from __future__ import annotations

import socket

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.rates import Rate
from switchagg.emulator.switch import Switch
from switchagg.wire.header import Flag, decode
from tests.ipv6 import needs_ipv6
from tests.switchagg.emulator.plain_workers import PlainWorkers
from tests.worker_lib.harness import together

ECT, CE = 2, 3
MARKED = Flag.CE | Flag.ECT


class MarkedWorkers(PlainWorkers):
    """Plain workers that set the ECN field of IP, and read it."""

    def __init__(self, count: int, host: str) -> None:
        super().__init__(count, host=host)
        v6 = ":" in host
        self._level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
        self._field = socket.IPV6_TCLASS if v6 else socket.IP_TOS
        receive = socket.IPV6_RECVTCLASS if v6 else 13  # IP_RECVTOS
        for each in self.sockets:
            each.setsockopt(self._level, receive, 1)

    def contribute(self, bit: int, seq: int, ecn: int, flags: int) -> None:
        self.sockets[bit].setsockopt(self._level, self._field, ecn)
        packet = self.packet(bit, seq, np.ones(16, np.uint32))
        self.send_bytes(bit, packet[:1] + bytes([packet[1] | flags]) + packet[2:])

    def result(self, bit: int) -> tuple[int, int]:
        """The ECN field of the next RESULT, and its flags for it."""
        payload, control, _, _ = self.sockets[bit].recvmsg(65536, 64)
        fields = [data[0] for level, kind, data in control if (level, kind) == (self._level, self._field)]
        return fields[0] & 3, decode(payload)[0].flags & MARKED


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
@pytest.mark.parametrize(("offload", "threads"), [(True, 1), (False, 1), (True, 3)])
def test_marks_of_contributions_are_in_the_result(host: str, offload: bool, threads: int) -> None:
    with (
        Switch(host, offload=offload, threads=threads) as switch,
        MarkedWorkers(2, host) as workers,
    ):
        workers.join(switch)

        def round_(seq: int, *ecn: int, flags: int) -> list[tuple[int, int]]:
            for bit in range(2):
                workers.contribute(bit, seq, ecn[bit], flags)
            return [workers.result(bit) for bit in range(2)]

        assert round_(0, 0, 0, flags=0) == [(0, 0)] * 2, "a job that does not ask for it is sent as before"
        # From its first packet with ECT on the switch reads the field.
        assert round_(8, ECT, ECT, flags=Flag.ECT) == [(ECT, Flag.ECT)] * 2
        for seq, marked in ((16, (CE, ECT)), (32, (ECT, CE)), (48, (CE, CE))):
            assert round_(seq, *marked, flags=Flag.ECT) == [(ECT, MARKED)] * 2
            workers.contribute(0, seq, ECT, Flag.ECT)
            assert workers.result(0) == (ECT, MARKED), "the RESULT is repeated as it was"
            assert round_(seq + 8, ECT, ECT, flags=Flag.ECT) == [(ECT, Flag.ECT)] * 2
        workers.contribute(1, 56, CE, Flag.ECT)
        assert workers.result(1) == (ECT, MARKED), "the packet that asked again was marked"
        assert workers.pending(0) == workers.pending(1) == 0


def add_up(session: worker_lib.Session) -> tuple[int, int, int]:
    x = np.empty(100_000, np.int32)
    for k in range(4):
        x[:] = session.rank + k
        assert (session.allreduce(x) == 2 * k + 1).all()
    stats = session.stats()
    return stats["results_marked"], stats["window"], stats["retransmissions"]


@pytest.mark.parametrize("mark", [True, False])
def test_a_worker_on_shared_links_answers_marks_before_the_queue_is_full(mark: bool) -> None:
    rate = Rate(5e7, queue=1 << 17, mark=1 << 15 if mark else None)
    with EmbeddedController(rate=rate) as host:
        found = together(
            host.url, 2, add_up, transport="udp", congestion="shared", words=352, slots=512, timeout=60.0
        )
        counters = host.switch.rate_counters()
    print(found, counters)
    assert (counters["dropped_in"] + counters["dropped_out"] == 0) is mark
    assert all((marked > 0) is mark for marked, *_ in found)
    assert (counters["marked_in"] + counters["marked_out"] > 0) is mark


def test_no_mark_without_ect() -> None:
    rate = Rate(5e7, queue=1 << 22, mark=1 << 15)
    with EmbeddedController(rate=rate) as host:
        found = together(host.url, 2, add_up, transport="udp", words=352, slots=512, timeout=60.0)
        counters = host.switch.rate_counters()
    assert counters["queued_in"] > 100
    assert counters["marked_in"] == counters["marked_out"] == 0
    assert [marked for marked, *_ in found] == [0, 0]
