"""Jobs on a root and leaves of native switches, with workers on real sockets and processes."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.jobs.records import OPEN
from switchagg.emulator.faults import Faults
from switchagg.errors import AdmissionError, NetworkError, SwitchError, UsageError, WorkerLostError
from tests.reference import exact
from tests.seeds import seed_of_this_run
from tests.switchagg.control.switch_trees import SwitchTree, address, switch_tree
from tests.waiting import eventually
from tests.worker_lib.harness import Outcome, Process, in_threads, job_name, say
from worker_lib.plan import DType

LOSSES = [0.0, 0.02]


def at_leaves(
    it: SwitchTree, where: list[int], function: Callable[..., Any], *args: Any, **settings: Any
) -> list[Outcome]:
    """Runs `function(session, *args)` at ranks whose leaves are `where`, in threads."""
    name = settings.pop("job", None) or job_name()
    settings = {"timeout": 60.0, "slots": 32, **settings}

    def rank(r: int) -> Any:
        with worker_lib.connect(it.url, name, r, len(where), address=address(where[r], r), **settings) as s:
            return function(s, *args)

    return in_threads([functools.partial(rank, r) for r in range(len(where))], 200.0)


def _values(outcomes: list[Outcome]) -> list[Any]:
    """Returns the ranks' values. Raises the error of a rank that failed first, if one did."""
    errors = [each.error for each in outcomes if each.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, WorkerLostError)):
        raise error
    return [each.value for each in outcomes]


def _collectives(session: worker_lib.Session, ints: Any, floats: Any, doubles: Any) -> dict[str, Any]:
    r, n = session.rank, session.world_size
    found = {"int32": session.allreduce(ints[r].copy()), "float32": session.allreduce(floats[r].copy())}
    found["16 bits"] = session.allreduce(floats[r].copy(), op="avg", bits=16)
    found["float64"] = session.allreduce(doubles[r].copy())
    found["exact"] = session.allreduce(np.ldexp(floats[r], 7 * r), accuracy="exact")
    found["broadcast"] = session.broadcast(floats[n - 1].copy() if r == n - 1 else 0 * floats[0], root=n - 1)
    found["allgather"] = session.allgather(ints[r][:100].copy())
    for ranks in ([0, 3], [1, 2, 4]):  # each of both leaves
        group = session.group(ranks)
        if group is not None:
            with group:
                found["group"] = ranks, group.allreduce(ints[r].copy())
    session.barrier()
    return found


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transport", ["udp", "auto"])
def test_sums_through_two_levels_are_exact(loss: float, transport: str) -> None:
    draw = np.random.default_rng(seed_of_this_run())
    where = [1, 2, 1, 2, 2]
    n = len(where)
    ints = draw.integers(-(2**31), 2**31, (n, 5000)).astype(np.int32)
    floats = draw.standard_normal((n, 5000)).astype(np.float32)
    doubles = draw.standard_normal((n, 500))
    with switch_tree(2, faults=Faults(loss=loss, seed=seed_of_this_run()) if loss else None) as it:
        found = _values(at_leaves(it, where, _collectives, ints, floats, doubles, transport=transport))
        it.all_free()
    wanted = exact.reduce([np.ldexp(x, 7 * r) for r, x in enumerate(floats)], DType.F32)
    for rank, mine in enumerate(found):
        assert mine["exact"].tobytes() == wanted.tobytes()
        assert (mine["int32"] == ints.sum(0, dtype=np.int32)).all()
        for kind in ("float32", "16 bits", "float64"):
            assert mine[kind].tobytes() == found[0][kind].tobytes()
        np.testing.assert_allclose(mine["float32"], floats.sum(0, dtype=np.float64), atol=1e-5)
        np.testing.assert_allclose(mine["16 bits"], floats.mean(0), atol=2e-3)
        np.testing.assert_allclose(mine["float64"], doubles.sum(0), atol=1e-12)
        assert mine["broadcast"].tobytes() == floats[n - 1].tobytes()
        assert (mine["allgather"] == ints[:, :100]).all()
        group, total = mine["group"]
        assert rank in group
        assert (total == ints[group].sum(0, dtype=np.int32)).all()


def _one(session: worker_lib.Session, data: Any) -> Any:
    return session.allreduce(data[session.rank].copy())


def test_a_job_of_one_rack_does_not_leave_it() -> None:
    data = np.arange(3 * 1000, dtype=np.int32).reshape(3, 1000)
    with switch_tree(2) as it:
        found = at_leaves(it, [2, 2, 2], _one, data)
        assert all((each.get() == data.sum(0)).all() for each in found)
        counters = {name: switch.counters() for name, switch in it.switches.items()}
        assert counters["leaf2"]["accepted"] > 0
        assert (counters["root"]["received"], counters["leaf1"]["received"]) == (0, 0)
        it.all_free()


def test_four_racks_of_sixteen_are_four_workers_to_the_root() -> None:
    draw = np.random.default_rng(seed_of_this_run())
    where = [1 + rank % 4 for rank in range(64)]
    data = draw.integers(-(2**31), 2**31, (64, 4000)).astype(np.int32)
    with switch_tree(4) as it:
        found = at_leaves(it, where, _one, data, job="wide")
        assert all((each.get() == data.sum(0, dtype=np.int32)).all() for each in found)
        root = it.switches["root"].counters()
        # Positions: a header, and packets of 2,032 words; repeats of whoever waits long are counted apart.
        rounds = root["results"]
        assert rounds == 1 + 2
        assert root["accepted"] == 4 * rounds
        for leaf in it.leaves:
            counters = it.switches[leaf].counters()
            assert (counters["accepted"], counters["results"]) == (16 * rounds, rounds)
        it.all_free()


