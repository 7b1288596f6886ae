"""Checked sums: what is damaged on the way, in a slot or in a rank's memory never comes out as a result."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.reference import check
from tests.reference.plan import FLAGS_WORD, WITHDRAWN
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from tests.worker_lib.generations import DAMAGED, DONE, MISMATCH, PENDING, SECOND, WORDS, Cluster
from tests.worker_lib.harness import in_threads, together, try_together
from tests.worker_lib.lying_switch import Lies, LyingSwitch, Told
from worker_lib import _native
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp, Words

Floats = npt.NDArray[np.float32]
RANKS: Final = 3
ELEMENTS: Final = 1500


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_this_run())


# ---------------------------------------------------------------------- words


def packed(words: Any) -> bytes:
    return np.asarray(words, np.uint64).astype(">u4").tobytes()


def unpacked(payload: bytes) -> list[int]:
    return np.frombuffer(payload, ">u4").tolist()


def drawn(rng: random.Random, size: int, ranks: int) -> list[list[int]]:
    """Words of each rank whose sums do not overflow."""
    limit = (1 << 31) // ranks
    return [[rng.randrange(1 - limit, limit) % (1 << 32) for _ in range(size)] for _ in range(ranks)]


def added(payloads: list[bytes]) -> list[int]:
    return [sum(column) % (1 << 32) for column in zip(*map(unpacked, payloads), strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 31, 256])
def test_check_words_are_those_of_the_reference(rng: random.Random, ranks: int) -> None:
    for size in (13, 61, 349, 2029):
        nonce, number, digest = rng.getrandbits(48), rng.getrandbits(40), rng.getrandbits(61)
        native = _native.PacketCheck(size, ranks, nonce)
        contributions = drawn(rng, size, ranks)
        payloads = [native.write(number, digest, packed(words)) for words in contributions]
        assert unpacked(payloads[0]) == contributions[0] + check.check_words(
            contributions[0], number, digest, nonce
        )
        total = added(payloads)
        assert check.holds(total, number, digest, nonce, ranks, everyone=True)
        assert native.holds(number, digest, packed(total), all=True)
        assert native.holds(number, digest, packed(total), wraps=True)
        if ranks > 1:
            fewer = added(payloads[:-1])
            assert native.holds(number, digest, packed(fewer)) == check.holds(
                fewer, number, digest, nonce, ranks
            )
            assert not native.holds(number, digest, packed(fewer), all=True)


def test_digests_are_those_of_the_reference(rng: random.Random) -> None:
    words = [rng.getrandbits(32) for _ in range(100)]
    native = _native.PacketCheck(13, 2, 0)
    assert native.extended(5, words) == check.digest(5, words)
    assert native.extended(native.extended(5, words[:40]), words[40:]) == check.digest(5, words)


def test_one_bit_flipped_in_ten_thousand_packets(rng: random.Random) -> None:
    """Of a contribution, of the sum in the slot, or of the RESULT, which to the sum are the same."""
    ranks, size, nonce = 4, 61, rng.getrandbits(48)
    native = _native.PacketCheck(size, ranks, nonce)
    for number in range(10_000):
        payloads = [native.write(number, 7, packed(words)) for words in drawn(rng, size, ranks)]
        right = added(payloads)
        wrong = list(right)
        place = rng.randrange(len(wrong))
        flipped = 1 << rng.randrange(32)
        wrong[place] = (wrong[place] + rng.choice((flipped, -flipped))) % (1 << 32)
        if place < size:
            for wraps in (False, True):
                assert not native.holds(number, 7, packed(wrong), wraps=wraps)


def test_other_packets_words_and_plans_do_not_hold(rng: random.Random) -> None:
    ranks, size, nonce = 3, 61, rng.getrandbits(48)
    native = _native.PacketCheck(size, ranks, nonce)
    held = 0
    for number in range(2_000):
        payloads = [native.write(number, 7, packed(words)) for words in drawn(rng, size, ranks)]
        total = added(payloads)
        replaced = list(total)
        for place in rng.sample(range(size), rng.randrange(1, size)):
            replaced[place] = rng.getrandbits(32)
        held += replaced[:size] != total[:size] and native.holds(number, 7, packed(replaced))
        other = number + rng.choice((-1, 1)) * rng.choice((1, 32, 1 << 20, 1 << 40))
        held += native.holds(other % (1 << 54), 7, packed(total))
        held += native.holds(number, 8, packed(total))
        held += native.holds(number, 7, packed([0] * len(total)))
        mixed = [payloads[0], payloads[1], native.write(other % (1 << 54), 7, payloads[2][: 4 * size])]
        held += native.holds(number, 7, packed(added(mixed)))
        told = [payloads[0], payloads[1], native.write(number, 8, payloads[2][: 4 * size])]
        held += native.holds(number, 7, packed(added(told)))
    assert held == 0


@pytest.mark.parametrize("bits", [32, 16, 8, BOUNDED, EXACT])
def test_claims_come_first_and_count_the_ranks_that_have_an_exponent(rng: random.Random, bits: int) -> None:
    count, words, ranks = 5_000, 352, 2
    of = np.random.default_rng(rng.getrandbits(32))
    scales = 10.0 ** of.integers(-3, 3, (ranks, 5))
    xs = [np.repeat(scales[r], 1000).astype(np.float32) * of.choice((1, 2), count) for r in range(ranks)]
    xs = [x.astype(np.float32) for x in xs]
    codecs = []
    for r, x in enumerate(xs):
        call = _native.Call(
            kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=DType.F32, bits=bits, sparse=False, block=16,
            count=count, fingerprint_count=count, workers=ranks, rank=r, input=x.ctypes.data, in_end=count,
            output=x.ctypes.data, out_end=count,
        )  # fmt: skip
        call.checked = True
        codecs.append(_native.Codec(call, 0, words))
    for p in range(codecs[0].plan_packets):
        packets = [codec.plan_packet(p) for codec in codecs]
        agreed = packed(np.bitwise_or.reduce([unpacked(each or bytes(4 * words)) for each in packets]))
        for codec in codecs:
            codec.plan_result(p, agreed)
    for codec in codecs:
        codec.next_step()
    chunk = 65536 if bits == 32 else 4096 if bits == BOUNDED else 1024
    tops = [
        [int(np.abs(x[at : at + chunk]).max().view(np.uint32)) >> 23 for at in range(0, count, chunk)]
        for x in xs
    ]
    shift = 1 if bits == EXACT else 0  # whose exponents have one bit for two fields
    for codec, mine in zip(codecs, tops, strict=True):
        own = [
            a >> shift == max(each) >> shift for a, each in zip(mine, zip(*tops, strict=True), strict=True)
        ]
        wanted = check.claims(own)
        sent = codec.encode(0)
        assert sent is not None
        assert unpacked(sent)[: wanted.size] == wanted.tolist()
        assert not codec.is_or(0)


# ---------------------------------------------------------------------- engines and a switch that lies


class Float:
    """An all-reduce of float32 at one engine."""

    def __init__(self, engine: _native.Engine, rank: int, x: Floats, bits: int, *, sparse: bool) -> None:
        self.engine, self.x, self.out = engine, x, np.full_like(x, np.nan)
        call = _native.Call(
            kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=DType.F32, bits=bits, sparse=sparse, block=16,
            count=x.size, fingerprint_count=x.size, workers=RANKS, rank=rank, input=x.ctypes.data,
            in_end=x.size, output=self.out.ctypes.data, out_end=x.size, zero_fill=True,
        )  # fmt: skip
        submitted = engine.submit(call, 60 * SECOND, True, engine.generation)
        assert submitted is not None
        self.native = submitted


def run_sums(
    lies: Lies, xs: list[list[Floats]], bits: int, *, sparse: bool, all_notice: bool = False
) -> tuple[list[Counter[int]], Any]:
    """All ranks add up tensor after tensor, and send again where an engine asks for it.

    With `all_notice`, each engine has seen that a RESULT stays wrong, or is broken by that.

    Returns the statuses by rank, and the bits of each result that is done, by rank and tensor.
    """
    with Cluster(RANKS, switch=LyingSwitch(lies), checked=True) as cluster:
        engines = cluster.engines
        sums = [[Float(engines[r], r, x[r], bits, sparse=sparse) for x in xs] for r in range(RANKS)]
        until = time.monotonic() + 60
        asked: set[int] = set()
        while any(each.native.status == PENDING for of in sums for each in of):
            assert time.monotonic() < until
            time.sleep(0.002)
            damage = [e.damage for e in engines.values() if not e.broken and e.damage is not None]
            if any(e.broken for e in engines.values()):
                break  # as where a rank leaves: the others end with it
            if damage:
                asked.update(damage)
                cluster.replay()
        if all_notice:
            eventually(lambda: all(e.damage is not None for e in engines.values()))
        lies.damaged = sum(e.stats()["results_damaged"] for e in engines.values())  # type: ignore[attr-defined]
        statuses = [Counter(each.native.status for each in of) for of in sums]
        done = [[each.out.tobytes() if each.native.status == DONE else None for each in of] for of in sums]
        lies.asked = asked  # type: ignore[attr-defined]
        return statuses, done


def tensors(rng: random.Random, count: int, *, sparse: bool) -> list[list[Floats]]:
    of = np.random.default_rng(rng.getrandbits(32))
    xs = [[of.standard_normal(ELEMENTS).astype(np.float32) for _ in range(RANKS)] for _ in range(count)]
    if not sparse:
        return xs
    return [
        [x * np.repeat(of.random(-(-ELEMENTS // 16)) < 0.3, 16)[:ELEMENTS] for x in of_all] for of_all in xs
    ]


CASES: Final = [(32, False), (32, True), (8, False), (BOUNDED, True)]


def none_wrong(done: Any, right: Any) -> bool:
    """True if each result that there is has the right bits."""
    return all(
        mine in (None, wanted)
        for of, of_right in zip(done, right, strict=True)
        for mine, wanted in zip(of, of_right, strict=True)
    )


class Flips(Lies):
    """Flips a bit with some probability: in RESULTs, in slots, or in what a rank sends, whenever it does."""

    def __init__(self, rng: random.Random, where: str, chance: float) -> None:
        self.rng, self.where, self.chance, self.flips = rng, where, chance, 0
        self.memory: dict[tuple[int, int], tuple[int, int] | None] = {}

    def draw(self, size: int) -> tuple[int, int] | None:
        if self.rng.random() >= self.chance:
            return None
        return self.rng.randrange(size), 1 << self.rng.randrange(32)

    def flip(self, words: Words, at: tuple[int, int] | None) -> None:
        if at is not None:
            words[at[0]] ^= np.uint32(at[1])
            self.flips += 1

    def contribution(self, told: Told) -> Words | None:
        assert told.words is not None
        if self.where == "memory":
            at = told.number, told.bit
            if at not in self.memory:
                self.memory[at] = self.draw(told.words.size)
            self.flip(told.words, self.memory[at])
        return told.words

    def slot(self, told: Told) -> None:
        assert told.words is not None
        if self.where == "slot":
            self.flip(told.words, self.draw(told.words.size))

    def result(self, told: Told) -> Words | None:
        if self.where == "result" and told.words is not None:
            self.flip(told.words, self.draw(told.words.size))
        return told.words


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'sparse' if case[1] else 'dense'}")
def case(request: pytest.FixtureRequest) -> tuple[int, bool]:
    bits, sparse = request.param
    return bits, sparse


def right_results(xs: list[list[Floats]], bits: int, sparse: bool) -> Any:
    lies = Lies()
    statuses, done = run_sums(lies, xs, bits, sparse=sparse)
    assert all(set(of) == {DONE} for of in statuses)
    assert lies.damaged == 0  # type: ignore[attr-defined]
    assert done[0] == done[1] == done[2]
    return done


@pytest.mark.parametrize(("where", "chance"), [("result", 0.05), ("slot", 0.02), ("memory", 0.002)])
def test_flipped_bits_are_healed_or_told(
    rng: random.Random, case: tuple[int, bool], where: str, chance: float
) -> None:
    bits, sparse = case
    xs = tensors(rng, 12, sparse=sparse)
    right = right_results(xs, bits, sparse)
    flips = rounds = 0
    while rounds < 4 or (flips == 0 and rounds < 40):
        rounds += 1
        lies = Flips(rng, where, chance)
        statuses, done = run_sums(lies, xs, bits, sparse=sparse)
        flips += lies.flips
        for of in statuses:
            assert set(of) <= {DONE, DAMAGED, MISMATCH, PENDING}
        assert none_wrong(done, right)
    assert flips > 0


@dataclass(slots=True)
class Seen:
    """The words of a RESULT, and of those before it by packet number."""

    words: Words
    before: dict[int, Words]


LIES: Final[dict[str, Callable[[Seen], Words | None]]] = {
    "another round": lambda seen: seen.before[max(seen.before)],
    "swapped": lambda seen: seen.before[min(seen.before)],
    "zeros": lambda seen: np.zeros_like(seen.words),
    "no words": lambda _: None,
    "replaced": lambda seen: np.arange(seen.words.size, dtype=np.uint32) * np.uint32(0x9E3779B1),
    "torn": lambda seen: np.append(seen.words[: WORDS // 2], seen.before[max(seen.before)][WORDS // 2 :]),
}


class Once(Lies):
    """Lies about one packet to the workers of `bits`, the first time."""

    def __init__(self, number: int, lie: Callable[[Seen], Words | None], bits: set[int]) -> None:
        self.number, self.lie, self.bits = number, lie, bits
        self.before: dict[int, Words] = {}
        self.told = 0

    def result(self, told: Told) -> Words | None:
        if told.words is None:
            return None
        if told.number == self.number and told.bit in self.bits and not told.again:
            self.told += 1
            return self.lie(Seen(told.words, self.before))
        self.before[told.number] = told.words
        return told.words


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("bits", [{0}, {0, 1, 2}], ids=["one", "all"])
def test_a_wrong_result_is_asked_for_again(rng: random.Random, lie: str, bits: set[int]) -> None:
    """It is the packet before, one of another slot, or none; the answer to the retransmission is right."""
    xs = tensors(rng, 3, sparse=False)
    right = right_results(xs, 32, False)
    lies = Once(40, LIES[lie], bits)
    statuses, done = run_sums(lies, xs, 32, sparse=False)
    assert lies.told == len(bits)
    assert all(set(of) == {DONE} for of in statuses)
    assert lies.damaged == len(bits)  # type: ignore[attr-defined]
    assert done == right


class Persistent(Lies):
    """Adds 1 to a word of one packet's RESULTs, as often as it is asked for, up to a number of times."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.times, self.sent = number, times, 0

    def slot(self, told: Told) -> None:
        assert told.words is not None
        if told.number == self.number and self.sent < self.times:
            self.sent += 1
            told.words[3] += np.uint32(1)


