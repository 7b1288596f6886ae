"""The skip policy in force: what a header's RESULT carries settles the next collective at all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.errors import MismatchError, UsageError
from switchagg.rules.planner import LANE_BITS, SkipPolicy
from switchagg.wire.header import HEADER_BYTES, Header, Op
from tests.reference import plan
from tests.reference.plan import Call
from tests.seeds import seed_of_this_run
from worker_lib import Session
from worker_lib.arguments import EXACT_ELEMENTS
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp, differing_fields
from worker_lib.work import Work

from .harness import together

pytestmark = pytest.mark.usefixtures("either_transport")

_PCAP_HEADER, _PCAP_RECORD, _IP_UDP = 24, 16, 28
_BLOCKS = (1, 16, 64, 100, 1024, 65536)


def random_policy(rng: np.random.Generator) -> SkipPolicy:
    bits = rng.choice([0, *LANE_BITS])
    return SkipPolicy(int(rng.choice(_BLOCKS)), bool(rng.random() < 0.4), int(bits) or None)


@dataclass(frozen=True)
class Step:
    """One call, the same at all ranks, and what it leaves to the policy."""

    call: Call
    arguments: dict[str, Any]
    odd: int | None = None  # the rank that calls something else


def random_step(rng: np.random.Generator, n: int, mask_block: int) -> Step:
    # Mostly one packet with its header, or a segment; sometimes several segments.
    count = int(rng.choice([1, 40, 700, 5000, 70_000, 600_000], p=[0.2, 0.2, 0.2, 0.2, 0.15, 0.05]))
    dtype = DType(int(rng.choice([DType.F32, DType.F64, DType.I32])))
    base = Call(Kind.ALLREDUCE, ReduceOp.SUM, dtype, dtype.lanes[0], count, (count,), auto_zeros=True)
    arguments: dict[str, Any] = {}
    match int(rng.integers(6)):
        case 0:
            arguments["blocks"] = "dense"
            base = replace(base, sparse=False, auto_zeros=False)
        case 1:
            arguments["blocks"] = "sparse"
            base = replace(base, auto_zeros=False)
        case 2:
            arguments["blocks"] = np.ones(-(-count // mask_block), np.bool_)
            base = replace(base, auto_zeros=False, block=mask_block)
        case _:
            pass
    if not isinstance(arguments.get("blocks"), np.ndarray):
        if rng.random() < 0.4:
            arguments["block_size"] = int(rng.choice(_BLOCKS))
            base = replace(base, block=arguments["block_size"])
        else:
            base = replace(base, auto_block=True)
    if rng.random() < 0.6:
        arguments["bits"] = "auto"
        floor = 16
        if rng.random() < 0.5:
            floor = arguments["min_bits"] = int(rng.choice(LANE_BITS))
        base = replace(base, auto_lanes=floor)
    return Step(base, arguments, int(rng.integers(n)) if rng.random() < 0.1 else None)


def tensor(rng: np.random.Generator, step: Step) -> Any:
    x = rng.integers(-3, 4, step.call.count)
    x[rng.random(step.call.count) < 0.9] = 0
    return x.astype({DType.F32: np.float32, DType.F64: np.float64, DType.I32: np.int32}[step.call.dtype])


def follow_at_random(session: Session, seed: int, steps: int, ahead: int) -> list[tuple[int, Any]]:
    """Random calls, up to `ahead` of them at once, while rank 0 changes its mind before each. Returns what
    each header carried and how each collective was resolved (None: ranks called different things)."""
    rng = np.random.default_rng(seed)  # the same at every rank
    own = np.random.default_rng((seed, session.rank))
    under_way: list[tuple[Step, Work, Any]] = []
    seen: list[tuple[int, Any]] = []

    def finish() -> None:
        step, work, expected = under_way.pop(0)
        if step.odd is None:
            result = work.wait()
            native = work._native
            assert native is not None
            # Narrow lanes round: 8 bits of 5 ranks hold 25 steps each way for values of up to 3.
            far = np.abs(np.asarray(result, np.float64) - expected).max()
            wide = native.resolved[2] not in (8, 16)
            assert far <= (1e-5 if wide else 1.0), f"{step.call} resolved as {native.resolved}"
        else:
            with pytest.raises(MismatchError):
                work.wait()
            native = work._native
            assert native is not None
        assert native.call_number == len(seen)
        seen.append((native.policy, native.resolved if step.odd is None else None))

    for _ in range(steps):
        step = random_step(rng, session.world_size, session.mask_block_size)
        inputs = [
            tensor(np.random.default_rng((seed, int(part))), step)
            for part in rng.integers(1 << 30, size=session.world_size)
        ]
        wanted = random_policy(own)
        if session.rank == 0 and own.random() < 0.8:
            session._set_policy(wanted.word())
        x = inputs[session.rank].copy()
        arguments = step.arguments
        if step.odd == session.rank:
            x = np.concatenate([x, x[:1]])
            if isinstance(arguments.get("blocks"), np.ndarray):
                arguments = {}
        work = session.allreduce_async(x, **arguments)
        under_way.append((step, work, np.sum(inputs, axis=0, dtype=np.float64)))
        while len(under_way) > ahead:
            finish()
    while under_way:
        finish()
    assert session.policy == SkipPolicy.from_word(seen[-1][0])
    assert session.block_size == session.policy.block
    return seen


@pytest.mark.parametrize(("n", "ahead"), [(2, 0), (3, 4), (4, 2), (5, 8)])
@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_all_ranks_follow_random_changes_alike(n: int, ahead: int, loss: float) -> None:
    seed, steps = seed_of_this_run(), 40
    faults = Faults(loss=loss, reorder=loss, seed=seed) if loss else None
    with EmbeddedController(faults=faults) as host:
        first, *others = together(host.url, n, follow_at_random, seed, steps, ahead)
    assert all(saw == first for saw in others)
    # Their number depends on how far ahead rank 0 calls; without changes there would be one.
    assert len({word for word, _ in first}) > (3 if ahead else 10)
    rng = np.random.default_rng(seed)
    policy = SkipPolicy()
    for word, resolved in first:
        step = random_step(rng, n, 64)
        rng.integers(1 << 30, size=n)
        if step.odd is None:
            call = step.call.under(policy)
            bits = call.bits
            if call.dtype.is_float and not call.auto_lanes:
                bits = EXACT if call.count <= EXACT_ELEMENTS else BOUNDED
            assert resolved == (call.sparse, call.block, bits), f"{step.call} under {policy}"
        carried = SkipPolicy.from_word(word)
        assert carried is not None
        policy = carried


def test_what_a_header_carries_counts_from_the_next_one_on(tmp_path: Path) -> None:
    # Off the wire: headers that share their packet with the plan, and headers that go alone.
    words = 64
    capture = tmp_path / "run.pcap"
    wanted = [SkipPolicy(16), SkipPolicy(1024), SkipPolicy(64, dense=True), SkipPolicy(100, bits=16)]

    def call(session: Session) -> None:
        for i, policy in enumerate(wanted):
            if session.rank == 0:
                session._set_policy(policy.word())
            session.allreduce(np.ones(64 if i % 2 else 20_000, np.float32), bits="auto")

    with EmbeddedController(words=words, slots=64, pcap=capture, links=False) as host:
        together(host.url, 2, call)
    headers: dict[int, plan.Header] = {}
    for packet in packets_of(capture):
        header = Header.unpack(packet[:HEADER_BYTES])
        if header.op is not Op.RESULT or len(packet) == HEADER_BYTES:
            continue
        payload = np.frombuffer(packet[HEADER_BYTES:], ">u4").astype(np.uint32)
        if differing_fields(plan.difference(payload)) or any(
            a ^ b != 0xFFFFFFFF for a, b in zip(payload[:5].tolist(), payload[5:10].tolist(), strict=True)
        ):
            continue  # not a header
        parsed = plan.parse_header(payload)
        headers[parsed.position] = parsed
    assert sorted(headers) == [0, 1, 2, 3]
    for i, policy in enumerate(wanted):
        assert headers[i].policy == policy.word()
    followed = [SkipPolicy(), *wanted[:-1]]
    assert [headers[i].block for i in range(4)] == [each.block for each in followed]
    assert [headers[i].sparse for i in range(4)] == [not each.dense for each in followed]
    assert [headers[i].bits for i in range(4)] == [32, 32, 32, 32]


def packets_of(capture: Path) -> list[bytes]:
    data, at, found = capture.read_bytes(), _PCAP_HEADER, []
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        found.append(data[at + _PCAP_RECORD + _IP_UDP : at + _PCAP_RECORD + size])
        at += _PCAP_RECORD + size
    return found


def test_other_ranks_and_other_threads_may_set_it_too(host: EmbeddedController) -> None:
    def call(session: Session) -> SkipPolicy:
        policy = SkipPolicy(256 if session.rank == 0 else 32)
        thread = threading.Thread(target=session._set_policy, args=(policy.word(),))
        thread.start()
        thread.join()
        session.barrier()
        session.barrier()
        return session.policy

    assert together(host.url, 3, call) == [SkipPolicy(256)] * 3


def test_a_word_that_is_no_policy_is_refused(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        with pytest.raises(UsageError, match="0x00000040"):
            session._set_policy(64)
        with pytest.raises(UsageError, match="block is 0"):
            session._set_policy(1 << 31)
        with pytest.raises(UsageError, match="bits is 128"):
            session._set_policy(1 << 31 | 5 << 20 | 64)
        session.barrier()
        assert session.policy == SkipPolicy()

    together(host.url, 2, call)


def test_masks_keep_their_block_size(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        session._set_policy(SkipPolicy(1000, dense=True).word())
        session.barrier()
        assert session.block_size == 1000
        assert session.mask_block_size == 64
        x = np.zeros(640, np.float32)
        x[:64] = 1
        mask = np.zeros(10, np.bool_)
        mask[0] = True
        before = session.stats()["blocks_union"]
        session.allreduce(x, blocks=mask)
        assert session.stats()["blocks_union"] - before == 1
        assert x[:64].tolist() == [2.0] * 64

    together(host.url, 2, call)


_AUTO: dict[str, tuple[Callable[[Session], Any], Callable[[Session], Any], str]] = {
    "block": (
        lambda s: s.allreduce(np.ones(9)),
        lambda s: s.allreduce(np.ones(9), block_size=64),
        "whether the block size is left to the job",
    ),
    "zeros": (
        lambda s: s.allreduce(np.ones(9)),
        lambda s: s.allreduce(np.ones(9), blocks="sparse"),
        "whether the job decides if zero blocks are skipped",
    ),
    "lanes": (
        lambda s: s.allreduce(np.ones(9), bits="auto", min_bits=32),
        lambda s: s.allreduce(np.ones(9), bits="auto", min_bits=8),
        "min_bits",
    ),
    "no lanes": (
        lambda s: s.allreduce(np.ones(9), bits="auto"),
        lambda s: s.allreduce(np.ones(9)),
        "min_bits",
    ),
}


@pytest.mark.parametrize("name", _AUTO)
def test_the_fingerprint_compares_what_was_called(host: EmbeddedController, name: str) -> None:
    # Both come to the same under the policy in force, and would not under the next.
    one, other, said = _AUTO[name]

    def call(session: Session) -> None:
        with pytest.raises(MismatchError, match=said):
            (one if session.rank else other)(session)
        session.barrier()

    together(host.url, 2, call)


def test_lanes_are_never_narrower_than_the_floor(host: EmbeddedController) -> None:
    def call(session: Session) -> list[int]:
        session._set_policy(SkipPolicy(bits=8).word())
        session.barrier()
        widths = []
        for kind, arguments in [
            (np.float32, {}),
            (np.float32, {"min_bits": 8}),
            (np.float32, {"min_bits": 32}),
            (np.float64, {"min_bits": 64}),
            (np.float64, {}),
            (np.int64, {}),
            (np.int32, {"min_bits": 8}),
        ]:
            work = session.allreduce_async(np.ones(100, kind), bits="auto", **arguments)
            work.wait()
            assert work._native is not None
            widths.append(work._native.resolved[2])
        return widths

    assert together(host.url, 2, call) == [[16, 8, 32, 64, 16, 64, 32]] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bits": "narrow"}, "bits is 'narrow'"),
        ({"min_bits": 8}, "min_bits is 8 with bits=None"),
        ({"bits": 16, "min_bits": 8}, "min_bits is 8 with bits=16"),
        ({"bits": "auto", "min_bits": 12}, "min_bits is 12; accepted: 8, 16, 32, 64"),
        ({"blocks": "some"}, "'auto', 'dense', 'sparse'"),
    ],
)
def test_bad_arguments_are_named(host: EmbeddedController, arguments: dict[str, Any], said: str) -> None:
    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=said):
            session.allreduce(np.ones(9, np.float32), **arguments)
        session.barrier()

    together(host.url, 2, call)


def test_a_group_of_one_has_a_policy_that_stays() -> None:
    import worker_lib

    with worker_lib.connect(rank=0, world_size=1) as session:
        session._set_policy(SkipPolicy(dense=True).word())
        assert session.policy == SkipPolicy()
        assert session.allreduce(np.ones(3), bits="auto").tolist() == [1, 1, 1]
