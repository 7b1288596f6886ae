from __future__ import annotations

import os
import random
from dataclasses import astuple

import pytest

from switchagg.errors import SwitchAggError, UsageError
from switchagg.wire.heartbeat import FIELDS, HEAD_BYTES, MAX_BYTES, Heartbeat, HeartbeatError, Report
from tests.seeds import seed_of_this_run

COOKIE = bytes(range(16))
HEAD = "53414842 01 {count:02x} 0000 000102030405060708090a0b0c0d0e0f 0102030405060708"


def datagram(*values: int) -> bytes:
    head = bytes.fromhex(HEAD.format(count=len(values)))
    return head + b"".join(value.to_bytes(8, "big") for value in values)


def test_byte_for_byte() -> None:
    report = Report(collectives=3, bytes_reduced=0x1122334455667788, sampled_own=(1 << 64) - 1)
    data = Heartbeat(COOKIE, 0x0102030405060708, report).pack()
    assert data == (
        bytes.fromhex(HEAD.format(count=45))
        + bytes.fromhex("0000000000000003 0000000000000000 1122334455667788")
        + bytes(8 * 19)
        + bytes.fromhex("ffffffffffffffff")
        + bytes(8 * 22)
    )
    assert Heartbeat.unpack(data) == Heartbeat(COOKIE, 0x0102030405060708, report)


def test_the_order_of_fields_is_the_wire_s() -> None:
    assert FIELDS == (
        "collectives", "elements", "bytes_reduced", "packets_sent", "packets_received", "bytes_sent",
        "bytes_received", "retransmissions", "blocks_total", "blocks_own", "blocks_union", "scan_ns",
        "quantize_ns", "send_ns", "receive_ns", "wait_ns", "decode_ns", "plan_ns", "busy_ns", "rtt_ns",
        "position", "sampled_blocks", "sampled_own", "sampled_own_32", "sampled_own_64", "sampled_own_128",
        "sampled_own_256", "sampled_own_512", "sampled_own_1024", "sampled_sums", "sampled_sum",
        "sampled_sum_32", "sampled_sum_64", "sampled_sum_128", "sampled_sum_256", "sampled_sum_512",
        "sampled_sum_1024", "policy_collectives", "policy_elements", "policy_ns", "policy_word",
        "policy_lanes", "exact_elements", "bounded_elements", "refined_elements",
    )  # fmt: skip
    assert astuple(Heartbeat.unpack(datagram(*range(100, 145))).report) == tuple(range(100, 145))


def test_fields_of_later_versions_are_ignored_and_missing_ones_are_zero() -> None:
    longer = Heartbeat.unpack(datagram(*range(1, 51)))
    assert astuple(longer.report) == tuple(range(1, 46))
    shorter = Heartbeat.unpack(datagram(7, 8))
    assert shorter.report == Report(collectives=7, elements=8)
    assert Heartbeat.unpack(datagram()).report == Report()
    assert len(datagram(*range(255))) == MAX_BYTES


def test_differences_add_up_but_for_what_is_so_now() -> None:
    draw = random.Random(int(os.environ.get("SWITCHAGG_TEST_SEED", "7")))
    before = Report(*(draw.randrange(1 << 40) for _ in FIELDS))
    middle = Report(*(value + draw.randrange(1 << 20) for value in astuple(before)))
    after = Report(*(value + draw.randrange(1 << 20) for value in astuple(middle)))
    assert middle.since(before).plus(after.since(middle)) == after.since(before)
    growth = after.since(before)
    assert growth.elements == after.elements - before.elements
    assert (growth.rtt_ns, growth.policy_word, growth.policy_lanes) == (
        after.rtt_ns,
        after.policy_word,
        after.policy_lanes,
    )
    assert before.since(after).elements == 0  # a member that began anew
    assert after.sampled_own_by_size == astuple(after)[22:29]
    assert after.sampled_sum_by_size == astuple(after)[30:37]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes"),
        (datagram()[:-1], f"{HEAD_BYTES - 1} bytes"),
        (b"HTTP" + datagram()[4:], "b'HTTP'"),
        (datagram()[:4] + b"\x02" + datagram()[5:], "version 2"),
        (datagram(1, 2)[:-1], "47 bytes; with 2 fields there are 48"),
        (datagram(1, 2) + b"\0", "49 bytes"),
    ],
)
def test_what_is_no_heartbeat(data: bytes, said: str) -> None:
    with pytest.raises(HeartbeatError, match=said) as caught:
        Heartbeat.unpack(data)
    assert isinstance(caught.value, SwitchAggError)


@pytest.mark.parametrize(
    ("heartbeat", "said"),
    [
        (Heartbeat(b"short", 0, Report()), "cookie has 5 bytes"),
        (Heartbeat(COOKIE, -1, Report()), "sequence is -1"),
        (Heartbeat(COOKIE, 0, Report(wait_ns=1 << 64)), "wait_ns is 18446744073709551616"),
    ],
)
def test_what_fits_no_heartbeat(heartbeat: Heartbeat, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        heartbeat.pack()


def test_random_bytes_are_a_heartbeat_or_an_error() -> None:
    seed = seed_of_this_run()
    draw = random.Random(seed)
    for _ in range(2000):
        data = bytearray(datagram(*range(draw.randrange(30))))
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        data = data[: draw.randrange(len(data) + 1)] if draw.random() < 0.3 else data
        try:
            Heartbeat.unpack(bytes(data))
        except HeartbeatError:
            continue
