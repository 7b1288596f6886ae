"""Mistakes that users will make: what they are told, at every rank, in time, and what works afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.waiting import eventually
from worker_lib import (
    AdmissionError,
    CollectiveTimeout,
    MismatchError,
    NetworkError,
    Session,
    SessionBrokenError,
    SwitchAggError,
    SwitchError,
    UsageError,
    WorkerLostError,
)
from worker_lib.embedded import start_embedded

from .harness import in_threads, job_name, together, try_together

pytestmark = pytest.mark.usefixtures("both_transports")

# ---------------------------------------------------------------------- ranks that call different things

F32 = np.float32


def _ones(*shape: int, kind: Any = F32) -> Any:
    return np.ones(shape, kind)


MISMATCHES: dict[str, tuple[Callable[[Session], Any], Callable[[Session], Any], str]] = {
    "shape": (lambda s: s.allreduce(_ones(4, 6)), lambda s: s.allreduce(_ones(6, 4)), "shape"),
    "size": (lambda s: s.allreduce(_ones(100)), lambda s: s.allreduce(_ones(100_000)), "number of elements"),
    "type": (lambda s: s.allreduce(_ones(9)), lambda s: s.allreduce(_ones(9, kind=np.int32)), "type"),
    "op": (lambda s: s.allreduce(_ones(9)), lambda s: s.allreduce(_ones(9), op="avg"), "reduction"),
    "bits": (lambda s: s.allreduce(_ones(9)), lambda s: s.allreduce(_ones(9), bits=16), "bits"),
    "mode": (
        lambda s: s.allreduce(_ones(9)),
        lambda s: s.allreduce(_ones(9), blocks="dense"),
        "whether zero blocks are skipped",
    ),
    "block": (lambda s: s.allreduce(_ones(9)), lambda s: s.allreduce(_ones(9), block_size=7), "block size"),
    "root": (lambda s: s.broadcast(_ones(9), root=0), lambda s: s.broadcast(_ones(9), root=1), "root"),
    "call": (lambda s: s.barrier(), lambda s: s.allreduce(_ones(50_000)), "operation"),
    "moves": (lambda s: s.allgather(_ones(9)), lambda s: s.broadcast(_ones(9)), "operation"),
    "reduce": (lambda s: s.allreduce(_ones(9)), lambda s: s.reduce(_ones(9)), "operation"),
    "root of reduce": (lambda s: s.reduce(_ones(9), 1), lambda s: s.reduce(_ones(9), 2), "root"),
    "root of gather": (lambda s: s.gather(_ones(9), 1), lambda s: s.gather(_ones(9), 2), "root"),
    "gather": (lambda s: s.gather(_ones(9)), lambda s: s.allgather(_ones(9)), "operation"),
    "all to all": (lambda s: s.all_to_all(_ones(9)), lambda s: s.allgather(_ones(9)), "operation"),
    "scatter": (
        lambda s: s.scatter(_ones(3, 9), 1, _ones(9)),
        lambda s: s.scatter(None, 1, _ones(9, 1)),
        "shape",
    ),
    "move type": (
        lambda s: s.broadcast(_ones(9)),
        lambda s: s.broadcast(_ones(9, kind=np.int32)),
        "shape",  # of exact moves the element type is part of it
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.parametrize("odd_one", [0, 2])
def test_ranks_that_disagree_are_all_told_and_go_on(
    host: EmbeddedController, name: str, odd_one: int
) -> None:
    one, other, said = MISMATCHES[name]

    def call(session: Session) -> None:
        with pytest.raises(MismatchError) as caught:
            (other if session.rank == odd_one else one)(session)
        assert said in str(caught.value)
        assert f"Rank {session.rank} called " in str(caught.value)
        x = np.ones(1000, F32)
        session.allreduce(x)
        assert np.array_equal(x, np.full(1000, 3, F32))
        session.barrier()

    together(host.url, 3, call, limit=60)


def test_another_order_of_calls(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x, y = np.ones(100, F32), np.ones(200, F32)
        for z in (x, y) if session.rank else (y, x):
            with pytest.raises(MismatchError, match="number of elements"):
                session.allreduce(z)
        assert x.sum() == 100  # nothing was changed
        session.allreduce(x)
        assert x.sum() == 200

    together(host.url, 2, call)


def test_a_mismatch_among_many_in_flight(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        arrays = [np.ones(20_000, F32) for _ in range(6)]
        works = [
            session.allreduce_async(x if i != 3 or session.rank else x.reshape(2, -1))
            for i, x in enumerate(arrays)
        ]
        for i, work in enumerate(works):
            if i == 3:
                with pytest.raises(MismatchError):
                    work.wait()
                with pytest.raises(MismatchError):
                    work.wait()  # and again
            else:
                assert np.array_equal(work.wait().reshape(-1), np.full(20_000, 2, F32))

    together(host.url, 2, call)


# ---------------------------------------------------------------------- arguments


@pytest.fixture(scope="module")
def pair(host: EmbeddedController) -> Any:
    """Two sessions of one job, both of this thread: enough for what is refused before anything is sent."""
    name = job_name()
    sessions = [
        o.get() for o in in_threads([lambda r=r: worker_lib.connect(host.url, name, r, 2) for r in range(2)])
    ]
    yield sessions[0]
    assert sessions[0].stats()["packets_sent"] == 0
    for session in sessions:
        session.close()


def _read_only() -> Any:
    x = np.ones(4)
    x.flags.writeable = False
    return x


_X = np.ones(1000, F32)
_I = np.ones(8, np.int32)
_BAD_CALLS: dict[str, tuple[Callable[[Session], Any], list[str]]] = {
    "list": (lambda s: s.allreduce([1.0]), ["x is a list", "NumPy array"]),
    "number": (lambda s: s.allreduce(1.0), ["x is a float", "np.array"]),
    "strided": (
        lambda s: s.allreduce(np.ones((4, 4))[:, 1]),
        ["not contiguous", "strides", "ascontiguousarray"],
    ),
    "fortran": (lambda s: s.allreduce(np.ones((4, 4), order="F")), ["not contiguous"]),
    "read-only": (lambda s: s.allreduce(_read_only()), ["read-only", "out="]),
    "read-only broadcast": (lambda s: s.broadcast(_read_only(), root=1), ["read-only"]),
    "objects": (lambda s: s.broadcast(np.array([{}])), ["Python objects", "accepted"]),
    "big-endian": (lambda s: s.allreduce(np.ones(4, ">f4")), ["byte order '>'", "newbyteorder"]),
    "bool sum": (lambda s: s.allreduce(np.ones(4, np.bool_)), ["type bool", "float32", "broadcast"]),
    "int16 sum": (lambda s: s.allreduce(np.ones(4, np.int16)), ["type int16", "int32"]),
    "complex": (lambda s: s.allreduce(np.ones(4, np.complex64)), ["type complex64"]),
    "op": (lambda s: s.allreduce(_X, op="xor"), ["op is 'xor'", "'sum', 'avg'"]),
    "product": (lambda s: s.allreduce(_X, op="prod"), ["op is 'prod'", "np.prod(session.allgather(x)"]),
    "max of complex": (lambda s: s.allreduce(np.ones(4, np.complex64), op="max"), ["complex64", "bool"]),
    "max with bits": (lambda s: s.allreduce(_X, op="max", bits=16), ["bits is 16", "op='max'"]),
    "min with bits": (lambda s: s.reduce(_X, op="min", bits=8), ["bits is 8", "op='min'"]),
    "max with blocks": (lambda s: s.allreduce(_X, op="max", blocks="dense"), ["blocks is 'dense'"]),
    "reduce to nobody": (lambda s: s.reduce(_X, root=2), ["root is 2", "0 to 1"]),
    "gather to nobody": (lambda s: s.gather(_X, root="0"), ["root is '0'"]),
    "scatter without out": (lambda s: s.scatter(root=1), ["out is None on rank 0", "rank 1"]),
    "scatter of too few": (lambda s: s.scatter(np.ones((3, 2))), ["(3, 2)", "each of 2 ranks"]),
    "all to all": (lambda s: s.all_to_all(np.ones(3)), ["(3,)", "divisible by 2"]),
    "send": (lambda s: s.send(_X, 1), ["send and recv do not exist", "pair.broadcast"]),
    "recv": (lambda s: s.recv(_X, source=1), ["session.group([a, b])"]),
    "or of floats": (lambda s: s.allreduce(_X, op="or"), ["float32", "integers of any width"]),
    "or with bits": (lambda s: s.allreduce(_I, op="or", bits=16), ["bits is 16", "only for sums"]),
    "or with a mask": (lambda s: s.allreduce(_I, op="or", blocks=np.ones(9, bool)), ["mask", "'sparse'"]),
    "avg of ints": (lambda s: s.allreduce(np.ones(4, np.int64), op="avg"), ["'avg' on int64", "divide"]),
    "bits": (lambda s: s.allreduce(_X, bits=4), ["bits is 4", "32, 16, 8"]),
    "bits of int32": (lambda s: s.allreduce(np.ones(4, np.int32), bits=16), ["bits is 16", "int32: 32"]),
    "bits of int64": (lambda s: s.allreduce(np.ones(4, np.int64), bits=32), ["bits is 32", "int64: 64"]),
    "64 bits": (lambda s: s.allreduce(_X, bits=64), ["bits is 64"]),
    "block": (lambda s: s.allreduce(_X, block_size=0), ["block_size is 0", "1 to 65536"]),
    "large block": (lambda s: s.allreduce(_X, block_size=65537), ["block_size is 65537"]),
    "blocks": (lambda s: s.allreduce(_X, blocks="none"), ["blocks is 'none'", "'auto', 'dense'"]),
    "short mask": (lambda s: s.allreduce(_X, blocks=np.ones(15, bool)), ["(15,)", "(16,)", "each 64"]),
    "mask of numbers": (lambda s: s.allreduce(_X, blocks=np.ones(16)), ["float64", "bool"]),
    "mask of 2 dimensions": (lambda s: s.allreduce(_X, blocks=np.ones((4, 4), bool)), ["(4, 4)", "(16,)"]),
    "out's type": (lambda s: s.allreduce(_X, out=np.ones(1000)), ["out is float64", "float32"]),
    "out's shape": (lambda s: s.allreduce(_X, out=np.ones(999, F32)), ["(999,)", "(1000,)"]),
    "overlapping out": (lambda s: s.allreduce(_Y[:-1], out=_Y[1:]), ["overlaps", "array of its own"]),
    "read-only out": (lambda s: s.allreduce(np.ones(4), out=_read_only()), ["out is read-only"]),
    "gather into too little": (
        lambda s: s.allgather(_X, out=np.ones((1, 1000), F32)),
        ["(1, 1000)", "(2, 1000)"],
    ),
    "gather over itself": (
        lambda s: s.allgather(_Y[500:], out=_Y.reshape(2, 500)),
        ["overlaps", "x = out[0] to work in place"],
    ),
    "scatter": (lambda s: s.reduce_scatter(np.ones((3, 2))), ["(3, 2)", "divisible by 2"]),
    "scatter of a number": (lambda s: s.reduce_scatter(np.array(1.0)), ["()", "divisible"]),
    "scatter over itself": (
        lambda s: s.reduce_scatter(_Y, out=_Y[1:501]),
        ["overlaps", "x[0:500], to work in place"],
    ),
    "root": (lambda s: s.broadcast(_X, root=2), ["root is 2", "0 to 1"]),
    "negative root": (lambda s: s.broadcast(_X, root=-1), ["root is -1"]),
    "group": (lambda s: s.group([0, 2]), ["[0, 2]", "0 to 1"]),
    "group twice": (lambda s: s.group([0, 0]), ["[0, 0]", "different ranks"]),
    "empty group": (lambda s: s.group([]), ["[]"]),
    "timeout": (lambda s: s.allreduce(_X, timeout=0), ["timeout is 0", "greater than 0"]),
    "nan timeout": (lambda s: s.barrier(timeout=float("nan")), ["timeout is nan"]),
}
_Y = np.ones(1000, F32)


@pytest.mark.parametrize("name", _BAD_CALLS)
def test_what_cannot_work_is_refused_before_anything_is_sent(pair: Session, name: str) -> None:
    call, said = _BAD_CALLS[name]
    with pytest.raises(UsageError) as caught:
        call(pair)
    assert isinstance(caught.value, ValueError)
    for words in said:
        assert words in str(caught.value)


def test_torch_tensors_that_cannot_be_used(pair: Session) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"x is on meta.*\.cpu\(\)"):
        pair.allreduce(torch.ones(4, device="meta"))
    with pytest.raises(UsageError, match=r"not contiguous.*\.contiguous\(\)"):
        pair.allreduce(torch.ones(4, 4).t())
    with pytest.raises(UsageError, match="to_dense"):
        pair.allreduce(torch.ones(4).to_sparse())
    with pytest.raises(UsageError, match=r"requires grad.*\.data or"):
        pair.allreduce(torch.ones(4, requires_grad=True))
    with pytest.raises(UsageError, match="complex64"):
        pair.allreduce(torch.ones(4, dtype=torch.complex64))


def test_8_bits_are_enough_for_32_workers_and_no_smaller_lane_is_offered(host: EmbeddedController) -> None:
    def call(session: Session) -> float:
        return float(session.allreduce(np.full(10, 2.0, F32), bits=8)[0])

    results = together(host.url, 32, call)
    assert len(set(results)) == 1
    assert abs(results[0] - 64) <= 32 * 4 / 3


# ---------------------------------------------------------------------- connecting


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SWITCHAGG_CONTROLLER", "SWITCHAGG_JOB", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


_U = "http://127.0.0.1:9"


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"controller": _U, "rank": 2, "world_size": 2}, ["rank is 2", "0 to 1"]),
        ({"controller": _U, "rank": -1, "world_size": 2}, ["rank is -1"]),
        ({"controller": _U, "rank": 0, "world_size": 257}, ["world_size is 257", "1 to 256"]),
        ({"controller": _U, "rank": 0, "world_size": 0}, ["world_size is 0"]),
        ({"controller": _U, "rank": 0.5, "world_size": 2}, ["rank is 0.5", "integer"]),
        ({"controller": _U, "world_size": 2}, ["rank is not given", "RANK is not set"]),
        ({"rank": 0, "world_size": 2}, ["no controller named", "SWITCHAGG_CONTROLLER", "switchagg run"]),
        ({"controller": "nonsense", "rank": 0, "world_size": 2}, ["'nonsense'", "http://"]),
        ({"controller": "ftp://x:1", "rank": 0, "world_size": 2}, ["'ftp://x:1'"]),
        ({"controller": "http://127.0.0.1:x", "rank": 0, "world_size": 2}, ["127.0.0.1:x"]),
        ({"controller": _U, "rank": 0, "world_size": 2, "timeout": 0}, ["timeout is 0"]),
        ({"controller": _U, "rank": 0, "world_size": 2, "address": "fe80::1"}, ["'fe80::1'", "link-local"]),
        ({"controller": _U, "rank": 0, "world_size": 2, "address": "192.0.2.1"}, ["192.0.2.1", "this host"]),
    ],
    ids=str,
)
def test_connect_with_what_cannot_work(arguments: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        worker_lib.connect(**arguments)
    for words in said:
        assert words in str(caught.value)


def test_variables_that_are_no_numbers(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="WORLD_SIZE is 'two'"):
        worker_lib.connect(rank=0)
    clean.setenv("WORLD_SIZE", "2")
    clean.setenv("RANK", "")
    with pytest.raises(UsageError, match="RANK is ''"):
        worker_lib.connect()


def test_everything_from_the_environment(host: EmbeddedController, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SWITCHAGG_CONTROLLER", host.url)
    clean.setenv("SWITCHAGG_JOB", job_name())
    clean.setenv("WORLD_SIZE", "2")
    outcomes = in_threads([lambda r=r: worker_lib.connect(rank=r) for r in range(2)])
    for rank, outcome in enumerate(outcomes):
        session = outcome.get()
        assert (session.rank, session.world_size) == (rank, 2)
        assert session.name == os.environ["SWITCHAGG_JOB"]
        session.close()


def test_a_rank_that_is_taken(host: EmbeddedController) -> None:
    name = job_name()

    def call(session: Session) -> None:
        if session.rank == 0:
            with pytest.raises(AdmissionError) as caught:
                worker_lib.connect(host.url, name, 0, 2, timeout=30)
            assert caught.value.code == "rank_taken"
            assert "rank 0" in str(caught.value)
        session.barrier()

    together(host.url, 2, call, job=name)


def test_ranks_that_do_not_come(host: EmbeddedController) -> None:
    with pytest.raises(AdmissionError, match=r"1, 2|rank 1.*2") as caught:
        worker_lib.connect(host.url, job_name(), 0, 3, join_timeout=0.3)
    assert caught.value.code == "join_timeout"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"words": 8}, "8"),
        ({"words": 20_000}, "20000|20,000"),
        ({"slots": 1 << 17}, "131072|131,072"),
        ({"slots": 100}, "100"),
        ({"words": 16_000, "slots": 65536}, "slots|memory|bytes"),
    ],
    ids=str,
)
def test_more_than_the_switch_has(host: EmbeddedController, settings: dict[str, int], said: str) -> None:
    for outcome in try_together(host.url, 2, lambda session: session.barrier(), timeout=30, **settings):
        with pytest.raises(SwitchAggError, match=said):
            outcome.get()
    together(host.url, 2, lambda session: session.barrier())


def test_a_full_switch() -> None:
    with EmbeddedController(capacity=1024, slots=1024) as host:

        def call(session: Session) -> None:
            outcomes = (
                try_together(host.url, 2, lambda s: s.barrier(), timeout=3) if session.rank == 0 else []
            )
            for outcome in outcomes:
                with pytest.raises(AdmissionError, match="slots") as caught:
                    outcome.get()
                assert caught.value.code == "no_slots"
            session.barrier()

        together(host.url, 2, call)
        together(host.url, 2, lambda session: session.barrier())


# ---------------------------------------------------------------------- a switch that is not there


def test_no_controller() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(SwitchError, match=rf"no controller at {url}.*refused.*switchagg run"):
        worker_lib.connect(url, "j", 0, 2, timeout=5)


def test_a_controller_that_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SwitchError, match=r"did not answer within 0.5"):
            worker_lib.connect(url, "j", 0, 2, timeout=0.5)


def test_a_host_name_that_does_not_resolve() -> None:
    with pytest.raises((NetworkError, SwitchError), match=r"host\.invalid"):
        worker_lib.connect("http://host.invalid:1", "j", 0, 2, timeout=2)


def _until_broken(session: Session, ready: Any, timeout: float) -> BaseException:
    """All-reduces until something goes wrong; returns the error."""
    x = np.ones(300_000, F32)
    session.allreduce(x)
    ready.append(session.rank)
    while True:
        try:
            session.allreduce(x, op="avg", timeout=timeout)
        except SwitchAggError as error:
            with pytest.raises(SessionBrokenError, match="broken"):
                session.allreduce(x)
            with pytest.raises(SessionBrokenError):
                session.barrier()
            assert "broken" in repr(session)
            return error


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_switch_that_dies_or_stops_in_the_middle(how: signal.Signals, both_transports: str) -> None:
    timeout, transport = 2.5, "udp" if both_transports == "udp" else "shm"
    with start_embedded() as embedded:
        ready: list[int] = []
        name = job_name()

        def rank(r: int) -> Any:
            session = worker_lib.connect(embedded.controller, name, r, 2, timeout=10, transport=transport)
            try:
                return _until_broken(session, ready, timeout)
            finally:
                session.close()

        def strike() -> None:
            while len(ready) < 2:
                time.sleep(0.01)
            os.kill(embedded.pid, how)

        try:
            first, second, struck = in_threads([lambda: rank(0), lambda: rank(1), strike])
        finally:
            os.kill(embedded.pid, signal.SIGKILL)
        struck.get()
        for outcome in (first, second):
            error = outcome.get()
            assert isinstance(error, SwitchError | CollectiveTimeout)
            assert isinstance(error, TimeoutError) or how == signal.SIGKILL
            assert "allreduce(float32, shape (300000,), avg, bounded)" in str(error)
            assert "refuses" in str(error) if how == signal.SIGKILL else "does not answer" in str(error)


def test_ranks_that_share_slots_need_no_switch_until_one_is_missing() -> None:
    """They add up by themselves; but a rank that is late cannot be told from one that is lost."""
    name, killed = job_name(), threading.Event()

    def rank(r: int) -> Any:
        with worker_lib.connect(embedded.controller, name, r, 2, timeout=10, transport="slots") as session:
            session.allreduce(np.ones(300_000, F32))
            if r == 0:
                os.kill(embedded.pid, signal.SIGKILL)
                killed.set()
            assert killed.wait(60)
            for call in range(20):
                total = session.allreduce(np.full(300_000, call, F32))
                assert (total == 2 * call).all()
            if r == 0:
                with pytest.raises(SwitchError, match="refuses packets"):
                    session.allreduce(np.ones(300_000, F32))
        return True

    with start_embedded() as embedded:
        assert all(outcome.get() for outcome in in_threads([lambda: rank(0), lambda: rank(1)]))


def test_a_switch_that_never_answers(host: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller admits the ranks, and names a switch that is silent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setattr(host.driver, "address", silent.getsockname())
        monkeypatch.setattr(type(host.driver), "link", property(lambda _: ""))

        def call(session: Session) -> None:
            with pytest.raises(CollectiveTimeout) as caught:
                session.allreduce(np.ones(10, F32), timeout=0.4)
            for words in (
                "allreduce(float32, shape (10,)",
                "0.4 s",
                "nothing has ever come",
                "sent again",
                "firewall",
            ):
                assert words in str(caught.value)

        together(host.url, 2, call)
        assert silent.recv(100)


def name_ended_switch(host: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the controller admits ranks to a switch whose port refuses packets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ended:
        ended.bind(("127.0.0.1", 0))
        monkeypatch.setattr(host.driver, "address", ended.getsockname())
    monkeypatch.setattr(type(host.driver), "link", property(lambda _: ""))


def test_a_switch_that_is_gone_is_not_waited_for(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller lives: it was another process, and is killed."""
    name_ended_switch(host, monkeypatch)

    def call(session: Session) -> None:
        with pytest.raises(SwitchError, match="is gone: its port refuses packets; allreduce"):
            session.allreduce(np.ones(10, F32), timeout=600)
        with pytest.raises(SessionBrokenError):
            session.barrier()

    together(host.url, 2, call)


