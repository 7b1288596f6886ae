"""A path that loses large packets without a word: a kernel's filter on real sockets of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import worker_lib
from switchagg.chaos.kernel import SocketFilter, lose_longer
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import CollectiveTimeout, SwitchAggError
from tests.switchagg.cli.test_host_and_listings import hosting

LARGEST = 1472  # bytes of a datagram on Ethernet


@pytest.fixture
def host() -> Iterator[EmbeddedController]:
    with EmbeddedController() as made:
        yield made


def errors_of(
    url: str,
    payload: int,
    calls: Callable[[int], bool] = lambda _rank: True,
    words: int | None = None,
    before: int = 0,
    pid: int | None = None,
) -> list[SwitchAggError | None]:
    """Two ranks join and add `before` times, large packets begin to vanish, and ranks that `calls` add.

    `payload`: bytes of the largest that do not vanish.
    `pid`: of the process that does not get these packets; by default this one, so that nobody gets them.
    """
    all_joined, cut, ended = threading.Barrier(3), threading.Event(), threading.Event()

    def rank(number: int) -> SwitchAggError | None:
        try:
            with worker_lib.connect(
                url, "a", number, 2, transport="udp", timeout=60.0, join_timeout=60.0, words=words
            ) as session:
                for _ in range(before):
                    session.allreduce(np.ones(100_000, np.int32))
                all_joined.wait(120)
                cut.wait(120)
                if calls(number):
                    session.allreduce_async(np.ones(1000, np.int32)).wait(2.0)
                else:
                    ended.wait(60)
        except SwitchAggError as error:
            return error
        finally:
            ended.set()
        return None

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(rank, number) for number in range(2)]
        all_joined.wait(120)
        try:
            path = SocketFilter(pid or os.getpid(), lose_longer(payload))
        except OSError as error:
            cut.set()
            pytest.skip(f"no filter on sockets here: {error}")
        try:
            cut.set()
            return [each.result() for each in ranks]
        finally:
            path.remove()


def has_named(attempt: Callable[[], list[SwitchAggError | None]], *texts: str) -> None:
    """Fails if no attempt ends with a time-out whose error has these texts.

    Small packets have half a second to be answered, which a busy machine may take.
    """
    for _ in range(5):
        errors = attempt()
        timeouts = [str(error) for error in errors if isinstance(error, CollectiveTimeout)]
        assert timeouts, errors
        if all(text in timeout for timeout in timeouts for text in texts):
            return
    raise AssertionError(timeouts)


def test_a_path_whose_mtu_is_too_small_is_named_with_the_words_that_fit(host: EmbeddedController) -> None:
    has_named(
        lambda: errors_of(host.url, LARGEST),
        "UDP packets of 8,144 bytes get no answer, but one of 16 does",
        "the path's MTU is smaller than words=2032 needs (connect(words=364) fits 1,500 bytes)",
    )
    assert errors_of(host.url, LARGEST, words=364) == [None, None]


def test_a_path_that_loses_everything_is_not_taken_for_one_of_a_small_mtu(host: EmbeddedController) -> None:
    errors = errors_of(host.url, 1)
    timeouts = [str(error) for error in errors if isinstance(error, CollectiveTimeout)]
    assert timeouts, errors
    for text in timeouts:
        assert "nothing has ever come from the switch" in text
        assert "MTU" not in text


def test_a_rank_that_is_late_is_not_taken_for_a_small_mtu(host: EmbeddedController) -> None:
    error = errors_of(host.url, 65507, calls=lambda rank: rank == 0)[0]
    assert isinstance(error, CollectiveTimeout)
    assert "the switch waits for rank 1" in str(error)
    assert "MTU" not in str(error)


@pytest.mark.parametrize("both_ways", [False, True], ids=["to the switch", "both ways"])
def test_a_path_whose_mtu_shrinks_later_is_named(both_ways: bool) -> None:
    texts = (
        (
            "nothing comes from the switch any more: has",
            "the path's MTU become smaller than words=2032 needs?",
        )
        if both_ways
        else (
            "UDP packets of 8,144 bytes get no answer, but one of 16 does",
            "the path's MTU is smaller than words=2032 needs",
        )
    )
    with hosting() as (running, said):
        pid = None if both_ways else running.process.pid
        has_named(lambda: errors_of(said["controller"], LARGEST, before=2, pid=pid), *texts)