def test_a_damaged_slot_is_filled_again_once(rng: random.Random) -> None:
    xs = tensors(rng, 3, sparse=False)
    right = right_results(xs, 32, False)
    once = Persistent(40, 1)
    _, done = run_sums(once, xs, 32, sparse=False)
    assert once.asked == {40}  # type: ignore[attr-defined]
    assert done == right
    twice = Persistent(40, 2)
    statuses, done = run_sums(twice, xs, 32, sparse=False)
    assert twice.asked == {40}  # type: ignore[attr-defined]
    assert twice.sent == 2
    assert any(of[DAMAGED] for of in statuses)
    assert none_wrong(done, right)
    assert all(of[DONE] < len(xs) for of in statuses)


class OtherPlan(Lies):
    """Tells one rank another plan: a word of the RESULT of packet `number` has one more bit, or one less."""

    def __init__(self, number: int, word: int, bit: int, *, everybody: bool) -> None:
        self.number, self.word, self.bit, self.everybody = number, word, bit, everybody
        self.told = 0

    def slot(self, told: Told) -> None:
        if self.everybody:
            self.flip(told)

    def result(self, told: Told) -> Words | None:
        if not self.everybody and told.bit == 1:
            self.flip(told)
        return told.words

    def flip(self, told: Told) -> None:
        if told.number == self.number and told.words is not None:
            self.told += 1
            told.words[self.word] ^= np.uint32(1 << self.bit)


