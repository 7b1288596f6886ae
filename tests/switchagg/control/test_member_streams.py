"""Streams of members, and their calls that wait for an answer."""

from __future__ import annotations

import pytest

from switchagg.control.jobs.effects import ChangeStep
from switchagg.control.jobs.job import Job, Member
from switchagg.control.jobs.records import JoinRequest, MemberState
from switchagg.control.member_streams import MemberStreams
from switchagg.errors import AdmissionError
from tests.switchagg.control.recorded_streams import Recorder


@pytest.fixture
def member() -> Member:
    return Member(Job(1, "me", "a", 1, 0.0), JoinRequest(0, 1, "10.0.0.1", 4000), 30.0)


def test_a_new_stream_takes_the_place_of_the_old(member: Member) -> None:
    streams, old, new = MemberStreams(), Recorder(), Recorder()
    streams.open(member, old)
    streams.open(member, new)
    streams.send(member, {"event": "left"})
    assert (old.closed, old.events, new.events) == (True, [], [{"event": "left"}])
    assert streams.closed(old) is None
    assert streams.closed(new) is member
    assert member not in streams


def test_a_call_is_answered_once(member: Member) -> None:
    streams = MemberStreams()
    with streams.call(member, ChangeStep.progress) as first:
        pass
    with streams.call(member, ChangeStep.progress) as second:
        pass
    with pytest.raises(AdmissionError, match="rank 0 of job 'a' has asked for its progress again"):
        first.result(0)
    streams.answer(member, ChangeStep.progress, 7)
    streams.answer(member, ChangeStep.progress, 8)
    assert (second.result(0), len(streams)) == (7, 0)


def test_a_call_that_is_refused_at_once_is_not_pending(member: Member) -> None:
    streams = MemberStreams()
    with pytest.raises(ZeroDivisionError), streams.call(member, ChangeStep.proceed):
        raise ZeroDivisionError
    assert len(streams) == 0


def test_a_member_that_is_lost_has_no_stream_and_no_call(member: Member) -> None:
    streams, stream = MemberStreams(), Recorder()
    streams.open(member, stream)
    with streams.call(member, ChangeStep.proceed) as call:
        pass
    member.state, member.why = MemberState.lost, "silent for 10 s"
    streams.end(member)
    with pytest.raises(AdmissionError, match="rank 0 of job 'a' is lost: silent for 10 s"):
        call.result(0)
    assert (stream.closed, len(streams)) == (True, 0)
