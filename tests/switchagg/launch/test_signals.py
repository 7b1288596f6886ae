"""Stop signals as a file descriptor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
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

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_an_exit_that_was_ignored_is_raised_again(number: signal.Signals, error: type[BaseException]) -> None:
    cleaned = []

    def work() -> None:
        with stop_signals_exit():
            for _ in range(3):  # and again
                with contextlib.suppress(error):
                    _Falls(number)
                    time.sleep(60)
            _Falls(number)
            try:
                time.sleep(60)
            finally:
                time.sleep(0.5)
                cleaned.append(True)

    before = signal.getsignal(number)
    with pytest.raises(error) as caught:
        work()
    assert cleaned == [True]
    assert not isinstance(caught.value, SystemExit) or caught.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_other_errors_that_python_ignores_are_reported() -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("in a finalizer")

    seen = []
    before, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        with stop_signals_exit():
            Fails()
    finally:
        sys.unraisablehook = before
    assert [str(what.exc_value) for what in seen] == ["in a finalizer"]


def test_without_a_signal_nothing_is_raised() -> None:
    with stop_signals_exit():
        pass
