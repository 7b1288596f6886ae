"""The membership monitor, with an engine, heartbeats and a controller that a test plays."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest

from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy
from switchagg.runtime import SYSTEM
from tests.waiting import eventually
from worker_lib import monitor as module
from worker_lib.monitor import MembershipMonitor


class Engine:
    """Has a packet whose RESULT was wrong twice, in a collective that `lacks`, or in a later one."""

    def __init__(self, *, lacks: bool) -> None:
        self.lacks, self.broken, self.halted, self.replaying = lacks, False, False, False
        self.damage: int | None = 7
        self.completed = 2

    @property
    def unhealed(self) -> int | None:
        return self.damage

    def dealt(self, packet_number: int) -> tuple[int, int]:
        return 0, packet_number

    def freeze(self) -> int:
        return self.completed

    def finish(self, _complete_to: int, _slice_ns: int) -> bool:
        SYSTEM.sleep(0.001)
        return not self.lacks

    def suspend(self) -> list[int]:
        return [7]

    def abort(self) -> None:
        self.broken = True

    def stats(self) -> dict[str, int]:
        return {"refused": 0}

    def set_pause_eventfd(self, descriptor: int) -> None:
        self.descriptor = descriptor


class Member:
    """One of three ranks of a job that shrinks. Its controller lets nobody go over before a change."""

    on_loss, name, job, rank, places = "shrink", "j", 5, 0, (0, 1, 2)
    policy, heartbeats, standby = SkipPolicy().word(), None, True
    base, first_seq, slots, switch_address, switch_port = 16, 3, 8, "127.0.0.1", 9

    @property
    def parts(self) -> tuple[Member]:
        return (self,)

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.calls: queue.SimpleQueue[str] = queue.SimpleQueue()

    def next_event(self) -> dict[str, Any] | None:
        return self.events.get()

    def progress(self, completed: int, replaying: bool, _timeout: float) -> int:
        self.calls.put("progress of what is replayed" if replaying else "progress")
        self.completed = completed
        return completed + 1

    def replay(self, *_: object, **__: object) -> None:
        self.calls.put("replay")
        raise AdmissionError("job 'j' cannot leave switch 's' yet", "switch")

    def proceed(self, *_: object) -> None:
        self.calls.put("proceed")
        raise AdmissionError("the end of this test", "failed")

    def leave(self, *_: object) -> None:
        self.events.put(None)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[MembershipMonitor] = []
    beats = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(module._native, "HeartbeatSender", lambda _engine: beats)

    def make(engine: Engine, played: Member | None = None) -> tuple[MembershipMonitor, Member]:
        member: Any = played or Member()
        native: Any = engine
        monitor = MembershipMonitor(
            native, member, transport="udp", used="udp", address="127.0.0.1", runtime=SYSTEM
        )
        made.append(monitor)
        return monitor, member

    yield make
    for monitor in made:
        monitor.leave(0, 0, None)


@pytest.mark.parametrize("lacks", [True, False], ids=["that is needed", "of a later collective"])
def test_a_damaged_result_does_not_hold_up_the_loss_of_a_rank(played: Any, lacks: bool) -> None:
    """The controller lets nobody go over before the change, so the monitor must not ask for that first."""
    monitor, member = played(Engine(lacks=lacks))
    member.events.put({"event": "lost", "ranks": [2], "why": "its process ended", "job": 5})
    eventually(lambda: monitor.over is not None)
    assert monitor.over.damaged is lacks
    if lacks:
        assert "packet number 7, in slot 18 of the switch at 127.0.0.1:9, is not the sum" in monitor.over.text
        assert "a lost rank cannot send again what it had sent" in monitor.over.text
    calls = [member.calls.get() for _ in range(member.calls.qsize())]
    assert calls == (["progress"] if lacks else ["progress", "proceed"])


def test_a_damaged_result_that_a_pause_needs_is_sent_again(played: Any) -> None:
    engine = Engine(lacks=True)
    engine.damage, engine.halted = None, True
    monitor, member = played(engine)
    monitor._wake()
    assert member.calls.get(timeout=60) == "progress"
    engine.damage = 7
    assert member.calls.get(timeout=60) == "replay"


@pytest.mark.parametrize("lost", [True, False], ids=["a lost rank's", "late"])
def test_a_change_waits_for_what_is_sent_again_to_another_switch(
    played: Any, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(module, "_REPLAYS", 0.2 if lost else 60.0)
    engine = Engine(lacks=False)
    engine.damage, engine.replaying = None, True
    monitor, member = played(engine)
    member.events.put({"event": "lost", "ranks": [2], "why": "its process ended", "job": 5})
    if not lost:
        SYSTEM.sleep(0.3)
        assert member.calls.empty()
        engine.completed, engine.replaying = 3, False  # it lacked that
    assert member.calls.get(timeout=60) == ("progress of what is replayed" if lost else "progress")
    assert member.completed == (2 if lost else 3)
    eventually(lambda: monitor.over is not None)


@pytest.mark.parametrize("replaying", [True, False])
def test_a_rank_that_leaves_vouches_only_for_what_the_switch_has(played: Any, replaying: bool) -> None:
    engine = Engine(lacks=False)
    engine.damage, engine.replaying = None, replaying
    monitor, member = played(engine)
    said: list[object] = []
    member.leave = lambda *given: (said.extend(given), member.events.put(None))
    monitor.leave(3, 2, None)
    assert said == [3, None if replaying else 2, None]


class LateLoss(Member):
    """Rank 1 is lost while the change for the loss of rank 2 is under way; both are back afterwards."""

    lost = ((1, "its process ended"), (2, "its process ended"))

    def progress(self, completed: int, _replaying: bool, _timeout: float) -> int:
        self.calls.put(f"progress {self.job}")
        self.events.put({"event": "lost", "ranks": [1], "why": "its process ended", "job": 5})
        return completed

    def proceed(self, *_: object) -> None:
        new: Any = copy(self)
        new.job = 6
        return new


def test_a_loss_in_the_middle_of_a_change_is_no_other_change(
    played: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would take part in another one, and all would wait for this rank."""
    engine, resumed = Engine(lacks=True), threading.Event()
    engine.damage = None
    monkeypatch.setattr(module, "start_engine", lambda *_: (resumed.set(), "udp"))
    monitor, member = played(engine, LateLoss())
    member.events.put({"event": "lost", "ranks": [2], "why": "its process ended", "job": 5})
    eventually(lambda: monitor._machine._lost.keys() == {1, 2})
    engine.lacks = False
    assert resumed.wait(60)
    SYSTEM.sleep(0.5)  # in which another change would begin
    assert [member.calls.get() for _ in range(member.calls.qsize())] == ["progress 5"]
    assert monitor.losses[0].ranks == (1, 2)
