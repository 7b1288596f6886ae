from __future__ import annotations

from typing import Any

import pytest

from switchagg.errors import SwitchError, UsageError, WorkerLostError
from worker_lib.membership import (
    Change,
    End,
    FailFrom,
    Generation,
    MembershipStateMachine,
    RequestPause,
    SetPolicy,
    checked_deadline,
    checked_on_loss,
    failure,
)


def machine(
    on_loss: str = "fail", rank: int = 0, places: tuple[int, ...] = (0, 1, 2, 3)
) -> MembershipStateMachine:
    return MembershipStateMachine("j", Generation(1, rank, places), on_loss)  # type: ignore[arg-type]


def lost(*places: int, why: str = "its process ended") -> dict[str, Any]:
    return {"event": "lost", "ranks": list(places), "why": why}


def test_a_lost_rank_ends_the_session() -> None:
    action = machine().event(lost(2))
    assert isinstance(action, End)
    error = action.cause.error("allreduce(x)")
    assert isinstance(error, WorkerLostError)
    assert error.ranks == (2,)
    assert str(error) == (
        "rank 2 was lost: its process ended; allreduce(x) was interrupted. "
        "The session is broken: connect again."
    )


def test_with_shrink_it_begins_a_change_and_the_others_are_told_at_its_end() -> None:
    r = machine("shrink", rank=2)
    assert r.event(lost(1)) == Change()
    assert r.event(lost(3, why="silent for 2 s")) == Change()
    assert r.event(lost(1)) is None
    loss = r.changed(Generation(2, 1, (0, 2)), ((1, "its process ended"), (3, "silent for 2 s")))
    assert loss is not None
    assert (loss.ranks, loss.world_size) == ((1, 3), 2)
    text = str(loss.error("barrier()"))
    assert "rank 1 was lost: its process ended; rank 3 was lost: silent for 2 s" in text
    assert "goes on with 2 ranks" in text


def test_events_of_members_long_gone_are_nothing() -> None:
    r = machine("shrink")
    r.changed(Generation(2, 0, (0, 2, 3)), [(1, "")])
    assert r.event(lost(1)) is None
    assert r.event({"event": "left", "ranks": [1], "begun": [3]}) is None
    action = r.event(lost(2))
    assert action == Change()
    loss = r.changed(Generation(3, 0, (0, 3)), [(2, "")])
    assert loss is not None
    assert loss.ranks == (1,)  # its number when it went
    assert "rank 1 (joined as rank 2) was lost" in loss.text


def test_a_loss_that_the_controller_tells_by_the_admission_only() -> None:
    r = machine("shrink")
    loss = r.changed(Generation(2, 0, (0, 1, 3)), [(2, "silent for 2 s")])
    assert loss is not None
    assert loss.text == "rank 2 was lost: silent for 2 s"
    assert r.event(lost(2)) is None  # and then comes by the stream too


def test_a_rank_that_was_lost_and_came_back_within_one_change() -> None:
    r = machine("shrink")
    loss = r.changed(Generation(2, 0, (0, 1, 2, 3)), [(2, "its process ended")])
    assert loss is not None
    assert loss.ranks == (2,)
    assert loss.world_size == 4
    assert r.event({**lost(2), "job": 1}) is None  # of its former life
    assert r.event({**lost(2), "job": 2}) == Change()


def test_events_of_the_generation_to_come_are_kept_for_it() -> None:
    r = machine("shrink")
    pause = {"event": "pause", "job": 2, "why": "rank 2 is back"}
    assert r.event({**lost(3), "job": 2}) is None
    assert r.event(pause) is None
    r.changed(Generation(2, 0, (0, 1, 3)), [(2, "")])
    first, second = r.early()
    assert r.event(first) == Change()
    assert r.event(second) == RequestPause()
    assert r.early() == []
    assert r.event({**pause, "job": 1}) is None
    assert isinstance(r.event({**lost(0), "job": 1}), End)  # oneself, in whichever generation
    assert isinstance(r.event({"event": "evicted", "job": 7, "why": ""}), End)


def test_a_rank_that_comes_back_is_no_loss_and_can_be_lost_again() -> None:
    r = machine("shrink", places=(0, 1, 2))
    r.event(lost(1))
    assert r.changed(Generation(2, 0, (0, 2)), [(1, "")]) is not None
    assert r.event({"event": "pause", "why": "rank 1 is back"}) == RequestPause()
    assert r.changed(Generation(3, 0, (0, 1, 2)), []) is None
    assert r.event(lost(1)) == Change()


def test_who_is_alone_need_not_ask_anybody_to_pause() -> None:
    assert machine(places=(3,)).event({"event": "pause", "why": "rank 1 is back"}) == Change()


