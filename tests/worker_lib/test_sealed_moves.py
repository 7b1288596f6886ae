"""Sealed broadcasts and gathers: the owner of a packet's words sends it alone."""

from __future__ import annotations

import random
import shutil
from typing import Any, Final

import numpy as np
import pytest

from tests.reference import seal
from tests.seeds import seed_of_this_run
from tests.worker_lib.generations import DONE, SECOND, WORDS, Cluster
from tests.worker_lib.lying_switch import Lies, LyingSwitch, Told
from tests.worker_lib.test_check import packed
from tests.worker_lib.test_seal import SECRET, uniform
from worker_lib import _native
from worker_lib.plan import DType, Kind, ReduceOp, Words

DATA: Final = WORDS - seal.WORDS
RANKS: Final = 3
BLOCK: Final = 16


class Kept(Lies):
    """Keeps contributions by packet number and rank, RESULTs by packet number, and who has sent SKIPs."""

    def __init__(self) -> None:
        self.sent: dict[int, dict[int, Words]] = {}
        self.results: dict[int, Words] = {}

    def contribution(self, told: Told) -> Words | None:
        assert told.words is not None
        self.sent.setdefault(told.number, {})[told.bit] = told.words.copy()
        return told.words

    def result(self, told: Told) -> Words | None:
        if told.words is not None:
            self.results[told.number] = told.words.copy()
        return told.words


def moved(
    kind: Kind, arrays: list[Words], *, root: int = 0, sparse: bool
) -> tuple[Kept, list[Words], dict[str, int]]:
    """All that passes the switch in one move, what each rank has then, and packets by what they carry."""
    total = sum(each.size for each in arrays)
    ends = np.cumsum([each.size for each in arrays], dtype=np.uint64)
    outs = [np.full(total, 7, np.uint32) for _ in range(RANKS)]
    lies, works = Kept(), []
    with Cluster(RANKS, switch=LyingSwitch(lies), secret=SECRET) as cluster:
        for r, engine in cluster.engines.items():
            begin = int(ends[r]) - arrays[r].size
            call = _native.Call(
                kind=kind, op=ReduceOp.OR, dtype=DType.RAW, bits=32, sparse=sparse, block=BLOCK, count=total,
                fingerprint_count=total, workers=RANKS, rank=r, root=root, input=arrays[r].ctypes.data,
                in_begin=begin, in_end=begin + arrays[r].size, output=outs[r].ctypes.data, out_end=total,
                zero_fill=True, owner_ends=0 if kind is Kind.BROADCAST else ends.ctypes.data,
            )  # fmt: skip
            works.append((engine, engine.submit(call, 60 * SECOND, True, engine.generation)))
        for engine, work in works:
            assert work is not None
            assert engine.wait(work, 60 * SECOND) == DONE
        counts = {
            name: sum(engine.stats()[name] for engine, _ in works)
            for name in ("packets_data", "packets_skip")
        }
    return lies, outs, counts


def drawn(rng: random.Random, sizes: list[int], *, sparse: bool) -> list[Words]:
    of = np.random.default_rng(rng.getrandbits(32))
    arrays = [of.integers(0, 1 << 32, size, dtype=np.uint32) for size in sizes]
    if sparse:
        for each in arrays:
            each.reshape(-1, BLOCK)[of.random(each.size // BLOCK) < 0.5] = 0
    return arrays


CASES: Final[dict[str, tuple[Kind, list[int], int, bool]]] = {
    "broadcast": (Kind.BROADCAST, [0, 500, 0], 1, False),
    "sparse broadcast": (Kind.BROADCAST, [0, 0, 640], 2, True),
    "allgather": (Kind.ALLGATHER, [200, 200, 200], 0, False),
    "small allgather": (Kind.ALLGATHER, [5, 5, 5], 0, False),
    "unequal allgather": (Kind.ALLGATHERV, [301, 0, 90], 0, False),
    "sparse allgather": (Kind.ALLGATHER, [320, 320, 320], 0, True),
}


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_this_run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl, as the other cipher")
@pytest.mark.parametrize("case", CASES)
def test_packets_are_those_of_the_reference(rng: random.Random, case: str) -> None:
    """All packets of a move, from the recorded nonces and plan: who sends which, and each word."""
    kind, sizes, root, sparse = CASES[case]
    arrays = drawn(rng, sizes, sparse=sparse)
    whole = np.concatenate(arrays)
    lies, outs, counts = moved(kind, arrays, root=root, sparse=sparse)
    assert all(np.array_equal(out, whole) for out in outs)
    nonces = packed(lies.results[1])
    keys = seal.Keys(SECRET, [nonces[16 * r : 16 * r + 16] for r in range(RANKS)])
    plan = lies.results[2]
    blocks = whole.size // BLOCK if sparse else 0
    agreed = seal.digests(keys, [*plan[:12], *plan[: 12 + -(-blocks // 32)]], DATA)
    index = np.arange(whole.size)
    if sparse:
        index = index[np.repeat(whole.reshape(-1, BLOCK).any(axis=1), BLOCK)]
    owners = np.repeat(np.arange(RANKS), sizes)
    numbers = sorted(number for number in lies.sent if number > 2)
    assert len(numbers) == 1 + -(-index.size // DATA)
    alone = 0
    for packet, number in enumerate(numbers):
        here = index[DATA * (packet - 1) : DATA * packet] if packet else index[:0]  # the first one has claims
        senders = {int(owners[each]) for each in here[[0, -1]]} if packet else set()
        by = senders if len(senders) == 1 else set(range(RANKS))
        assert lies.sent[number].keys() == by
        alone += len(by) == 1
        for rank in by:
            words = np.zeros(DATA, np.uint32)
            words[: here.size] = np.where(
                owners[here] == rank, whole[here], 0
            ).byteswap()  # as bytes lie in memory
            sent = seal.contribution(
                keys, rank, RANKS, words.tolist(), number, agreed, alone=len(by) == 1
            )  # fmt: skip
            assert lies.sent[number][rank].tolist() == sent
    assert (alone > 0) == (case != "small allgather")
    # All ranks send the exchange of nonces, of two packets, and the header.
    assert counts["packets_skip"] == (RANKS - 1) * alone
    assert counts["packets_data"] == RANKS * (3 + len(numbers) - alone) + alone


def test_what_passes_is_uniform() -> None:
    arrays = [np.full(20_000, rank, np.uint32) for rank in range(RANKS)]
    lies, _, _ = moved(Kind.ALLGATHER, arrays, sparse=False)
    for rank in range(RANKS):
        words: list[Any] = [sent[rank] for number, sent in lies.sent.items() if number > 2 and rank in sent]
        assert len(words) > 300
        assert uniform(np.concatenate(words))
    assert uniform(np.concatenate([lies.results[number] for number in lies.results if number > 2]))
