"""Sealed sums: whoever is on the path, the switch included, reads nothing and changes nothing unnoticed."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.reference import seal
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from tests.worker_lib.generations import DAMAGED, DONE, PENDING, SECOND, WORDS, Cluster
from tests.worker_lib.harness import in_threads, together, try_together
from tests.worker_lib.lying_switch import Lies, LyingSwitch, Told
from tests.worker_lib.test_check import RANKS, Float, many_sums, packed, tensors, unpacked, work
from worker_lib import _native
from worker_lib.plan import Words
from worker_lib.secret import read_secret

SECRET: Final = bytes(range(32))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_this_run())


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return written(tmp_path / "secret", SECRET)


def written(path: Path, secret: bytes, mode: int = 0o600) -> str:
    path.write_bytes(secret)
    path.chmod(mode)
    return str(path)


# ---------------------------------------------------------------------- words


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl, as the other cipher")
@pytest.mark.parametrize(("ranks", "words"), [(2, 18), (3, 64), (5, 352)])
def test_contributions_are_those_of_the_reference(rng: random.Random, ranks: int, words: int) -> None:
    secret, number = rng.randbytes(40), rng.getrandbits(50)
    nonces = [rng.randbytes(16) for _ in range(ranks)]
    digest = rng.getrandbits(61), rng.getrandbits(61)
    keys = seal.Keys(secret, nonces)
    limit = (1 << 31) // ranks
    for rank in range(ranks):
        values = [rng.randrange(1 - limit, limit) % (1 << 32) for _ in range(words - seal.WORDS)]
        native = _native.Seal(secret, nonces, rank, words).sealed(number, digest, ranks, packed(values))
        assert unpacked(native) == seal.contribution(keys, rank, ranks, values, number, digest)


# For other implementations.
VECTORS: Final = json.loads((Path(__file__).parents[2] / "docs" / "sealed-sums.json").read_text())["cases"]


@pytest.mark.parametrize("case", VECTORS)
def test_vectors(case: dict[str, Any]) -> None:
    secret, nonces = bytes.fromhex(case["secret"]), [bytes.fromhex(each) for each in case["nonces"]]
    keys = seal.Keys(secret, nonces)
    assert (keys.pads.hex(), keys.weights.hex()) == (case["pads_key"], case["weights_key"])
    size, ranks = case["words_a_packet"], len(nonces)
    first, second = case["digests"]
    for rank, words in enumerate(case["words"]):
        native = _native.Seal(secret, nonces, rank, size)
        for alone, name in ((False, "contributions"), (True, "alone")):
            sealed = native.sealed(case["packet_number"], (first, second), ranks, bytes.fromhex(words), alone)
            assert sealed.hex() == case[name][rank]
    added = [unpacked(bytes.fromhex(each)) for each in case["contributions"]]
    result = [sum(each) % (1 << 32) for each in zip(*added, strict=True)]
    assert packed(result).hex() == case["result"]
    opened = [
        (word - pad) % (1 << 32)
        for word, pad in zip(result, unpacked(bytes.fromhex(case["pad_of_all"])), strict=True)
    ]
    assert packed(opened).hex() == case["opened"]
    data = [unpacked(bytes.fromhex(each)) for each in case["words"]]
    assert opened[: size - seal.WORDS] == [sum(each) % (1 << 32) for each in zip(*data, strict=True)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl, as the other cipher")
@pytest.mark.parametrize("case", VECTORS)
def test_vectors_are_those_of_the_reference(case: dict[str, Any]) -> None:
    keys = seal.Keys(bytes.fromhex(case["secret"]), [bytes.fromhex(each) for each in case["nonces"]])
    number, size = case["packet_number"], case["words_a_packet"]
    assert packed(seal.pad(keys, 0, number, size)).hex() == case["pad_of_all"]
    for rank, words in enumerate(case["words"]):
        data = unpacked(bytes.fromhex(words))
        for alone, name in ((False, "contributions"), (True, "alone")):
            sent = seal.contribution(
                keys, rank, len(case["nonces"]), data, number, tuple(case["digests"]), alone=alone
            )
            assert packed(sent).hex() == case[name][rank]


# ---------------------------------------------------------------------- a hostile switch


def run_sealed(
    lies: Lies, xs: list[list[npt.NDArray[np.float32]]], bits: int, *, sparse: bool, secrets: Any = SECRET
) -> list[list[Float]]:
    """All ranks add up tensor after tensor, until all are done or an engine is broken."""
    with Cluster(RANKS, switch=LyingSwitch(lies), secret=secrets) as cluster:
        engines = cluster.engines
        sums = [[Float(engines[r], r, x[r], bits, sparse=sparse) for x in xs] for r in range(RANKS)]
        until = time.monotonic() + 60
        while any(each.native.status == PENDING for of in sums for each in of):
            assert time.monotonic() < until
            time.sleep(0.002)
            if any(e.broken for e in engines.values()):
                break  # that rank leaves, with an error, and the others hear of it
            if any(e.damage is not None for e in engines.values()):
                cluster.replay()
        return sums


def results(sums: list[list[Float]]) -> list[list[bytes | None]]:
    return [[each.out.tobytes() if each.native.status == DONE else None for each in of] for of in sums]


class Recorder(Lies):
    """Keeps the words of contributions and RESULTs of sums."""

    def __init__(self) -> None:
        self.contributions: dict[tuple[int, int], Words] = {}
        self.results: dict[int, Words] = {}

    def contribution(self, told: Told) -> Words | None:
        assert told.words is not None
        self.contributions[told.number, told.bit] = told.words.copy()
        return told.words

    def result(self, told: Told) -> Words | None:
        if told.words is not None:
            self.results[told.number] = told.words.copy()
        return told.words


class Replays(Lies):
    """Answers with what another job of the same secret has got."""

    def __init__(self, recorded: dict[int, Words]) -> None:
        self.recorded = recorded

    def result(self, told: Told) -> Words | None:
        return self.recorded.get(told.number, told.words)


def test_another_job_of_the_same_secret_does_not_fit(rng: random.Random) -> None:
    xs = tensors(rng, 1, sparse=False)
    recorder = Recorder()
    assert all(of[0].native.status == DONE for of in run_sealed(recorder, xs, 32, sparse=False))
    sums = run_sealed(Replays(recorder.results), xs, 32, sparse=False)
    assert all(of[0].native.status != DONE for of in sums)


class OldNonces(Lies):
    """Tells ranks the nonces of an earlier session, so that its keys would return."""

    def __init__(self, recorded: dict[int, Words], bits: set[int]) -> None:
        self.recorded, self.bits, self.told = recorded, bits, 0

    def result(self, told: Told) -> Words | None:
        if told.number >= 4 or told.bit not in self.bits or told.number not in self.recorded:
            return told.words
        self.told += 1
        return self.recorded[told.number]


@pytest.mark.parametrize("bits", [{1}, {0, 1, 2}], ids=["one", "all"])
def test_nonces_of_an_earlier_session_are_refused(rng: random.Random, bits: set[int]) -> None:
    xs = tensors(rng, 1, sparse=False)
    recorder = Recorder()
    run_sealed(recorder, xs, 32, sparse=False)
    lies = OldNonces(recorder.results, bits)
    sums = run_sealed(lies, xs, 32, sparse=False)
    assert lies.told
    assert all(of[0].native.status != DONE for of in sums)


class ExtraBit(Lies):
    """Sets a bit in the first plan that has words behind its header, for all ranks or one."""

    def __init__(self, word: int, bit: int, bits: set[int]) -> None:
        self.word, self.bit, self.bits, self.told = word, bit, bits, 0
        self.number = -1

    def result(self, told: Told) -> Words | None:
        if (
            told.words is not None
            and self.number < 0
            and told.number > 0
            and told.words[1] == 0
            and told.words[6] == 0xFFFFFFFF
        ):
            self.number = told.number
        if told.words is not None and told.number == self.number and told.bit in self.bits:
            self.told += 1
            told.words[self.word] |= np.uint32(1 << self.bit)
        return told.words


@pytest.mark.parametrize("bits", [{1}, {0, 1, 2}], ids=["one", "all"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_exponent_that_no_rank_has_is_noticed(rng: random.Random, bits: set[int], sparse: bool) -> None:
    xs = tensors(rng, 1, sparse=sparse)
    lies = ExtraBit(12 + (3 if sparse else 0) + 6, 30, bits)
    sums = run_sealed(lies, xs, 32, sparse=sparse)
    assert lies.told
    assert all(of[0].native.status != DONE for of in sums)


def test_another_secret_does_not_open(rng: random.Random) -> None:
    class Mixed(Cluster):
        def _engine(self, sock: Any, admission: dict[str, Any]) -> _native.Engine:
            own = SECRET if admission["rank"] else b"another secret of 32 bytes......"
            return _native.Engine(sock.native, _native.Admission(**admission), False, bytearray(own))

    xs = tensors(rng, 1, sparse=False)
    with Mixed(RANKS, switch=LyingSwitch(Lies())) as cluster:
        sums = [Float(cluster.engines[r], r, xs[0][r], 32, sparse=False) for r in range(RANKS)]
        until = time.monotonic() + 60
        while not any(e.broken for e in cluster.engines.values()) and time.monotonic() < until:
            time.sleep(0.01)
            if any(e.damage is not None for e in cluster.engines.values()):
                cluster.replay()
        eventually(lambda: any(each.native.status == DAMAGED for each in sums))
        assert all(each.native.status != DONE for each in sums)


def test_a_p4_program_carries_sealed_sums(rng: random.Random) -> None:
    pytest.importorskip("pcpp", reason="needs what the P4 model needs")
    from switchagg.emulator.p4_switch import P4Switch

    program = Path(__file__).parents[2] / "p4" / "switchagg_v1model.p4"
    xs = tensors(rng, 1, sparse=True)[0]
    switch = P4Switch(program, defines=(f"AGG_WORDS={WORDS}", "AGG_SLOTS=512"))
    outs = []
    with Cluster(RANKS, switch=switch, secret=SECRET) as cluster:
        sums = [Float(cluster.engines[r], r, xs[r], 32, sparse=True) for r in range(RANKS)]
        for each in sums:
            assert each.engine.wait(each.native, 100 * SECOND) == DONE
        outs = [each.out.tobytes() for each in sums]
    right = results(run_sealed(Lies(), [xs], 32, sparse=True))
    assert [[each] for each in outs] == right


# ---------------------------------------------------------------------- what the path sees


def uniform(words: npt.NDArray[np.uint32]) -> bool:
    """Monobit and chi-square tests of words as bytes, both at five standard deviations."""
    data = np.frombuffer(words.tobytes(), np.uint8)
    ones = int(np.unpackbits(data).sum())
    monobit = abs(2 * ones - 8 * data.size) / np.sqrt(8 * data.size)
    counts = np.bincount(data, minlength=256)
    expected = data.size / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    return bool(monobit < 5 and abs(chi - 255) < 5 * np.sqrt(2 * 255))


@pytest.mark.parametrize("sealed", [True, False])
def test_packets_of_constant_gradients_are_uniform_only_if_sealed(sealed: bool) -> None:
    recorder = Recorder()
    xs = [[np.ones(60_000, np.float32)] * RANKS]
    sums = run_sealed(recorder, xs, 32, sparse=False, secrets=SECRET if sealed else b"")
    assert all((of[0].out == RANKS).all() for of in sums)
    numbers = [n for n in recorder.results if n > 8]  # behind nonces and header
    assert len(numbers) > 900
    for bit in range(RANKS):
        assert uniform(np.concatenate([recorder.contributions[n, bit] for n in numbers])) == sealed
    assert uniform(np.concatenate([recorder.results[n] for n in numbers])) == sealed


def test_two_sessions_of_one_secret_share_no_word(rng: random.Random) -> None:
    """Nonces are fresh, so the same tensors make other packets."""
    xs = tensors(rng, 1, sparse=False)
    first, second = Recorder(), Recorder()
    for recorder in (first, second):
        run_sealed(recorder, xs, 32, sparse=False)
    same = [
        np.count_nonzero(first.contributions[at] == second.contributions[at])
        for at in first.contributions.keys() & second.contributions.keys()
        if at[0] > 8
    ]
    assert len(same) > 20
    assert sum(same) < 3


# ---------------------------------------------------------------------- sessions


def sealed_work(session: worker_lib.Session, seed: int) -> tuple[list[bytes], int]:
    """`work` without the OR; a sparse sum besides."""
    rows = session.allreduce_sparse(np.array([session.rank, 7]), np.ones((2, 4), np.float32), rows=100)
    done, damaged = work(session, seed, ors=False)
    return [*done, rows.indices.tobytes(), rows.values.tobytes()], damaged


@pytest.mark.usefixtures("both_transports")
def test_results_are_those_of_sums_in_the_clear(host: EmbeddedController, secret: str) -> None:
    seed = seed_of_this_run()
    plain = together(host.url, RANKS, sealed_work, seed)
    sealed = together(host.url, RANKS, sealed_work, seed, seal=secret)
    for (wanted, _), (done, damaged) in zip(plain, sealed, strict=True):
        assert done == wanted
        assert damaged == 0


def refused(session: worker_lib.Session) -> list[str]:
    told = []
    for call in (session.allreduce, session.reduce, session.reduce_scatter):
        with pytest.raises(worker_lib.UsageError) as caught:
            call(np.arange(6), op="or")
        told.append(str(caught.value))
    session.barrier()
    return told


def test_an_or_is_refused(host: EmbeddedController, secret: str) -> None:
    for told in together(host.url, 2, refused, seal=secret):
        assert all("op is 'or' in a sealed job" in each for each in told)


def test_a_secret_shows_itself_to_nobody(secret: str) -> None:
    read = read_secret(secret)
    assert (read.show(), len(read), bool(read)) == (SECRET, 32, True)
    for shown in (repr(read), str(read), f"{read}", repr([read]), repr({"secret": read})):
        assert "32 secret bytes" in shown
        assert repr(SECRET)[2:-1] not in shown
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(read, protocol)
    with pytest.raises(worker_lib.SwitchAggError) as caught:
        worker_lib.connect("http://127.0.0.1:1", "job", 0, 2, seal=secret, timeout=1)
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert repr(SECRET)[2:-1] not in "".join(told.format())


def test_without_a_secret_nothing_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: tuple[tuple[Any, str], ...] = (
        (True, "SWITCHAGG_SEAL is not set"),
        (str(tmp_path / "none"), "cannot be read"),
        (written(tmp_path / "short", b"short"), "has 5 bytes; accepted: 16 to 4,096"),
        (written(tmp_path / "open", SECRET, 0o644), "has mode 644; accepted: 600 or 400"),
        ("fd:99999", "cannot be read"),
        ("a\0b", "cannot be read"),
        (5, "seal is 5; accepted: True, False, the path of a file, or 'fd:N'"),
        (b"/secret", "seal is b'/secret'; accepted"),
    )
    for named, told in wrong:
        with pytest.raises(worker_lib.UsageError, match=told):
            worker_lib.connect("http://127.0.0.1:1", "job", 0, 2, seal=named)
    monkeypatch.setenv("SWITCHAGG_SEAL", str(tmp_path / "none"))
    with pytest.raises(worker_lib.UsageError, match="cannot be read"):
        worker_lib.connect("http://127.0.0.1:1", "job", 0, 2)


def ones(session: worker_lib.Session) -> bool:
    return bool((session.allreduce(np.ones(1000, np.float32)) == session.world_size).all())


def test_a_secret_comes_through_a_descriptor(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = os.pipe()
    os.write(writes, SECRET)
    os.close(writes)
    monkeypatch.setenv("SWITCHAGG_SEAL", f"fd:{reads}")
    assert together(host.url, 2, ones, seal=True) == [True, True]
    assert together(host.url, 2, ones) == [True, True]


def begun(session: worker_lib.Session) -> int:
    if session.rank:
        time.sleep(0.3)  # until then nonces are not exchanged, and rank 0's sum cannot begin
    work = session.allreduce_async(np.ones(1000, np.float32))
    work._begin(60.0)
    engine = session._state.engine
    assert engine is not None
    before_the_end = engine.begun
    work.wait()
    return before_the_end


def test_what_has_begun_in_a_sealed_job_is_more_than_its_nonces(
    host: EmbeddedController, secret: str
) -> None:
    assert together(host.url, 2, begun, seal=secret) == [2, 2]


def test_packets_without_room_for_a_header_are_refused(host: EmbeddedController, secret: str) -> None:
    def rank(r: int) -> str:
        with pytest.raises(worker_lib.UsageError) as caught:
            worker_lib.connect(host.url, "narrow", r, 2, words=17, timeout=20, seal=secret)
        return str(caught.value)

    for told in in_threads([lambda r=r: rank(r) for r in range(2)]):
        assert told.get() == "the job has 17 words a packet; accepted for sealed sums: 18 or more"


def test_ranks_of_which_one_seals_hear_so(host: EmbeddedController, secret: str) -> None:
    ready = threading.Barrier(2)

    def rank(r: int) -> BaseException | None:
        with worker_lib.connect(
            host.url, "half sealed", r, 2, timeout=20, seal=secret if r else False
        ) as session:
            ready.wait()
            try:
                session.allreduce(np.ones(10, np.float32))
            except worker_lib.SwitchAggError as error:
                ready.wait()  # a rank that leaves earlier is what the other hears of
                return error
            return None

    for outcome in in_threads([lambda r=r: rank(r) for r in range(2)]):
        assert isinstance(outcome.get(), worker_lib.MismatchError)
        assert "sealed" in str(outcome.get())


@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_sealed_packets_that_a_switch_has_damaged_are_sent_again(transport: str, secret: str) -> None:
    seed = seed_of_this_run()
    with EmbeddedController() as host:
        right = together(host.url, RANKS, many_sums, seed)
    with EmbeddedController(faults=Faults(corrupt=0.005, loss=0.01, seed=seed)) as host:
        outcomes = try_together(host.url, RANKS, many_sums, seed, seal=secret, transport=transport)
    for outcome, (wanted, _) in zip(outcomes, right, strict=True):
        if outcome.error is not None:
            assert isinstance(outcome.error, worker_lib.SwitchAggError), outcome.error
        else:
            assert outcome.value[0] == wanted


def test_survivors_of_a_loss_have_new_keys(host: EmbeddedController, secret: str) -> None:
    def rank(r: int) -> list[float]:
        session = worker_lib.connect(host.url, "shrinks", r, 3, timeout=60, seal=secret, on_loss="shrink")
        found = [float(session.allreduce(np.ones(100, np.float32))[0])]
        if r == 2:
            assert session._state.monitor is not None
            session._state.monitor.drop()
            return found
        with session:
            while len(found) < 3:
                try:
                    found.append(float(session.allreduce(np.ones(100, np.float32))[0]))
                except worker_lib.WorkerLostError:
                    continue
        return found

    outcomes = [each.get() for each in in_threads([lambda r=r: rank(r) for r in range(3)])]
    assert outcomes[0] == outcomes[1] == [3.0, 2.0, 2.0]