def test_a_rank_that_left_in_order() -> None:
    r = machine()
    action = r.event({"event": "left", "ranks": [1, 3], "begun": [7, 5], "completed": [4, None]})
    assert isinstance(action, FailFrom)
    assert (action.begun, action.completed) == (5, 4)
    assert action.loss.ranks == (1, 3)
    assert "ranks 1, 3 left the job in order, and barrier() needs it" in str(action.loss.error("barrier()"))
    unknown = r.event({"event": "left", "ranks": [2], "begun": [None]})
    assert isinstance(unknown, FailFrom)
    assert (unknown.begun, unknown.completed) == (None, 0)
    assert unknown.loss.ranks == (1, 2, 3)
    assert isinstance(machine().event({"event": "left", "ranks": [1]}), FailFrom)


def test_a_rank_that_an_exception_ended() -> None:
    r = machine()
    action = r.event({"event": "left", "ranks": [2], "begun": [5], "why": "it ended with ValueError: bad"})
    assert isinstance(action, FailFrom)
    said = "rank 2 has failed: it ended with ValueError: bad, and barrier() needs it. Connect again."
    assert (action.begun, str(action.loss.error("barrier()"))) == (5, said)
    after = r.event({"event": "left", "ranks": [1], "begun": [5]})  # since rank 2 has failed
    assert isinstance(after, FailFrom)
    assert (after.loss.ranks, str(after.loss.error("barrier()"))) == ((1, 2), said)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "fails", "shrinks"),
    [
        (None, None, None),
        (SystemExit(0), None, None),
        (SystemExit(), None, None),
        (GeneratorExit(), None, None),
        (SystemExit(3), "SystemExit: 3", "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (ValueError("a\n  b"), "ValueError: a b", "ValueError: a b"),
        (_Unprintable(), "_Unprintable", "_Unprintable"),
        (UsageError("no"), "UsageError: no", "UsageError: no"),
        (SwitchError("gone"), "SwitchError: gone", None),
        (WorkerLostError("rank 1"), None, None),
    ],
)
def test_the_failure_that_others_hear_of(
    error: BaseException | None, fails: str | None, shrinks: str | None
) -> None:
    assert (failure(error, "fail"), failure(error, "shrink")) == (fails, shrinks)


def test_a_long_failure_is_cut() -> None:
    said = failure(ValueError("x" * 10_000), "fail")
    assert said is not None
    assert (len(said), said[-5:]) == (300, "x ...")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (lost(0, why="silent for 2 s"), "this rank of job 'j' was lost to the controller: silent for 2 s"),
        ({"event": "switch", "why": "the switch restarted"}, "lost its slots: the switch restarted"),
        ({"event": "evicted", "why": "evicted by ops"}, "evicted by ops"),
    ],
)
def test_what_ends_a_session(event: dict[str, Any], said: str) -> None:
    action = machine("shrink").event(event)
    assert isinstance(action, End)
    error = action.cause.error("barrier()")
    assert isinstance(error, SwitchError)
    assert said in str(error)
    assert "barrier()" in str(error)


def test_the_rest() -> None:
    r = machine()
    assert r.event({"event": "policy", "word": 0x80000040}) == SetPolicy(0x80000040)
    assert r.event({"event": "ping"}) is None
    assert r.event({"event": "of the future", "x": 1}) is None
    assert r.event({}) is None
    assert r.event({"event": "stopping", "jobs": "stay"}) is None
    assert not r.final
    assert r.event({"event": "stopping", "jobs": "end"}) is None
    assert r.final


@pytest.mark.parametrize(
    "event",
    [
        {"event": "lost", "why": "x"},
        {"event": "lost", "ranks": 3, "why": "x"},
        {"event": "lost", "ranks": ["a"], "why": "x"},
        {"event": "left", "ranks": [1], "begun": [1, 2]},
        {"event": "policy", "word": None},
        {"event": "evicted"},
    ],
)
def test_malformed_events(event: dict[str, Any]) -> None:
    with pytest.raises(SwitchError, match="the controller sent"):
        machine().event(event)


@pytest.mark.parametrize(
    ("rank", "places"), [(3, (0, 1, 2)), (-1, (0, 1)), (0, (1, 0)), (0, (1, 1)), (0, ())]
)
def test_generations_that_cannot_be(rank: int, places: tuple[int, ...]) -> None:
    with pytest.raises(SwitchError, match="places"):
        Generation(1, rank, places)


def test_what_a_caller_may_ask_for() -> None:
    assert checked_on_loss(None, None) is None
    assert checked_on_loss(None, "") is None
    assert checked_on_loss("fail", "shrink") == "fail"
    assert checked_on_loss(None, "shrink") == "shrink"
    with pytest.raises(UsageError, match="on_loss is 'grow'; accepted: fail, shrink"):
        checked_on_loss("grow", None)
    with pytest.raises(UsageError, match="SWITCHAGG_ON_LOSS is 'no'"):
        checked_on_loss(None, "no")
    assert checked_deadline(None, None) is None
    assert checked_deadline(2, "5") == 2.0
    assert checked_deadline(None, "5") == 5.0
    for bad in (0, 0.5, 3601, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"deadline is .*; accepted: 1 to 3600"):
            checked_deadline(bad, None)
    with pytest.raises(UsageError, match="SWITCHAGG_DEADLINE is 'soon'"):
        checked_deadline(None, "soon")
