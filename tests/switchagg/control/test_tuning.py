"""The skip policy of a job, from its members' heartbeats to rank 0's stream."""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np
import pytest

from switchagg.control.controller import Controller
from switchagg.control.embedded import EmbeddedController
from switchagg.control.jobs.records import OPEN, OnLoss
from switchagg.control.telemetry import Tuning
from switchagg.rules.planner import SkipPolicy
from switchagg.wire.heartbeat import SAMPLED_SIZES, Report
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.job_books import book, carry_out, generation, run
from tests.switchagg.control.recorded_streams import Recorder, join_all, token, up
from tests.waiting import eventually
from tests.worker_lib.harness import job_name, together
from worker_lib import Session

LIMIT = 150.0  # seconds until a policy must have changed, on a machine that does a lot besides


def counts(second: int, policy: SkipPolicy, density: float = 0.01) -> dict[str, int]:
    """Returns a worker's counts after so many seconds with tensors of that density in blocks of any size."""
    blocks = 20_000 * second
    elements = blocks * SAMPLED_SIZES[0]
    report = Report(
        collectives=second,
        blocks_total=blocks,
        sampled_blocks=blocks,
        sampled_sums=blocks,
        policy_collectives=second,
        policy_elements=elements,
        policy_ns=int(elements * (0.5 if policy.dense else 5.0)),
        policy_word=policy.word(),
    )
    names = asdict(report)
    for kind in ("own", "sum"):
        for size in SAMPLED_SIZES:
            suffix = "" if size == SAMPLED_SIZES[0] else f"_{size}"
            names[f"sampled_{kind}{suffix}"] = int(elements / size * density)
    return names


def beat(controller: Controller, lines: list[Recorder], second: int, policy: SkipPolicy) -> None:
    for line in lines:
        cookie = bytes.fromhex(line.wait()["heartbeat"]["cookie"])
        assert controller.heartbeat(cookie, second, counts(second, policy, 1.0), time.monotonic() + second)


@pytest.mark.parametrize("tuned", [True, False])
def test_rank_0_is_told_and_people_see_why(tuned: bool) -> None:
    controller = Controller([FakeDriver()], slots=16, policy=None if tuned else SkipPolicy())
    controller.start()
    try:
        up(controller)
        lines = join_all(controller)
        for second in range(1, 60):
            beat(controller, lines, second, SkipPolicy())
            if lines[0].of("policy"):
                break
        if tuned:
            eventually(lambda: lines[0].of("policy"))
        assert bool(lines[0].of("policy")) == tuned
        (job,) = controller.queries.jobs(OPEN)
        if tuned:
            event = lines[0].of("policy")[0]
            policy = SkipPolicy.from_word(event["word"])
            assert policy is not None
            assert (job["policy"]["block"], job["policy"]["dense"]) == (policy.block, policy.dense)
            assert policy != SkipPolicy()
            assert job["policy"]["why"] == event["why"]
            assert [each["kind"] for each in controller.queries.events(OPEN)][-1] == "policy"
        else:
            assert job["policy"]["why"] == "set at admission"
        assert lines[1].of("policy") == []
    finally:
        controller.close()


def test_a_change_of_membership_makes_a_new_beginning() -> None:
    jobs = book()
    members = run(jobs, world_size=3, on_loss=OnLoss.shrink)
    job, tuning = members[0].job, Tuning()
    for second in range(1, 4):
        for member in members:
            tuning.heard(job, member, counts(second, SkipPolicy()), float(second))
    jobs.lost([members[0]], "its process ended")
    jobs.poll()
    for member in members[1:]:
        jobs.changes.progress(member, 1)
    for member in members[1:]:
        jobs.changes.proceed(member, member.endpoint[0], member.ports)
    carry_out(jobs)
    assert generation(members[1]).places == (1, 2)
    assert tuning.heard(job, members[0], counts(9, SkipPolicy()), 9.0) is None  # it is gone
    decided = None
    for second in range(1, 60):
        for member in members[1:]:  # counted from 0 again
            decided = decided or tuning.heard(job, member, counts(second, SkipPolicy(), 1.0), 9.0 + second)
    assert decided is not None


def test_a_policy_is_said_to_who_is_rank_0_now() -> None:
    controller = Controller([FakeDriver()], slots=16)
    controller.start()
    try:
        up(controller)
        lines = join_all(controller, world_size=2, on_loss=OnLoss.shrink)
        controller.stream_closed(lines[0])
        assert controller.progress(OPEN, "a", 1, token(lines[1]), 1).result(60) == 1
        controller.proceed(OPEN, "a", 1, token(lines[1]), "10.0.0.1", [4001]).result(60)
        for second in range(1, 60):
            beat(controller, lines[1:], second, SkipPolicy())
        eventually(lambda: lines[1].of("policy"))
    finally:
        controller.close()


def test_from_heartbeats_to_headers() -> None:
    # Workers, heartbeats, the controller and back: lanes that calls leave to the job become narrower.
    name = job_name()

    def call(session: Session) -> tuple[int, SkipPolicy]:
        x, out = np.ones(1 << 21, np.float32), np.empty(1 << 21, np.float32)
        limit = time.monotonic() + LIMIT
        turns = 0
        while session.policy.bits is None:
            session.allreduce(x, out=out, bits="auto")
            turns += 1
            late = np.array([time.monotonic() > limit], np.int32)
            assert not session.allreduce(late, blocks="dense").any(), f"{session.policy} after {LIMIT} s"
        # All ranks see the same policy after the same collective.
        policy = session.policy
        if session.rank == 0:
            shown = host.controller.queries.job(OPEN, name)
            assert shown is not None
            assert shown["policy"]["bits"] is not None
            assert "non-zero at some rank" in shown["policy"]["why"]
        session.barrier()
        return turns, policy

    with EmbeddedController() as host:
        first, *others = together(host.url, 3, call, job=name, deadline=1.5)
    assert first[1].bits == 16
    assert all(each == first for each in others)
