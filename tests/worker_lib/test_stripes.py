"""Jobs whose packets are dealt to several switches: the bits of one switch, whatever becomes of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.jobs.records import OPEN
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import Rate
from switchagg.rules.wiring import Attachment
from tests.seeds import seed_of_this_run
from tests.switchagg.control.switch_trees import SwitchTree, switch_row
from tests.waiting import eventually
from worker_lib import AdmissionError, Session, UsageError, WorkerLostError

from .harness import in_threads, job_name, several_sums, together
from .test_changes import back, sum_of, vanish

FOUR = ("a", "b", "c", "d")
SETTINGS: dict[str, Any] = {"words": 64, "slots": 64, "transport": "udp"}


def _packets(row: SwitchTree) -> list[int]:
    return [switch.port_counters()["packets_in"] for switch in row.switches.values()]


def _sums(session: Session, seed: int) -> list[bytes]:
    """As `several_sums`, and an asynchronous series."""
    rng = np.random.default_rng([seed, 7, session.rank])
    series = [rng.standard_normal(size).astype(np.float32) for size in (10, 40_000, 3000, 1)]
    works = [session.allreduce_async(x) for x in series]
    results = several_sums(session, seed)
    return results + [np.asarray(work.wait()).tobytes() for work in works]


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sealed sums, where `seal` asks for them."""
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    monkeypatch.setenv("SWITCHAGG_SEAL", str(path))


def _weights(session: Session) -> list[int]:
    return list(session.stats()["weights"])


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("settings", [{}, {"check": True}, {"seal": True}, {"threads": 2}], ids=str)
def test_the_bits_are_those_of_one_switch(settings: dict[str, Any]) -> None:
    settings = {**SETTINGS, "seal": False, **settings}
    threads, seed = settings.pop("threads", 1), seed_of_this_run()
    faults = None if threads > 1 else Faults(loss=0.02, duplicate=0.01, reorder=0.02, seed=seed)
    results = []
    wiring = {name: Attachment(bandwidth=rate * 1e8) for name, rate in zip(FOUR, (10, 7, 5, 3), strict=True)}
    with switch_row(FOUR, faults=faults, threads=threads, wiring=wiring) as row:
        for stripes in (1, 2, 4):
            before = _packets(row)
            results.append(together(row.url, 3, _sums, seed, stripes=stripes, **settings))
            shares = [after - earlier for earlier, after in zip(before, _packets(row), strict=True)]
            assert sum(share > 0 for share in shares) == stripes
        row.all_free()
        assert together(row.url, 2, _weights, stripes=4, **settings) == [[32, 22, 16, 10]] * 2
        row.all_free()
    assert results[0] == results[1] == results[2]


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("settings", [{}, {"check": True}, {"seal": True}], ids=str)
def test_weights_follow_the_rates_and_all_ranks_have_the_same(settings: dict[str, Any]) -> None:
    settings = {**SETTINGS, "seal": False, **settings}
    seed = seed_of_this_run()
    rates = {"a": Rate(200e6), "b": Rate(5e6), "c": Rate(200e6)}

    def call(session: Session, most: int) -> tuple[list[bytes], list[list[int]]]:
        rng = np.random.default_rng([seed, session.rank])
        sums, seen = [], [_weights(session)]
        # After a collective all ranks have the same weights, and so all stop at the same call.
        while len(sums) < most and (len(seen[-1]) == 1 or 2 * seen[-1][1] >= max(seen[-1])):
            sums.append(session.allreduce(rng.standard_normal(60_000).astype(np.float32)).tobytes())
            seen.append(_weights(session))
        return sums, seen

    with switch_row(("a", "b", "c"), faults=Faults(loss=0.01, seed=seed), rates=rates) as row:
        found = together(row.url, 3, call, 100, stripes=3, **settings)
        sums, seen = found[0]
        right = together(row.url, 3, call, len(sums), stripes=1, **settings)
        row.all_free()
    assert found[0] == found[1] == found[2]
    assert sums == right[0][0]
    assert 2 * seen[-1][1] < max(seen[-1]), seen


def _stripes(row: SwitchTree, job: str) -> list[str]:
    return [each["switch"] for each in row.job(job)["stripes"]]


def test_a_stripe_leaves_a_drained_switch_and_the_other_stays() -> None:
    """In the middle of sums; only what the drained switch had is sent again. The other is slower."""
    seed = seed_of_this_run()
    faults = Faults(loss=0.01, seed=seed)
    job, count = job_name(), 40
    begun, over = threading.Event(), threading.Event()

    def call(session: Session) -> list[bytes]:
        rng = np.random.default_rng([seed, session.rank])
        results = []
        for number in range(count):
            if number == count - 1:
                over.wait(120)  # a job that has ended leaves no switch
            results.append(session.allreduce(rng.standard_normal(50_000).astype(np.float32)).tobytes())
            if number == 2:
                begun.set()
        return results

    with switch_row(("a", "b", "c"), faults=faults, rates={"b": Rate(30e6)}) as row:
        over.set()
        right = together(row.url, 3, call, stripes=2, **SETTINGS)
        begun.clear()
        over.clear()

        def drain() -> list[list[str]]:
            begun.wait(60)
            seen = [_stripes(row, job)]
            for _ in range(2):
                gone = seen[-1][0]
                row.controller.drain_switch(OPEN, gone)
                eventually(lambda gone=gone: gone not in _stripes(row, job))
                row.controller.undrain_switch(OPEN, gone)
                seen.append(_stripes(row, job))
            over.set()
            return seen

        def rank(number: int) -> list[bytes]:
            with worker_lib.connect(row.url, job, number, 3, stripes=2, timeout=60.0, **SETTINGS) as session:
                return call(session)

        *results, seen = in_threads([*(lambda r=r: rank(r) for r in range(3)), drain])
        assert [each.get() for each in results] == right
        first, second, third = seen.get()
        assert first[1] == second[1] == third[1]
        assert first[0] != second[0] != third[0]
        row.all_free()