# Words and bits of a plan of `ELEMENTS` in one packet with its header: its fields, blocks, exponents.
BLOCKS: Final = 12, 15
PLAN: Final = [(0, 3), (2, 5), (4, 9), (10, 20), (10, 31), (11, 0), (12, 0), (13, 7), (21, 3), (20, 1)]


@pytest.mark.parametrize("everybody", [False, True], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("flip", PLAN, ids=str)
def test_ranks_that_are_told_other_plans_notice(
    rng: random.Random, flip: tuple[int, int], everybody: bool
) -> None:
    """No result is wrong: blocks more than there are change none, and all else is told."""
    xs = tensors(rng, 2, sparse=True)
    right = right_results(xs, 32, True)
    lies = OtherPlan(0, *flip, everybody=everybody)
    statuses, done = run_sums(lies, xs, 32, sparse=True)
    assert lies.told
    assert none_wrong(done, right)
    assert flip[0] in range(*BLOCKS) or any(set(of) != {DONE} for of in statuses) or lies.damaged  # type: ignore[attr-defined]


class Withdrawal(Lies):
    """Tells rank 1 once that a call is withdrawn."""

    told = 0

    def result(self, told: Told) -> Words | None:
        if told.number == 0 and told.bit == 1 and told.words is not None and not self.told:
            self.told += 1
            told.words[FLAGS_WORD] |= np.uint32(WITHDRAWN)
        return told.words


def test_a_rank_does_not_leave_a_call_for_one_flipped_bit(rng: random.Random) -> None:
    xs = tensors(rng, 2, sparse=False)
    right = right_results(xs, 32, False)
    lies = Withdrawal()
    statuses, done = run_sums(lies, xs, 32, sparse=False)
    assert lies.told == 1
    assert all(set(of) == {DONE} for of in statuses)
    assert lies.damaged == 1  # type: ignore[attr-defined]
    assert done == right


def test_an_exponent_that_no_rank_has_is_told_by_all(rng: random.Random) -> None:
    """All ranks hear the same, and their elements would all be cut to 0."""
    xs = tensors(rng, 1, sparse=False)
    statuses, _ = run_sums(OtherPlan(0, 12 + 6, 30, everybody=True), xs, 32, sparse=False, all_notice=True)
    assert all(set(of) <= {DAMAGED, PENDING} for of in statuses)  # the first to give up ends the others
    assert any(of[DAMAGED] for of in statuses)


# ---------------------------------------------------------------------- sessions


def work(session: worker_lib.Session, seed: int, *, ors: bool = True) -> tuple[list[bytes], int]:
    """All kinds of collectives; their results, and how many RESULTs were damaged."""
    rng = np.random.default_rng([seed, session.rank])
    results: list[Any] = []
    for dtype in ("float32", "float64", "float16", "int32", "int64"):
        for count in (10, 40_000):
            x = (rng.standard_normal(count) * 100).astype(dtype)
            few = np.where(rng.random(count) < 0.02, x, 0).astype(dtype)
            results += [session.allreduce(x.copy()), session.allreduce(few)]
            if x.dtype.kind == "f":
                results += [session.allreduce(x.copy(), bits=bits) for bits in (16, 8)]
                results.append(session.allreduce(x.copy(), op="avg", accuracy="exact"))
    x = rng.standard_normal(70_000).astype(np.float32)
    x[[session.rank, 69_999]] = np.nan, np.inf
    results += [session.allreduce(x.copy()), session.allreduce(x, bits=16)]
    results += [session.allgather(x), session.broadcast(x, root=1), session.reduce_scatter(x[:60_000])]
    # Larger ones are directed without check words, and so may have other bits by default.
    results.append(session.reduce_scatter(x[:69_999], accuracy="exact"))
    numbers = rng.integers(0, 1 << 40, 5_000)
    results += [session.allreduce(numbers.copy(), op=op) for op in (("max", "or") if ors else ("max",))]
    results.append(session.allreduce(np.zeros(5_000, np.float32)))
    # Weighed as they are coded: scales of two factors, chunks of zeros, results past the cache.
    wide = rng.standard_normal(50_001).astype(np.float32)
    wide[4_096:20_000] = 0
    results += [session.allreduce(wide * np.float32(10.0**power), bits=32) for power in (-37, 0, 37)]
    wide[session.rank] = np.nan
    results += [session.allreduce(each, bits=32) for each in (wide, np.resize(wide, (1 << 22) + 5))]
    session.barrier()
    return [each.tobytes() for each in results], session.stats()["results_damaged"]


@pytest.mark.usefixtures("both_transports")
def test_results_are_those_of_sums_without_check_words(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    plain = together(host.url, RANKS, work, seed)
    checked = together(host.url, RANKS, work, seed, check=True)
    for (results, _), (others, damaged) in zip(plain, checked, strict=True):
        assert results == others
        assert damaged == 0


def test_ranks_of_which_one_checks_hear_so(host: EmbeddedController) -> None:
    ready = threading.Barrier(2)

    def rank(r: int) -> str:
        with worker_lib.connect(host.url, "half checked", r, 2, timeout=20, check=r == 0) as session:
            ready.wait()
            with pytest.raises(worker_lib.MismatchError) as caught:
                session.allreduce(np.ones(10, np.float32))
            return str(caught.value)

    for outcome in in_threads([lambda r=r: rank(r) for r in range(2)]):
        assert "whether sums are checked" in outcome.get()


@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_packets_that_a_switch_has_damaged_are_sent_again(transport: str) -> None:
    """The fault device flips bits on both ways; the ranks send again at the same switch."""
    seed = seed_of_this_run()
    with EmbeddedController() as host:
        right = together(host.url, RANKS, many_sums, seed)
    with EmbeddedController(faults=Faults(corrupt=0.005, seed=seed)) as host:
        outcomes = try_together(host.url, RANKS, many_sums, seed, check=True, transport=transport)
    found = 0
    for outcome, (wanted, _) in zip(outcomes, right, strict=True):
        if outcome.error is not None:
            assert isinstance(outcome.error, worker_lib.SwitchAggError), outcome.error
            found += 1
        else:
            results, damaged = outcome.value
            assert results == wanted
            found += damaged
    assert found > 0


def many_sums(session: worker_lib.Session, seed: int) -> tuple[list[bytes], int]:
    rng = np.random.default_rng([seed, session.rank])
    results = [session.allreduce(rng.standard_normal(20_000).astype(np.float32)) for _ in range(40)]
    return [each.tobytes() for each in results], session.stats()["results_damaged"]


def gathered(session: worker_lib.Session) -> Floats:
    size = 348  # one less than a packet's data: a block lies in two packets, and has elements of both ranks
    found: Floats = session.allgather(np.full(size, 1 - session.rank, np.float32))
    return found


def test_a_packet_of_zeros_of_a_block_that_is_sent_is_right(host: EmbeddedController) -> None:
    for found in together(host.url, 2, gathered, check=True, words=352):
        assert np.array_equal(found.ravel(), np.repeat(np.float32([1, 0]), 348))


@pytest.mark.parametrize("value", ["no", "0", 2])
def test_a_check_that_is_neither_yes_nor_no_is_refused(value: Any) -> None:
    with pytest.raises(worker_lib.UsageError, match=f"check is {value!r}; accepted: True, False"):
        worker_lib.connect("http://127.0.0.1:1", "j", 0, 2, check=value)


def test_what_is_wrong_for_good_names_the_switch_and_the_packet() -> None:
    with EmbeddedController(faults=Faults(corrupt=0.3, seed=seed_of_this_run())) as host:
        outcomes = try_together(host.url, 2, many_sums, 0, check=True)
    errors = [outcome.error for outcome in outcomes]
    assert all(isinstance(error, worker_lib.SwitchAggError) for error in errors)
    told = [str(error) for error in errors if isinstance(error, worker_lib.IntegrityError)]
    assert told
    assert re.search(
        r"RESULT of packet number \d+, in slot \d+ of the switch at 127.0.0.1:\d+, is not", told[0]
    )


def test_the_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_CHECK", "yes")
    with pytest.raises(worker_lib.UsageError, match="SWITCHAGG_CHECK is 'yes'; accepted: 0, 1"):
        worker_lib.connect("http://127.0.0.1:1", "job", 0, 2)