def test_a_rank_that_leaves_because_the_switch_is_gone_does_not_hide_it(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the first to notice, and the others hear of that before they notice themselves."""
    name_ended_switch(host, monkeypatch)
    monkeypatch.setattr("worker_lib.work._REFUSALS", 10**9)

    def call(session: Session) -> None:
        if session.rank == 0:
            work = session.allreduce_async(np.ones(10, F32))
            engine = session._state.engine
            assert engine is not None
            eventually(lambda: engine.begun == 1)
            session.close()
            with pytest.raises(SessionBrokenError):
                work.wait()
            return
        with pytest.raises(SwitchError, match="is gone: its port refuses packets; allreduce"):
            session.allreduce(np.ones(10, F32), timeout=600)

    together(host.url, 2, call)


def test_a_rank_that_is_late_is_waited_for_until_the_timeout(host: EmbeddedController) -> None:
    over = threading.Event()

    def call(session: Session) -> None:
        if session.rank == 0:
            time.sleep(1.5)  # longer than it takes to ask the controller
        session.barrier()
        if session.rank == 0:
            assert over.wait(60)
            return
        before = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=r"the switch waits for rank 0, late or unable to reach"):
            session.barrier(timeout=0.3)
        assert time.monotonic() - before >= 0.3
        with pytest.raises(SessionBrokenError, match="timed out"):
            session.barrier()
        over.set()

    together(host.url, 2, call)


def test_the_late_of_many_are_named(host: EmbeddedController) -> None:
    over = threading.Barrier(4)

    def call(session: Session) -> None:
        for _ in range(3):
            session.allreduce(np.ones(300_000, F32))
        if session.rank % 2 == 0:
            works = [session.allreduce_async(np.ones(300_000, F32), timeout=2) for _ in range(3)]
            # Whoever is second may hear of the first before its own time is up.
            with pytest.raises(
                (CollectiveTimeout, WorkerLostError), match=r"the switch waits for ranks 1, 3, late"
            ):
                works[-1].wait()
        over.wait(60)

    together(host.url, 4, call)


def test_a_time_out_reaches_the_other_ranks_at_once_with_its_cause(host: EmbeddedController) -> None:
    over = threading.Event()

    def call(session: Session) -> None:
        session.barrier()
        before = time.monotonic()
        if session.rank == 0:
            with pytest.raises(CollectiveTimeout):
                session.barrier(timeout=2)
            return
        if session.rank == 1:
            assert over.wait(60)
            session.barrier(timeout=60)  # the switch has the others' packets of this one
        why = r"^rank 0 has failed: it ended with CollectiveTimeout: barrier\(\) was not done within 2 s"
        with pytest.raises(WorkerLostError, match=rf"{why}.* the switch waits for rank 1, late"):
            session.barrier(timeout=60)
        over.set()
        assert time.monotonic() - before < 30

    together(host.url, 3, call)


def test_a_time_out_that_nobody_waits_for_reaches_the_others(host: EmbeddedController) -> None:
    over = threading.Event()

    def call(session: Session) -> None:
        session.barrier()
        if session.rank == 1:
            assert over.wait(60)
            with pytest.raises(
                WorkerLostError, match=r"^rank 0 has failed: .*broadcast\(float32, shape \(10,\)\)"
            ):
                session.broadcast(np.empty(10, F32), timeout=60)
            return
        session.broadcast(np.ones(10, F32), timeout=0.5, async_op=True)
        eventually(lambda: session.recent()[-1].status == "timed out")
        with pytest.raises(SessionBrokenError, match=r"broadcast\(float32, shape \(10,\)\) timed out"):
            session.barrier()
        over.set()

    together(host.url, 2, call)


def test_each_rank_has_a_record_of_its_last_collectives(host: EmbeddedController) -> None:
    done = threading.Barrier(2)

    def call(session: Session) -> None:
        assert session.recent() == []
        before = time.time()
        for _ in range(40):
            session.barrier()
        session.allreduce(np.ones((3, 4), F32), bits=16)
        records = session.recent()
        assert len(records) == 32, "the oldest are forgotten"
        assert [record.number for record in records] == list(range(9, 41))
        last = records[-1]
        assert (last.call, last.status) == ("allreduce(float32, shape (3, 4), sum, 16 bits)", "done")
        assert last.results == last.packets > 0
        assert before - 1 <= last.called <= time.time() + 1
        assert 0 < last.seconds < 60
        if session.rank == 0:
            with pytest.raises(CollectiveTimeout) as caught:
                session.broadcast(np.ones(10, np.int64), timeout=0.3)
            last = session.recent()[-1]
            assert (last.number, last.status, last.results) == (41, "timed out", 0)
            assert last.seconds >= 0.3
            notes = caught.value.__notes__[0].splitlines()
            assert notes[0] == "Last collectives of rank 0:"
            assert notes[1:4] == [f"  {record}" for record in records[-3:]]
            assert re.fullmatch(
                r"  #41 broadcast\(int64, shape \(10,\)\): timed out after \S+ s with 0 of 1 results",
                notes[4],
            )
        done.wait(60)

    together(host.url, 2, call)


def test_a_rank_that_others_wait_for_is_named_in_the_log(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = threading.Barrier(2, lambda: monkeypatch.setattr("worker_lib.work._SLOW", 0.1))

    def call(session: Session) -> None:
        session.barrier()
        both.wait(60)
        if session.rank == 1:
            eventually(lambda: caplog.messages)
        session.barrier()

    together(host.url, 2, call)
    assert caplog.messages[0] == "switchagg: barrier() has waited 0.1 s on rank 0 of 2 for rank 1"


def test_wait_has_a_timeout_of_its_own(host: EmbeddedController) -> None:
    over = threading.Event()

    def call(session: Session) -> None:
        if session.rank == 0:
            assert over.wait(60)
            return
        works = [session.allreduce_async(np.ones(10, F32)) for _ in range(2)]
        with pytest.raises(CollectiveTimeout, match=r"0\.2 s"):
            works[1].wait(timeout=0.2)
        for work in works:
            with pytest.raises(SessionBrokenError):
                work.wait()
        over.set()

    together(host.url, 2, call)
