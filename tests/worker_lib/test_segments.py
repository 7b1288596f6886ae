"""The order of a collective's packets on the wire: header, plans that run ahead, and streams."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.rules.planner import elements_per_packet
from switchagg.wire.header import HEADER_BYTES, Header, Op
from tests.reference.schedule import DENSE_SEGMENT, SPARSE_SEGMENT, Schedule, segment_elements
from tests.worker_lib.harness import together
from worker_lib import Session
from worker_lib.plan import HEADER_WORDS, WIDE_CHUNK

# Steps by the number of segments: plans run two segments ahead of streams, so that nobody waits for a plan's
# round trip, and a segment that was scanned is still in the processor's cache when it is quantized.
ORDER = {
    1: "header plan0 stream0",
    2: "header plan0 plan1 stream0 stream1",
    3: "header plan0 plan1 stream0 plan2 stream1 stream2",
    5: "header plan0 plan1 stream0 plan2 stream1 plan3 stream2 plan4 stream3 stream4",
}
WORDS = 352
BLOCK = 64
_PCAP_HEADER, _PCAP_RECORD, _IP_UDP = 24, 16, 28


def _sent_by_a_worker(capture: bytes) -> list[tuple[int, Op, bool]]:
    """(seq, op, has payload) of the packets of one worker, in the order of their seqs."""
    found: dict[int, tuple[int, Op, bool]] = {}
    at, one = _PCAP_HEADER, None
    while at < len(capture):
        size = int.from_bytes(capture[at + 8 : at + 12], "little")
        packet = capture[at + _PCAP_RECORD : at + _PCAP_RECORD + size]
        at += _PCAP_RECORD + size
        header = Header.unpack(packet[_IP_UDP : _IP_UDP + HEADER_BYTES])
        if header.op not in (Op.SUM, Op.OR):
            continue
        one = header.token if one is None else one
        if header.token == one:
            found[header.seq] = (header.seq, header.op, size > _IP_UDP + HEADER_BYTES)
    first = min(found)
    if first == 0:  # the job's first seq is drawn at random: these have wrapped
        first = min((seq for seq in found if seq > 1 << 31), default=0)
    return sorted(found.values(), key=lambda each: (each[0] - first) & 0xFFFFFFFF)


def _expected(
    count: int, union: np.ndarray[tuple[int], np.dtype[np.bool_]], size: int
) -> list[tuple[Op, int]]:
    """Runs of packets of one op, in the order that `ORDER` gives."""
    parts = [(from_, min(size, count - from_)) for from_ in range(0, count, size)]
    order: list[tuple[Op, int]] = []
    for step in ORDER[len(parts)].split():
        if step == "header":
            order.append((Op.OR, 1))
            continue
        kind, i = step[:-1], int(step[-1])
        from_, length = parts[i]
        blocks = -(-length // BLOCK)
        if kind == "plan":
            rest = -(-blocks // 32) + 8 * -(-length // WIDE_CHUNK)
            alone = len(parts) == 1 and HEADER_WORDS + rest <= WORDS
            order.append((Op.OR, 0 if alone else -(-rest // WORDS)))
        else:
            here = union[from_ // BLOCK :][:blocks]
            order.append((Op.SUM, Schedule(length, BLOCK, elements_per_packet(WORDS, 32), here).packets))
    return [
        (op, total) for op, runs in groupby(order, lambda each: each[0]) if (total := sum(n for _, n in runs))
    ]


@pytest.mark.parametrize(
    "count", [1000, DENSE_SEGMENT, DENSE_SEGMENT + 1, 3 * DENSE_SEGMENT - 70, 5 * DENSE_SEGMENT]
)
def test_plans_run_two_segments_ahead_of_streams(count: int, tmp_path: Path) -> None:
    blocks = -(-count // BLOCK)
    own = [np.arange(blocks) % 4 == rank for rank in range(2)]  # half of the blocks, so the cut stays dense

    def twice(session: Session) -> None:
        for _ in range(2):
            x = np.repeat(own[session.rank], BLOCK)[:count].astype(np.float32)
            session.allreduce(x, bits=32)

    with EmbeddedController(pcap=tmp_path / "run.pcap") as host:
        together(host.url, 2, twice, words=WORDS, slots=1024)
    sent = _sent_by_a_worker((tmp_path / "run.pcap").read_bytes())
    runs = [(op, len(list(members))) for op, members in groupby(op for _, op, _ in sent)]
    once = _expected(count, own[0] | own[1], segment_elements(BLOCK, sparse=False))
    assert runs == once + once


def test_segments_are_large_where_the_last_collective_of_as_many_elements_was_sparse(tmp_path: Path) -> None:
    count, other = 3 * DENSE_SEGMENT, 3 * DENSE_SEGMENT - 70
    sparse, full = np.arange(-(-count // BLOCK)) % 100 == 0, np.ones(-(-count // BLOCK), np.bool_)
    # Elements, blocks that are not zero, whether the call names these, and whether segments are large.
    calls = [
        (count, sparse, False, False),
        (other, full, False, False),
        (count, full, False, True),
        (count, sparse, False, False),
        (other, sparse, True, False),
        (other, full, True, True),
        (count - 1, sparse, True, True),
    ]

    def in_turn(session: Session) -> None:
        for elements, union, named, _ in calls:
            x = np.repeat(union, BLOCK)[:elements].astype(np.float32)
            blocks = union[: -(-elements // BLOCK)] if named else "auto"
            session.allreduce(x, bits=32, blocks=blocks, block_size=BLOCK)

    with EmbeddedController(pcap=tmp_path / "run.pcap") as host:
        together(host.url, 2, in_turn, words=WORDS, slots=1024)
    sent = _sent_by_a_worker((tmp_path / "run.pcap").read_bytes())
    runs = [(op, len(list(members))) for op, members in groupby(op for _, op, _ in sent)]
    assert runs == [
        run
        for elements, union, _, large in calls
        for run in _expected(elements, union, segment_elements(BLOCK, sparse=large))
    ]


def test_the_engine_has_the_same_constants() -> None:
    engine = Path(__file__).parents[2] / "switchagg" / "native" / "worker" / "engine.cpp"
    source = engine.read_text()
    found = {
        name: eval(value, {})
        for name, value in re.findall(r"\b(kDenseSegment|kSparseSegment) = ([0-9 <]+)[,;]", source)
    }
    assert found == {"kDenseSegment": DENSE_SEGMENT, "kSparseSegment": SPARSE_SEGMENT}
