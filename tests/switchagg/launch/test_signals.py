"""Stop signals as a file descriptor."""

from __future__ import annotations

import os
import signal
import time

import pytest

from switchagg.launch.signals import stop_signals, stop_signals_exit


def test_a_signal_can_be_read() -> None:
    with stop_signals([signal.SIGUSR1]) as reader:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert os.read(reader, 10) == bytes([signal.SIGUSR1])
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_no_descriptor_is_left_after_an_error() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="in the body"), stop_signals():
            raise RuntimeError("in the body")
    assert len(os.listdir("/proc/self/fd")) == len(before)


class _Falls:
    """Gets a signal where Python ignores exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exit_that_was_ignored_is_raised_again() -> None:
    cleaned = []

    def work() -> None:
        with stop_signals_exit():
            _Falls()
            try:
                time.sleep(60)
            finally:
                time.sleep(1.5)  # the signal comes again meanwhile
                cleaned.append(True)

    with pytest.raises(SystemExit) as caught:
        work()
    assert (caught.value.code, cleaned) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_a_signal_nothing_is_raised() -> None:
    with stop_signals_exit():
        pass
