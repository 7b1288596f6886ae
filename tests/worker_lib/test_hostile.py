"""Sealed sessions over a switch that lies: each rank that is lied to gets an error that says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import worker_lib
from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.service import ControlServer
from switchagg.rules.slots import JobEntry, SlotState
from switchagg.wire.header import decode
from tests.reference import check as reference
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import Outcome, in_threads, job_name
from tests.worker_lib.lying_switch import Lies, LyingSwitch, Told
from worker_lib.plan import Words

RANKS: Final = 3
ELEMENTS: Final = 2000
SLOTS, WORDS = 32, 64
CAPACITY: Final = 4096


class ControlledSwitch(LyingSwitch):
    """A `LyingSwitch` as a controller's driver takes one. It learns `first_seq` from the slots' INITs."""

    largest_words = WORDS
    receive_buffer = 1 << 20
    threads = 1
    memory = ""
    warnings: tuple[str, ...] = ()

    def add_job(self, entry: JobEntry) -> None:
        super().add_job(entry)
        self._first: list[int] = []

    def packet_out(self, packet: bytes) -> list[bytes]:  # type: ignore[override]
        self._first.append(decode(packet)[0].seq)
        lowest = min((seq - self._first[0] + (1 << 31)) % (1 << 32) for seq in self._first)
        self.first_seq = (lowest + self._first[0] - (1 << 31) + SLOTS) % (1 << 32)
        return [packet] if super().packet_out(packet) else []

    def fence(self, job: int, bits: int) -> None:
        with self.lock:
            self._table.fence(job, bits)

    def counters(self) -> dict[str, int]:
        return self._table.counters()

    def job_counters(self, job: int) -> dict[str, int]:
        return self._table.job_counters(job)

    def slot(self, index: int) -> SlotState:
        return self._table.slot(index)


@dataclass
class Host:
    """A controller over such a switch. One job at a time."""

    switch: ControlledSwitch
    server: ControlServer

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.switch.address)


@contextmanager
def hosted() -> Iterator[Host]:
    switch = ControlledSwitch(Lies())
    switch.start()
    try:
        driver = EmbeddedDriver(switch, CAPACITY)  # type: ignore[arg-type]
        server = ControlServer(Controller([driver]), "127.0.0.1", 0)
        server.start()
        try:
            yield Host(switch, server)
        finally:
            server.close()
    finally:
        switch.close()


# ---------------------------------------------------------------------- what ranks call


def arrays(seed: int, rank: int) -> list[np.ndarray[Any, Any]]:
    """Two tensors of a rank."""
    rng = np.random.default_rng([seed, rank])
    return [rng.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2)]


def summed(session: worker_lib.Session, x: Any) -> Any:
    return session.allreduce(x.copy(), bits=32, blocks="dense")


def gathered(session: worker_lib.Session, x: Any) -> Any:
    return session.allgather(x)


def sent(session: worker_lib.Session, x: Any) -> Any:
    return session.broadcast(x.copy(), root=0)


Call = Callable[[worker_lib.Session, Any], Any]
CALLS: Final[tuple[Call, ...]] = (summed, gathered, sent)


def run(host: Host, lies: Lies, secret: str, call: Call, seed: int) -> list[Outcome]:
    """All ranks' results, or errors."""
    host.switch.lies = lies
    name = job_name()

    def rank(r: int) -> list[bytes]:
        with worker_lib.connect(
            host.server.url, name, r, RANKS, timeout=60, deadline=60, seal=secret, words=WORDS, slots=SLOTS
        ) as session:
            return [call(session, x).tobytes() for x in arrays(seed, r)]

    return in_threads([lambda r=r: rank(r) for r in range(RANKS)])


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)


# ---------------------------------------------------------------------- what the switch does


@dataclass
class Acts(Lies):
    """Does one thing to all sealed sums that the ranks in `to` get; keeps what it has seen.

    Attributes:
        sealed: a header of a call has come; nonces are exchanged before.
        sent: contributions to sums, by packet number and rank.
        results: the right sums, by packet number.
        told: how many lies.
    """

    act: Callable[[Acts, Told], Words | None] | None = None
    to: frozenset[int] = frozenset()
    sent: dict[tuple[int, int], Words] = field(default_factory=dict)
    results: dict[int, Words] = field(default_factory=dict)
    told: int = 0
    sealed: bool = False

    def contribution(self, told: Told) -> Words | None:
        if told.words is not None and not told.adds and told.words[1] == 0 and told.words[6] == 0xFFFFFFFF:
            self.sealed = True
        if told.adds and told.words is not None:
            self.sent[told.number, told.bit] = told.words.copy()
        return told.words

    def result(self, told: Told) -> Words | None:
        if not told.adds or told.words is None or not self.sealed:
            return told.words
        self.results[told.number] = told.words.copy()
        if self.act is None or told.bit not in self.to:
            return told.words
        self.told += 1
        return self.act(self, told)

    def of(self, told: Told, ranks: Sequence[int]) -> Words:
        """The sum of what these ranks have sent."""
        assert told.words is not None
        found = [self.sent[told.number, r] for r in ranks if (told.number, r) in self.sent]
        return sum(found, np.zeros_like(told.words))


