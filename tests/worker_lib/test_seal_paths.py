"""Sealed sums over all that carries sums: trees, P4 programs, other switches, other members, compressors."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.seeds import seed_of_this_run
from tests.switchagg.control.switch_trees import switch_tree
from tests.switchagg.control.test_tree_of_switches import at_leaves
from tests.waiting import eventually
from tests.worker_lib.generations import DONE, SECOND, WORDS, Cluster, Sum
from tests.worker_lib.harness import together
from tests.worker_lib.lying_switch import Lies, LyingSwitch, Told
from tests.worker_lib.test_check import RANKS, Float, tensors
from tests.worker_lib.test_seal import SECRET, results, run_sealed, sealed_work, uniform, written
from worker_lib import _native
from worker_lib.compress import IntSGD, PowerSGD, RandomBlocks, Rotation, Signs, StochasticRounding
from worker_lib.plan import DType, Kind, ReduceOp, Words

PROGRAMS: Final = Path(__file__).parents[2] / "p4"


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_this_run())


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return written(tmp_path / "secret", SECRET)


class Every(Lies):
    """Keeps all words that come, in order, by packet number and worker."""

    def __init__(self) -> None:
        self.came: dict[tuple[int, int], list[Words]] = {}

    def contribution(self, told: Told) -> Words | None:
        assert told.words is not None
        self.came.setdefault((told.number, told.bit), []).append(told.words.copy())
        return told.words


class DamagesOne(Every):
    """Gives rank 1 wrong RESULTs of one packet, as long as the job is at its first place."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.before = number, 0
        self.switch = LyingSwitch(self)
        self.place: int | None = None  # the job's first sequence number

    def result(self, told: Told) -> Words | None:
        if self.place is None:
            self.place = self.switch.first_seq
        there = self.switch.first_seq == self.place
        if told.words is not None and told.number == self.number and told.bit == 1 and there:
            told.words[3] += 1
            self.before = max(number for number, _ in self.came)  # before the move
        return told.words


def test_a_move_in_the_middle_of_a_tensor_sends_the_same_words(rng: random.Random) -> None:
    """Other words of the same numbers would be under the same pads: their difference would show."""
    random_numbers = np.random.default_rng(rng.randrange(1 << 30))
    xs = [random_numbers.standard_normal(20_000).astype(np.float32) for _ in range(RANKS)]
    right = results(run_sealed(Lies(), [xs], 32, sparse=False))
    lies = DamagesOne(40)
    with Cluster(RANKS, switch=lies.switch, secret=SECRET) as cluster:
        sums = [Float(cluster.engines[r], r, xs[r], 32, sparse=False) for r in range(RANKS)]
        eventually(lambda: cluster.engines[1].damage == lies.number)
        cluster.replay()
        for each in sums:
            assert each.engine.wait(each.native, 60 * SECOND) == DONE
    assert [[each.out.tobytes()] for each in sums] == right
    assert max(number for number, _ in lies.came) > lies.before  # it was in the middle
    again = {at: came for at, came in lies.came.items() if len(came) > 1}
    assert {bit for number, bit in again if number == lies.number} == set(range(RANKS))
    for came in again.values():
        assert all((words == came[0]).all() for words in came)


def test_other_members_have_other_pads_and_so_has_a_rank_that_is_back(rng: random.Random) -> None:
    """Packet numbers begin again with each change of membership, so nonces must be fresh."""
    x = tensors(rng, 1, sparse=False)[0]
    lies = Every()
    with Cluster(RANKS, switch=LyingSwitch(lies), secret=SECRET) as cluster:
        kept = []
        for places in ((0, 1, 2), (0, 1), (0, 1, 2)):
            if kept:
                if len(places) < len(cluster.places):
                    cluster.stop(2)
                cluster.change(places)
            lies.came = {}
            sums = [Float(cluster.engines[p], r, x[p], 32, sparse=False) for r, p in enumerate(places)]
            for each in sums:
                assert each.engine.wait(each.native, 60 * SECOND) == DONE
            assert len({each.out.tobytes() for each in sums}) == 1
            kept.append((lies.came, sums[0].out.copy()))
    assert (kept[0][1] == kept[2][1]).all()
    assert (kept[0][1] != kept[1][1]).any()
    for one, other in ((0, 1), (1, 2), (0, 2)):
        first, second = kept[one][0], kept[other][0]
        shared = [at for at in first.keys() & second.keys() if at[0] > 8]  # behind nonces and headers
        assert len(shared) > 20
        assert sum(int((first[at][0] == second[at][0]).sum()) for at in shared) < 3


