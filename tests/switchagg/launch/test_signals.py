"""Stop signals as a file descriptor."""

from __future__ import annotations

import os
import signal

import pytest

from switchagg.launch.signals import stop_signals


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