def adds(*what: tuple[int, int]) -> Callable[[Acts, Told], Words]:
    def act(_: Acts, told: Told) -> Words:
        assert told.words is not None
        for place, value in what:
            told.words[place : place + 1 or None] += np.uint32(value % (1 << 32))
        return told.words

    return act


def drops(me: Acts, told: Told) -> Words:
    """Of a round in which one rank sends, that one."""
    assert told.words is not None
    here = [r for r in range(RANKS) if (told.number, r) in me.sent]
    return told.words - me.sent[told.number, here[-1]]


def doubles(me: Acts, told: Told) -> Words:
    assert told.words is not None
    here = [r for r in range(RANKS) if (told.number, r) in me.sent]
    return told.words + me.sent[told.number, here[0]]


def early(me: Acts, told: Told) -> Words:
    """As if ranks 1 and 2 had not been heard yet, or rank 0, where that alone sends."""
    return me.of(told, [0]) if len(me.of(told, [1])) and (told.number, 1) in me.sent else me.of(told, [])


def repeats(me: Acts, told: Told) -> Words:
    """The RESULT of the packet before, as far as there is one."""
    assert told.words is not None
    return me.results.get(told.number - 1, np.zeros_like(told.words))


def differs(_: Acts, told: Told) -> Words:
    """Each rank is told another sum."""
    assert told.words is not None
    return told.words + np.uint32(told.bit + 1)


ACTS: Final[dict[str, Callable[[Acts, Told], Words | None]]] = {
    "adds a constant": adds((3, 5)),
    "adds half of the modulus of words": adds((3, 1 << 31)),
    "adds the modulus of digests": adds((3, (1 << 61) - 1), (4, (1 << 61) - 1 >> 32)),
    "adds the modulus of a part of the check to a lane": adds((3, 1 << 24)),
    "adds to a check word": adds((-1, 1)),
    "drops a contribution": drops,
    "doubles one": doubles,
    "answers early": early,
    "answers zeros": lambda _, told: None if told.words is None else np.zeros_like(told.words),
    "answers without words": lambda _, __: None,
    "repeats the packet before": repeats,
    "tells ranks different sums": differs,
}


def check(
    outcomes: Sequence[Outcome], right: Sequence[list[bytes]], address: str, to: frozenset[int]
) -> None:
    """Asserts that each rank in `to` has an error that names the cause; the others too, or right results."""
    cause = re.compile(
        rf"the RESULT of packet number \d+, in slot \d+ of the switch at {re.escape(address)}, is not the sum"
    )
    for rank, outcome in enumerate(outcomes):
        if rank in to:
            assert isinstance(outcome.error, worker_lib.IntegrityError), (rank, outcome.error)
            assert cause.search(str(outcome.error))
        elif outcome.error is None:
            assert outcome.value == right[rank]
        else:
            assert isinstance(outcome.error, worker_lib.SwitchAggError), outcome.error
            assert cause.search(str(outcome.error)) or "IntegrityError" in str(outcome.error), outcome.error


CASES: Final = [(call, to) for call in CALLS for to in (frozenset({1}), frozenset(range(RANKS)))]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """One for each of `CASES`, which run at the same time."""
    with ExitStack() as stack:
        yield [stack.enter_context(hosted()) for _ in CASES]


def at_once(hosts: list[Host], one: Callable[[Host, Call, frozenset[int]], None]) -> None:
    """All of `CASES`, each on a host of its own."""
    calls = [lambda host=host, case=case: one(host, *case) for host, case in zip(hosts, CASES, strict=True)]
    for each in in_threads(calls):
        each.get()


@pytest.mark.parametrize("act", ACTS)
def test_each_rank_that_is_lied_to_gets_the_cause(hosts: list[Host], secret: str, act: str) -> None:
    seed = seed_of_this_run()

    def one(host: Host, call: Call, to: frozenset[int]) -> None:
        right = run(host, Acts(), secret, call, seed)
        lies = Acts(ACTS[act], to)
        outcomes = run(host, lies, secret, call, seed)
        assert lies.told
        check(outcomes, [each.get() for each in right], host.address, to)

    at_once(hosts, one)


