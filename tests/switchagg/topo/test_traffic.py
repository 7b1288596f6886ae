"""Counters of interfaces, parsed and metered."""

from __future__ import annotations

import socket

from switchagg.topo.traffic import InterfaceCounts, TrafficMeter, parse_counts, read_counts

TEXT = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo ...
    lo: 1296    16    0    0    0     0          0         0     1300    17    0    0    0     0  0  0
s1-eth1:  900     3    0    1    0     0          0         0      60     1    0    0    0     0  0  0
"""


def test_the_kernels_table() -> None:
    assert parse_counts(TEXT) == {
        "lo": InterfaceCounts(16, 1296, 17, 1300),
        "s1-eth1": InterfaceCounts(3, 900, 1, 60),
    }
    assert parse_counts(TEXT)["lo"].since(InterfaceCounts(6, 296, 7, 300)) == InterfaceCounts(
        10, 1000, 10, 1000
    )


def test_a_meter_sees_what_passes() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        meter = TrafficMeter(["lo"], window=0.01)
        for _ in range(50):
            one.sendto(bytes(1000), one.getsockname())
        seen = meter.stop()["lo"]
    assert seen.total.packets_in >= 50
    assert seen.total.bytes_out >= 50_000
    assert seen.busiest_in * seen.seconds >= seen.total.bytes_in * 0.99 > 0
    assert "lo" in read_counts()