def test_a_lost_rank_leaves_all_stripes_and_comes_back() -> None:
    faults = Faults(loss=0.02, seed=seed_of_this_run())
    lost, returned = threading.Event(), threading.Event()
    with switch_row(("a", "b"), faults=faults) as row:
        settings: dict[str, Any] = {**SETTINGS, "stripes": 2, "on_loss": "shrink"}
        job = job_name()

        def stays(rank: int) -> None:
            with worker_lib.connect(row.url, job, rank, 3, **settings) as session:
                assert sum_of(session) == 0b111
                with pytest.raises(WorkerLostError, match="rank 2 was lost"):
                    for _ in iter(lambda: sum_of(session), 0):
                        pass
                lost.set()
                assert sum_of(session) == 0b011
                returned.wait(60)
                while sum_of(session) == 0b011:
                    pass
                assert sum_of(session) == 0b111
                assert len(_stripes(row, job)) == 2

        def goes() -> None:
            session = worker_lib.connect(row.url, job, 2, 3, **settings)
            assert sum_of(session) == 0b111
            vanish(session)
            lost.wait(60)
            returned.set()
            with back(row.url, job, 2, 3, **settings) as again:
                assert sum_of(again) == 0b111
                assert sum_of(again) == 0b111

        for outcome in in_threads([lambda: stays(0), lambda: stays(1), goes]):
            outcome.get()
        row.all_free()


def test_groups_are_dealt_too() -> None:
    def call(session: Session) -> int:
        group = session.group([0, 2])
        if group is None:
            return 0
        with group:
            return int(group.allreduce(np.full(3000, session.rank + 1, np.int32))[17])

    with switch_row(("a", "b")) as row:
        assert together(row.url, 3, call, stripes=2, **SETTINGS) == [4, 0, 4]
        row.all_free()


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"stripes": 0}, "stripes is 0; accepted: 1 to 16"),
        ({"stripes": 17}, "stripes is 17; accepted: 1 to 16"),
        ({"stripes": True}, "stripes is True; accepted: 1 to 16"),
        ({"stripes": "2"}, "stripes is '2'; accepted: 1 to 16"),
        ({"stripes": 2, "transport": "shm"}, "stripes is 2 and the transport 'shm'; accepted"),
        ({"stripes": 2, "transport": "slots"}, "the transport 'slots'; accepted"),
        ({"stripes": 2, "transport": "xdp"}, "the transport 'xdp'; accepted with it: 'auto', 'udp'"),
        ({"stripes": 2, "transport": "dpdk"}, "the transport 'dpdk'; accepted"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        worker_lib.connect("http://127.0.0.1:9", "j", 0, 2, **arguments)


def test_the_environment_asks_for_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_STRIPES", "many")
    with pytest.raises(UsageError, match="SWITCHAGG_STRIPES is 'many'; accepted: 1 to 16"):
        worker_lib.connect("http://127.0.0.1:9", "j", 0, 2)
    monkeypatch.setenv("SWITCHAGG_STRIPES", "2")
    with switch_row(("a", "b")) as row:
        job = job_name()
        seen = together(row.url, 2, lambda session: (session.barrier(), _stripes(row, job))[1], job=job)
        assert [sorted(each) for each in seen] == [["a", "b"]] * 2


def test_a_controller_with_too_few_switches_says_so_at_once() -> None:
    with switch_row(("a", "b")) as row:
        said = r"stripes is 3; accepted: 1\.\.2, the number of switches .* P = 64, K = 64: a, b"
        with pytest.raises(AdmissionError, match=said) as caught:
            worker_lib.connect(row.url, "j", 0, 2, stripes=3, **SETTINGS)
        assert caught.value.code == "no_switch"
        assert row.controller.queries.jobs(OPEN) == []


def test_ranks_that_ask_for_different_numbers_of_stripes_are_told() -> None:
    with switch_row(("a", "b")) as row:
        job, there = job_name(), threading.Event()

        def first() -> None:
            there.set()
            worker_lib.connect(row.url, job, 0, 2, stripes=2, join_timeout=3.0, **SETTINGS)

        def second() -> None:
            there.wait(60)
            eventually(lambda: any(each["name"] == job for each in row.controller.queries.jobs(OPEN)))
            worker_lib.connect(row.url, job, 1, 2, join_timeout=3.0, **SETTINGS)

        one, two = in_threads([first, second])
        assert "ranks 1" in str(one.error) or "rank 1" in str(one.error)
        assert isinstance(two.error, AdmissionError)
        assert two.error.code == "settings_mismatch"
        assert "rank 1 asks for 1 stripes" in str(two.error)
