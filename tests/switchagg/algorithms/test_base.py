"""The log: what it counts, what it leaves out, when it ends a run; and how arguments are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.algorithms.base import (
    Log,
    checked_at_least,
    checked_share,
    checked_start,
    checked_step,
    wire_bytes,
)
from switchagg.algorithms.problems import RidgeRegression
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator import rates
from switchagg.errors import UsageError
from tests.worker_lib.harness import together
from worker_lib import Session


class Counters:
    """A session's counters, as a test sets them."""

    def __init__(self) -> None:
        self.now = dict.fromkeys(
            (
                "bytes_sent",
                "bytes_received",
                "packets_sent",
                "packets_received",
                "packets_data",
                "packets_skip",
            ),
            0,
        )

    def stats(self) -> dict[str, Any]:
        return dict(self.now)


def test_what_is_recorded_and_what_is_left_out() -> None:
    time = [100.0]
    session = Counters()
    session.now["packets_sent"] = 7  # before the run

    def slow(x: np.ndarray[Any, Any]) -> float:
        time[0] += 50  # measuring takes long, and does not count
        return float(x.sum())

    log = Log(every=2, optimum=np.zeros(2), objective=slow, clock=lambda: time[0])
    log.begin(np.array([3.0, 4.0]), session)
    for step in range(1, 6):
        time[0] += 1
        session.now["packets_sent"] += 2
        session.now["packets_skip"] += 1
        session.now["packets_data"] += 1
        session.now["bytes_sent"] += 16 + 80
        session.now["packets_received"] += 2
        session.now["bytes_received"] += 160
        log.payload(64)
        assert not log.step(step, np.array([3.0, 4.0]) / (step + 1), last=step == 5)
    assert [r.step for r in log.records] == [0, 2, 4, 5]
    assert [r.distance for r in log.records] == pytest.approx([5, 5 / 3, 1, 5 / 6])
    assert [r.loss for r in log.records] == pytest.approx([7, 7 / 3, 7 / 5, 7 / 6])
    assert [r.payload_bits for r in log.records] == [0, 128, 256, 320]
    assert [r.packets for r in log.records] == [0, 4, 8, 10]
    assert [r.seconds for r in log.records] == [0, 2, 4, 5]
    # 28 bytes of IP and UDP, 38 of Ethernet, and 2 of padding behind a bare header
    assert log.records[1].wire_bytes_sent == 2 * (96 + 2 * 66 + 2)
    assert log.records[1].wire_bytes == 2 * (96 + 2 * 66 + 2 + 160 + 2 * 66)
    assert log.first(distance=1.5) == log.records[2]
    assert log.first(loss=2.5) == log.records[1]
    assert log.first(distance=0.1) is None
    assert Log.from_json(log.to_json()).records == log.records


def test_a_target_ends_the_run_between_two_records() -> None:
    log = Log(every=100, optimum=np.zeros(1), target=0.5)
    log.begin(np.ones(1))
    assert not log.step(1, np.array([0.6]))
    assert log.step(2, np.array([0.5]))
    assert log.reached
    assert [r.step for r in log.records] == [0, 2]


def test_bytes_are_counted_as_the_emulators_links_count_them() -> None:
    for payload, skips in ((16, 1), (16 + 64, 0), (16 + 4 * 352, 0)):
        one = {"bytes_sent": payload, "bytes_received": 80, "packets_sent": 1, "packets_received": 1}
        assert wire_bytes({**one, "packets_skip": skips}) == (rates.wire_bytes(payload), rates.wire_bytes(80))


def test_bytes_on_the_wire_are_those_of_the_packets(host: EmbeddedController) -> None:
    def call(session: Session) -> tuple[dict[str, Any], int]:
        log = Log()
        session.allreduce(np.ones(7, np.float32))  # not the log's
        log.begin(np.zeros(1), session)
        before = session.stats()
        session.allreduce(np.ones(1000, np.float32))
        log.step(1, np.zeros(1))
        after = session.stats()
        sent, received = (a - b for a, b in zip(wire_bytes(after), wire_bytes(before), strict=True))
        assert log.records[-1].wire_bytes == sent + received
        names = ("packets_data", "packets_skip")
        assert log.records[-1].packets == sum(after[name] - before[name] for name in names)
        return after, sent

    for _, sent in together(host.url, 2, call, words=16):
        assert sent >= 63 * (64 + 16 + 28 + 38)  # 1,000 words in packets of 16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Log(every=0), "every is 0; accepted: a whole number, 1 and up"),
        (lambda: Log(target=1.0), "target is 1.0 without an optimum"),
        (lambda: checked_share("tau", 0.0), "tau is 0.0; accepted: greater than 0, at most 1"),
        (lambda: checked_share("tau", 1.5), "tau is 1.5"),
        (lambda: checked_share("tau", float("nan")), "tau is nan"),
        (
            lambda: checked_step("alpha", 0.6, 0.5, "1 / (1 + w)", 0.5),
            r"alpha is 0.6; .* at most 0.5 \(1 / ",
        ),
        (lambda: checked_at_least("steps", True, 0), "steps is True"),
        (lambda: checked_start(RidgeRegression(np.eye(2), np.ones(2)), [1.0]), r"x0 has shape \(1,\)"),
        (lambda: checked_start(RidgeRegression(np.eye(2), np.ones(2)), [1, np.nan]), "x0 holds NaN"),
    ],
)
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_a_step_at_its_bound_is_accepted() -> None:
    assert checked_step("alpha", 0.1 + 0.2, 0.3, "", 0.3) == 0.1 + 0.2
    assert checked_step("alpha", None, 0.3, "", 0.2) == 0.2
    assert checked_share("tau", 1) == 1