def test_a_round_of_another_job_of_the_same_secret_does_not_fit(hosts: list[Host], secret: str) -> None:
    seed = seed_of_this_run()

    def one(host: Host, call: Call, to: frozenset[int]) -> None:
        former = Acts()
        right = run(host, former, secret, call, seed)
        kept = [former.results[number] for number in sorted(former.results)]
        outcomes = run(host, Acts(lambda _, told: kept[told.number % len(kept)], to), secret, call, seed)
        check(outcomes, [each.get() for each in right], host.address, to)

    at_once(hosts, one)


class PlanBit(Lies):
    """Sets a bit behind the header of the first call, in its RESULT for the ranks in `to`."""

    def __init__(self, word: int, bit: int, to: frozenset[int]) -> None:
        self.word, self.bit, self.to, self.told = word, bit, to, 0

    def result(self, told: Told) -> Words | None:
        words = told.words
        header = words is not None and not told.adds and words[1] == 0 and words[6] == 0xFFFFFFFF
        if words is not None and header and told.bit in self.to:
            self.told += 1
            words[self.word] |= np.uint32(1 << self.bit)
        return words


def half(session: worker_lib.Session, x: Any) -> Any:
    """Of 32 blocks the first 16 are not zero."""
    x = x.copy()
    x[1024:] = 0
    return session.broadcast(x, root=0)


EXPONENT: Final = 12 + 6, 30  # of the only chunk of `summed`: 2^95 or so
BLOCK: Final = 12, 30  # of `half`


@pytest.mark.parametrize("to", [{0}, {1}, {0, 1, 2}], ids=str)
def test_an_exponent_that_no_rank_has(hosts: list[Host], secret: str, to: set[int]) -> None:
    seed, host = seed_of_this_run(), hosts[0]
    right = run(host, Lies(), secret, summed, seed)
    lies = PlanBit(*EXPONENT, frozenset(to))
    outcomes = run(host, lies, secret, summed, seed)
    assert lies.told
    check(outcomes, [each.get() for each in right], host.address, lies.to)


@pytest.mark.parametrize("to", [{0}, {1}, {0, 1, 2}], ids=str)
def test_a_block_that_no_rank_has(hosts: list[Host], secret: str, to: set[int]) -> None:
    """Told to all ranks it costs a packet of zeros. Its owner, rank 0, notices too where only it is told."""
    seed, host = seed_of_this_run(), hosts[0]
    right = [each.get() for each in run(host, Lies(), secret, half, seed)]
    lies = PlanBit(*BLOCK, frozenset(to))
    outcomes = run(host, lies, secret, half, seed)
    assert lies.told
    if len(to) == RANKS:
        assert [each.get() for each in outcomes] == right
    else:
        check(outcomes, right, host.address, lies.to)


class OtherNonce(Lies):
    """Tells the ranks in `to` another nonce of one rank, with check words that fit: they have no secret."""

    def __init__(self, of: int, to: frozenset[int]) -> None:
        self.of, self.to, self.told = of, to, 0

    def result(self, told: Told) -> Words | None:
        words = told.words
        if words is not None and told.adds and told.number == 1 and told.bit in self.to:
            self.told += 1
            words[4 * self.of] += np.uint32(1)
            weight = reference.weights(WORDS - 6)[4 * self.of]
            low, middle, high = map(int, words[WORDS - 6 : WORDS - 3])
            total = low + (middle << 24) + ((high & 0xFFFFFF) << 48) + weight
            words[WORDS - 6 : WORDS - 3] = (
                total & 0xFFFFFF, total >> 24 & 0xFFFFFF, high >> 24 << 24 | total >> 48 & 0xFFFFFF
            )  # fmt: skip
        return words


@pytest.mark.parametrize("to", [{0}, {2}, {0, 1, 2}], ids=str)
def test_nonces_that_no_rank_has_sent(hosts: list[Host], secret: str, to: set[int]) -> None:
    """Rank 2 misses its own; for the others keys differ, and no sum opens. Each hears the cause."""
    seed, host = seed_of_this_run(), hosts[0]
    lies = OtherNonce(2, frozenset(to))
    outcomes = run(host, lies, secret, summed, seed)
    assert lies.told
    for outcome in outcomes:
        assert isinstance(outcome.error, worker_lib.SwitchAggError)
        assert "IntegrityError" in f"{type(outcome.error).__name__}: {outcome.error}"