@pytest.mark.parametrize("program", ["switchagg_v1model.p4", "switchagg_tna.p4"])
@pytest.mark.parametrize("bits", [32, 8])
def test_unmodified_p4_programs_carry_sealed_sums(rng: random.Random, program: str, bits: int) -> None:
    pytest.importorskip("pcpp", reason="needs what the P4 model needs")
    from switchagg.emulator.p4_switch import P4Switch

    x = [each[:3000] for each in tensors(rng, 1, sparse=True)[0]]
    switch = P4Switch(PROGRAMS / program, defines=(f"AGG_WORDS={WORDS}", "AGG_SLOTS=512"))
    with Cluster(RANKS, switch=switch, secret=SECRET) as cluster:
        sums = [Float(cluster.engines[r], r, x[r], bits, sparse=True) for r in range(RANKS)]
        for each in sums:
            assert each.engine.wait(each.native, 100 * SECOND) == DONE
        found = [[each.out.tobytes()] for each in sums]
    assert found == results(run_sealed(Lies(), [x], bits, sparse=True))


def test_a_tree_of_switches(secret: str) -> None:
    """Two leaves and a root: each leaf adds what only some pads cancel in."""
    seed = seed_of_this_run()
    with switch_tree(2) as it:
        found = {
            seal: [each.get() for each in at_leaves(it, [1, 2, 1], sealed_work, seed, words=512, seal=seal)]
            for seal in (False, secret)
        }
        it.all_free()
    assert [done for done, _ in found[secret]] == [done for done, _ in found[False]]


def compressed(session: worker_lib.Session, seed: int) -> list[bytes]:
    rng = np.random.default_rng([seed, session.rank])
    x = rng.standard_normal((64, 256)).astype(np.float32)
    compressors = (StochasticRounding(unit=0.01), IntSGD(), PowerSGD(), Signs(), RandomBlocks(tau=1 / 8))
    return [session.allreduce(x.copy(), compressor=each).tobytes() for each in compressors]


def test_compressors(host: EmbeddedController, secret: str) -> None:
    seed = seed_of_this_run()
    plain = together(host.url, RANKS, compressed, seed)
    assert together(host.url, RANKS, compressed, seed, seal=secret) == plain


def rotated(session: worker_lib.Session) -> str:
    with pytest.raises(worker_lib.UsageError) as caught:
        session.allreduce(np.ones(2048, np.float32), compressor=Rotation())
    session.barrier()
    return str(caught.value)


def test_a_compressor_that_ors_its_scales_is_refused(host: EmbeddedController, secret: str) -> None:
    for told in together(host.url, 2, rotated, seal=secret):
        assert "needs 'or' in a sealed job" in told


def wrapping(session: worker_lib.Session) -> list[Any]:
    """Sums that leave the type's range, alike at all ranks."""
    return [int(session.allreduce(np.full(3, (1 << width - 1) - 1, f"int{width}"))[0]) for width in (32, 64)]


@pytest.mark.parametrize("proof", ["checked", "sealed"])
def test_integers_wrap_as_ever(host: EmbeddedController, secret: str, proof: str) -> None:
    settings: dict[str, Any] = {"check": True} if proof == "checked" else {"seal": secret}
    wanted = [(3 * ((1 << w - 1) - 1) + (1 << w - 1)) % (1 << w) - (1 << w - 1) for w in (32, 64)]
    assert together(host.url, 3, wrapping, **settings) == [wanted] * 3