def test_what_people_see_of_a_tree() -> None:
    with switch_tree(2) as it:
        shown: dict[str, Any] = {}

        def look(session: worker_lib.Session) -> None:
            session.barrier()
            if session.rank == 0:
                shown["job"] = it.job("j")
                shown["slots"] = it.controller.queries.slots(OPEN)
                shown["stats"] = it.controller.queries.stats(OPEN)
                shown["switches"] = it.controller.queries.switches(OPEN)
                # Rank 2 is not there yet: its leaf waits for it, and the root for its leaf.
                work = session.allreduce_async(np.ones(10, np.float32))
                eventually(lambda: _missing(it, "j").keys() == {"root", "leaf1"})
                shown["missing"] = _missing(it, "j")
                shown["waiting"] = True
                work.wait()
            else:
                if session.rank == 2:
                    eventually(lambda: "waiting" in shown)
                session.allreduce(np.ones(10, np.float32))

        for outcome in at_leaves(it, [1, 2, 1], look, job="j"):
            outcome.get()
        it.all_free()
    job = shown["job"]
    assert (job["switch"], [leaf["switch"] for leaf in job["leaves"]]) == ("root", ["leaf1", "leaf2"])
    assert [leaf["ranks"] for leaf in job["leaves"]] == [[0, 2], [1]]
    assert [member["switch"] for member in job["members"]] == ["leaf1", "leaf2", "leaf1"]
    assert {each["name"]: each["parent"] for each in shown["switches"]} == {
        "root": None,
        "leaf1": "root",
        "leaf2": "root",
    }
    assert [each["hosts"] for each in shown["switches"]] == [[], ["127.1.1.0/24"], ["127.1.2.0/24"]]
    assert {each["switch"]: each["name"] for each in shown["slots"]["ranges"]} == dict.fromkeys(
        ("root", "leaf1", "leaf2"), "j"
    )
    accepted = {each["switch"]: each["counters"]["accepted"] for each in shown["stats"]["jobs"]}
    assert accepted.keys() == {"root", "leaf1", "leaf2"}
    assert accepted["leaf1"] >= 2
    assert shown["missing"] == {"root": [0, 2], "leaf1": [2]}


def _missing(it: SwitchTree, name: str) -> dict[str, list[int]]:
    waiting = it.controller.queries.waiting_slots(OPEN, name)
    assert waiting is not None
    return {each["switch"]: each["missing"] for each in waiting["slots"]}


def test_a_rank_that_attaches_nowhere_is_told_so() -> None:
    with switch_tree(2) as it:
        with pytest.raises(
            AdmissionError, match=r"rank 0 at 127.9.0.1 attaches to no switch; .*leaf1: 127.1.1"
        ):
            worker_lib.connect(it.url, "j", 0, 2, address="127.9.0.1")
        with pytest.raises(AdmissionError, match=r"world_size is 65; accepted: 1..64"):
            worker_lib.connect(it.url, "j", 0, 65, address=address(1))
        with pytest.raises(AdmissionError, match="asks for switch 'leaf9'; accepted: root, leaf1, leaf2"):
            worker_lib.connect(it.url, "j", 0, 2, address=address(1), switch="leaf9")
        with pytest.raises(UsageError, match="world_size is 257; accepted: 1 to 256"):
            worker_lib.connect(it.url, "j", 0, 257, address=address(1))
        it.all_free()


# ---------------------------------------------------------------------- what breaks


def _steps(url: str, name: str, rank: int, n: int, leaf: int, on_loss: str) -> Any:
    """A rank in a process of its own, which adds ones until it is alone with an error, or has done enough."""
    sums = []
    settings = {"timeout": 100.0, "on_loss": on_loss, "slots": 32, "transport": "udp"}
    with worker_lib.connect(url, name, rank, n, address=address(leaf, rank), **settings) as session:
        while len(sums) < 5 or sums[-5:] != [n - 1] * 5:
            try:
                sums.append(int(session.allreduce(np.ones(3000, np.int32))[-1]))
            except WorkerLostError:
                if on_loss == "fail":
                    raise
            if len(sums) == 3:
                say("going")
    return sums


@pytest.mark.parametrize("on_loss", ["fail", "shrink"])
def test_a_rank_is_killed(on_loss: str) -> None:
    where = [1, 2, 2]
    with switch_tree(2) as it:
        name = job_name()
        ranks = [Process(_steps, it.url, name, r, 3, leaf, on_loss) for r, leaf in enumerate(where)]
        try:
            for rank in ranks:
                assert rank.hear() == "going"
            ranks[2].signal(signal.SIGKILL)
            outcomes = [rank.finish() for rank in ranks[:2]]
        finally:
            for rank in ranks:
                rank.kill()
        for outcome in outcomes:
            if on_loss == "fail":
                assert isinstance(outcome.error, WorkerLostError)
                assert "rank 2" in str(outcome.error)
            else:
                assert outcome.get()[-1] == 2
                assert set(outcome.value) == {2, 3}
        it.all_free()


def test_a_leaf_dies() -> None:
    where = [1, 2, 1]
    with switch_tree(2) as it:

        def work(session: worker_lib.Session) -> None:
            session.barrier()
            if session.rank == 0:
                it.switches["leaf2"].close()
            while True:
                session.allreduce(np.ones(10, np.int32), timeout=2.0)

        for rank, outcome in enumerate(at_leaves(it, where, work, job="j", transport="udp")):
            assert isinstance(outcome.error, NetworkError | SwitchError | WorkerLostError), rank
        it.all_free()
