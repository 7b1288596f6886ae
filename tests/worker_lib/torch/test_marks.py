"""The marks of operations through gloo, where the operations themselves are the tests' own."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta

import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.worker_lib.harness import together
from worker_lib.torch import gloo


class _Ended:
    """The Work of an operation that has ended."""

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> None:
        pass


def test_a_rank_puts_its_marks_before_it_leaves() -> None:
    def rank(session: worker_lib.Session) -> None:
        calls = gloo.GlooCalls(session)
        part = calls.start("a gather", None, _Ended, of_all=session.rank == 0)
        if session.rank == 0:
            part.wait()
        calls.close()

    with EmbeddedController() as host:
        for _ in range(5):  # the thread that puts marks by itself may be as fast as the end
            together(host.url, 2, rank)


def test_the_first_mismatch_is_why_a_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 hears of it and leaves, so that the mark of the operation after it is not met either."""
    monkeypatch.setattr(gloo, "_REASON", 60.0)
    ended = threading.Event()

    class Cut(_Ended):
        def wait(self, timeout: timedelta | None = None) -> None:
            if timeout is None:
                ended.set()
            raise RuntimeError("Connection closed by peer")

    def rank(session: worker_lib.Session) -> None:
        calls = gloo.GlooCalls(session)
        if session.rank == 0:
            assert ended.wait(60)
            with pytest.raises(worker_lib.MismatchError, match="rank 0 called a product"):
                calls.start("a product", None, _Ended).wait()
            return
        calls.start("a sum", None, _Ended)
        with pytest.raises(worker_lib.MismatchError, match="rank 1 called a sum"):
            calls.start("a gather", None, Cut).wait()

    with EmbeddedController() as host:
        together(host.url, 2, rank)


@pytest.mark.parametrize("ended", [True, False])
def test_a_mark_that_another_thread_reads_meanwhile_is_why_a_connection_has_ended(ended: bool) -> None:
    def rank(session: worker_lib.Session) -> None:
        calls = gloo.GlooCalls(session)
        parts: list[gloo.GlooPart] = []

        class Cut(_Ended):
            def is_completed(self) -> bool:
                return ended

            def wait(self, *_: timedelta) -> None:
                parts[0].put(60.0)
                mark = parts[0]._mark
                assert mark is None or mark._drive(60.0)
                with contextlib.suppress(worker_lib.MismatchError):
                    calls.read()  # as the next operation does when it starts
                raise RuntimeError("Connection closed by peer")

        parts.append(calls.start("a gather" if session.rank else "a product", None, Cut))
        with pytest.raises(worker_lib.MismatchError, match=f"rank {session.rank} called a"):
            parts[0].wait(gloo._LOOK / 2)

    with EmbeddedController() as host:
        together(host.url, 2, rank)