def test_two_flips_that_would_cancel_in_32_bits_are_noticed() -> None:
    """int32 goes in lanes of 64 bits, where nothing wraps; checked sums of int32 guarantee less."""

    class Flips(Lies):
        def __init__(self) -> None:
            self.told = 0

        def result(self, told: Told) -> Words | None:
            if told.words is not None and told.number > 8:
                told.words[[3, 5]] ^= np.uint32(1 << 31)
                self.told += 1
            return told.words

    lies = Flips()
    with Cluster(2, switch=LyingSwitch(lies), secret=SECRET) as cluster:
        xs = [np.arange(4000, dtype=np.int32) for _ in range(2)]
        sums = [Sum(cluster.engines[r], xs[r]) for r in range(2)]
        until = time.monotonic() + 60
        while not any(e.broken for e in cluster.engines.values()) and time.monotonic() < until:
            time.sleep(0.01)
            if any(e.damage is not None for e in cluster.engines.values()):
                cluster.replay()
        assert lies.told
        assert all(each.native.status != DONE for each in sums)


def seen(x: npt.NDArray[Any], *, dense_integers: bool) -> dict[int, Words]:
    """Rank 0's contributions behind the exchange of nonces, all of a sum of `x` at both ranks."""
    lies = Every()
    with Cluster(2, switch=LyingSwitch(lies), secret=SECRET) as cluster:
        xs, outs = [x.copy() for _ in range(2)], [np.empty_like(x) for _ in range(2)]
        works = []
        for r, engine in cluster.engines.items():
            call = _native.Call(
                kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=DType.I32 if dense_integers else DType.F32,
                bits=32, sparse=not dense_integers, block=16, count=x.size, fingerprint_count=x.size,
                workers=2, rank=r, input=xs[r].ctypes.data, in_end=x.size,
                output=outs[r].ctypes.data, out_end=x.size, zero_fill=True,
            )  # fmt: skip
            works.append((engine, engine.submit(call, 60 * SECOND, True, engine.generation), outs[r]))
        for engine, submitted, out in works:
            assert submitted is not None
            assert engine.wait(submitted, 60 * SECOND) == DONE
            np.testing.assert_allclose(out, 2 * x, rtol=0, atol=0 if dense_integers else 1e-5)
    return {number: came[0] for (number, bit), came in lies.came.items() if bit == 0 and number > 1}


def test_dense_integers_show_their_size_alone(rng: random.Random) -> None:
    """The mode without plans: zeros and numbers give the same packets, one header and uniform words."""
    zeros = np.zeros(20_000, np.int32)
    numbers = np.random.default_rng(rng.getrandbits(32)).integers(-1000, 1000, zeros.size).astype(np.int32)
    one, other = seen(zeros, dense_integers=True), seen(numbers, dense_integers=True)
    assert one.keys() == other.keys()
    header = min(one)
    assert (one[header] == other[header]).all()
    for packets in (one, other):
        assert uniform(np.concatenate([packets[number] for number in sorted(packets) if number > header]))


def test_floats_with_plans_show_more(rng: random.Random) -> None:
    """As docs/security.md says: which blocks are zero, and exponents."""
    numbers = np.random.default_rng(rng.getrandbits(32)).standard_normal(20_000).astype(np.float32)
    some = np.where(np.arange(numbers.size) % 64 < 32, numbers, np.float32(0))
    one, other = (seen(x, dense_integers=False) for x in (numbers, some))
    assert len(one) > len(other)
    plans = [number for number in sorted(one)[1:20] if not uniform(one[number]) or not uniform(other[number])]
    assert any((one[number] != other[number]).any() for number in plans)


def fixed(session: worker_lib.Session) -> tuple[npt.NDArray[np.float32], int]:
    before = session.stats()["blocks_skipped"]
    x = np.zeros(50_000, np.float32)
    x[:9] = session.rank + 1
    total = session.allreduce(x, compressor=StochasticRounding(unit=2.0**-8, blocks="dense"))
    return total, session.stats()["blocks_skipped"] - before


def test_floats_on_one_fixed_scale_need_no_plan(host: EmbeddedController, secret: str) -> None:
    for total, skipped in together(host.url, 2, fixed, seal=secret):
        assert (total[:9] == 3).all()
        assert not total[9:].any()
        assert skipped == 0
