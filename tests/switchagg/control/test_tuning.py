"""A job's policy follows its data: heartbeats to the controller, its decision to rank 0, and to all ranks."""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np

from switchagg.control.embedded import EmbeddedController
from switchagg.control.records import Tenant
from switchagg.control.tuning import Tuning
from switchagg.heartbeat import Report
from switchagg.planner import SkipPolicy
from switchagg.policy import Decision
from tests.worker_lib.harness import job_name, seed_of_this_run, together
from worker_lib import Session

from .books import book, carry_out, room, run, told

LIMIT = 40.0  # seconds until a policy must have followed, on a machine that does a lot besides
ELEMENTS = 1 << 21


def reduce_until_it_is(session: Session, x: np.ndarray, dense: bool) -> int:
    """All-reduces until the policy is sparse or dense; returns how often. All ranks stop together."""
    limit = time.monotonic() + LIMIT
    out = np.empty_like(x)
    for turn in range(1, 1_000_000):
        session.allreduce(x, out=out)
        # All ranks see the same policy after the same collective.
        if session.policy.dense is dense:
            return turn
        late = np.array([time.monotonic() > limit], np.int32)
        assert not session.allreduce(late, blocks="dense").any(), f"still {session.policy} after {LIMIT} s"
    raise AssertionError


def test_a_dense_job_turns_sparse_when_zeros_appear() -> None:
    seed, name = seed_of_this_run(), job_name()

    def call(session: Session) -> tuple[int, SkipPolicy]:
        rng = np.random.default_rng((seed, session.rank))
        x = np.zeros(ELEMENTS, np.float32)
        x[rng.integers(ELEMENTS, size=50)] = 1
        assert session.policy.dense
        turns = reduce_until_it_is(session, x, dense=False)
        policy = session.policy
        session.barrier()
        if session.rank == 0:
            shown = host.controller.job(Tenant("", admin=True), name)
            assert shown is not None
            assert not shown["policy"]["dense"]
            assert "non-zero at some rank" in shown["policy"]["why"]
            noted = [e for e in host.controller.events(Tenant("", admin=True)) if e["kind"] == "policy"]
            assert noted
            assert noted[0]["job"] == name
        session.barrier()
        return turns, policy

    with EmbeddedController(policy=SkipPolicy(dense=True)) as host:
        first, *others = together(host.url, 3, call, job=name, deadline=1.5)
    assert all(each == first for each in others)


def test_only_the_first_member_is_told_and_the_job_remembers() -> None:
    jobs = book(room())
    members = run(jobs, world_size=3)
    carry_out(jobs)
    job = members[0].job
    decision = Decision(SkipPolicy(256), "few zeros")
    jobs.retune(job, decision, 7.0)
    actions = jobs.poll()
    event = {"event": "policy", "job": job.id, "word": SkipPolicy(256).word(), "why": "few zeros"}
    assert [told(actions, member) for member in members] == [[event], [], []]
    assert (job.policy, job.policy_why, job.policy_since) == (SkipPolicy(256), "few zeros", 7.0)
    assert [type(action).__name__ for action in actions].count("Save") == 1
    # Said once more: nothing is new but that rank 0 is told again.
    jobs.retune(job, decision, 9.0)
    assert [type(action).__name__ for action in jobs.poll()] == ["Tell"]
    assert job.policy_since == 7.0


def test_a_member_s_first_heartbeat_is_where_counting_begins() -> None:
    jobs = book(room())
    members = run(jobs, world_size=2)
    carry_out(jobs)
    tuning = Tuning()
    beat = asdict(
        Report(
            sampled_blocks=64 * 1000, sampled_sums=64 * 1000, policy_collectives=10, policy_elements=10**8,
            policy_ns=10**9, policy_word=SkipPolicy().word(),
        )
    )  # fmt: skip
    for now in (1.0, 2.0, 3.0):  # nothing has happened since the first
        assert [tuning.heard(member, beat, now) for member in members] == [None, None]
    later = {name: 2 * value if name != "policy_word" else value for name, value in beat.items()}
    dense = {**later, **{f"sampled_own_{size}": 2000 * 1024 // size for size in (64, 1024)}}
    assert tuning.heard(members[0], dense, 4.0) is None
    tuning.heard(members[1], dense, 4.0)
    assert tuning.tuner is not None
    assert tuning.tuner.model.ready
