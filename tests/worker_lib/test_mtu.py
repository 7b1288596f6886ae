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

LARGEST = 1472  # bytes of a datagram on Ethernet


@pytest.fixture
def host() -> Iterator[EmbeddedController]:
    with EmbeddedController() as made:
        yield made


def errors_of(
    host: EmbeddedController,
    payload: int,
    calls: Callable[[int], bool] = lambda _rank: True,
    words: int | None = None,
) -> list[SwitchAggError | None]:
    """Two ranks join, packets of more than `payload` bytes begin to vanish, and ranks that `calls` add."""
    all_joined, cut = threading.Barrier(3), threading.Event()

    def rank(number: int) -> SwitchAggError | None:
        try:
            with worker_lib.connect(
                host.url, "a", number, 2, transport="udp", timeout=2.0, join_timeout=30.0, words=words
            ) as session:
                all_joined.wait(60)
                cut.wait(60)
                if calls(number):
                    session.allreduce(np.ones(1000, np.int32))
                else:
                    threading.Event().wait(5.0)
        except SwitchAggError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(rank, number) for number in range(2)]
        all_joined.wait(60)
        try:
            path = SocketFilter(os.getpid(), lose_longer(payload))
        except OSError as error:
            cut.set()
            pytest.skip(f"no filter on sockets here: {error}")
        try:
            cut.set()
            return [each.result() for each in ranks]
        finally:
            path.remove()


def test_a_path_whose_mtu_is_too_small_is_named_with_the_words_that_fit(host: EmbeddedController) -> None:
    errors = errors_of(host, LARGEST)
    timeouts = [str(error) for error in errors if isinstance(error, CollectiveTimeout)]
    assert timeouts, errors
    for text in timeouts:
        assert "UDP packets of 8,144 bytes get no answer, but one of 16 does" in text
        assert "the path's MTU is smaller than words=2032 needs (connect(words=364) fits 1,500 bytes)" in text
    assert errors_of(host, LARGEST, words=364) == [None, None]


def test_a_path_that_loses_everything_is_not_taken_for_one_of_a_small_mtu(host: EmbeddedController) -> None:
    errors = errors_of(host, 1)
    timeouts = [str(error) for error in errors if isinstance(error, CollectiveTimeout)]
    assert timeouts, errors
    for text in timeouts:
        assert "nothing has ever come from the switch" in text
        assert "MTU" not in text


def test_a_rank_that_is_late_is_not_taken_for_a_small_mtu(host: EmbeddedController) -> None:
    error = errors_of(host, 65507, calls=lambda rank: rank == 0)[0]
    assert isinstance(error, CollectiveTimeout)
    assert "the switch waits for rank 1" in str(error)
    assert "MTU" not in str(error)
