"""The file that a rank writes of its collectives: what is in it, and what happens where it cannot be."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.waiting import eventually
from worker_lib import CollectiveTimeout, Session, UsageError
from worker_lib.timeline import RankTimeline

from .harness import job_name, processes, say, together, try_together

F32 = np.float32


def _read(folder: Path) -> list[RankTimeline]:
    found = [RankTimeline.read(path) for path in folder.glob("*.jsonl")]
    return sorted(found, key=lambda each: (each.header.job, each.header.rank))


def _five(session: Session) -> None:
    for size in (3, 1000, 200_000):
        session.allreduce(np.ones(size, F32))
    session.allreduce_async(np.ones(70_000, F32)).wait()
    session.barrier()


@pytest.mark.usefixtures("either_transport")
def test_every_collective_is_recorded_with_its_times(host: EmbeddedController, tmp_path: Path) -> None:
    name = job_name()
    together(host.url, 3, _five, job=name, timeline=tmp_path / "new" / "folder")
    timelines = _read(tmp_path / "new" / "folder")
    assert [each.header.rank for each in timelines] == [0, 1, 2]
    assert len({each.header.clock for each in timelines}) == 1
    for each in timelines:
        assert (each.header.job, each.header.world_size, each.header.pid) == (name, 3, os.getpid())
        assert [record.number for record in each.records] == list(range(5))
        assert [record.background for record in each.records] == [False, False, False, True, False]
        assert each.records[1].call == "allreduce(float32, shape (1000,), sum, exact)"
        for record in each.records:
            assert (record.status, record.rank) == ("done", each.header.rank)
            assert 0 < record.called <= record.begun <= record.opened <= record.ended
            assert record.packets == record.results > 0
    for records in zip(*(each.records for each in timelines), strict=True):
        assert len({record.membership for record in records}) == 1
        # Nobody's header comes back before all have sent theirs.
        assert max(record.begun for record in records) <= min(record.opened for record in records)


def test_retransmissions_are_in_it(tmp_path: Path) -> None:
    with EmbeddedController(faults=Faults(loss=0.05, seed=3)) as host:

        def run(session: Session) -> tuple[int, int]:
            for _ in range(3):
                session.allreduce(np.ones(300_000, F32))
            return session.rank, session.stats()["retransmissions"]

        counted = dict(together(host.url, 2, run, transport="udp", timeline=tmp_path))
    for each in _read(tmp_path):
        again = [entry for record in each.records for entry in record.again]
        assert sum(packets for _, packets in again) == counted[each.header.rank] > 0
        assert max(len(record.again) for record in each.records) <= 64
        for record in each.records:
            assert all(record.begun <= at <= record.ended for at, _ in record.again)


def test_failures_and_unfinished_collectives_are_in_it(host: EmbeddedController, tmp_path: Path) -> None:
    over = threading.Barrier(2)

    def run(session: Session) -> None:
        session.barrier()
        if session.rank == 0:
            with pytest.raises(CollectiveTimeout):
                session.allreduce(np.ones(10, F32), timeout=0.2)
        over.wait(60)

    together(host.url, 2, run, timeline=tmp_path)
    first, second = _read(tmp_path)
    assert [record.status for record in first.records] == ["done", "timed out"]
    assert first.records[1].opened == 0 < first.records[1].begun < first.records[1].ended
    assert [record.status for record in second.records] == ["done"]


def test_groups_have_files_of_their_own(host: EmbeddedController, tmp_path: Path) -> None:
    def run(session: Session) -> None:
        pair = session.group([1, 0])
        assert pair is not None
        with pair:
            pair.barrier()

    name = job_name()
    together(host.url, 2, run, job=name, timeline=tmp_path)
    jobs = [each.header.job for each in _read(tmp_path)]
    assert jobs[:2] == [name, name]
    assert [job.startswith(f"{name}.") for job in jobs[2:]] == [True, True]


def test_nothing_is_written_unless_it_is_asked_for(
    host: EmbeddedController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    together(host.url, 2, _five)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SWITCHAGG_TIMELINE", "here")
    together(host.url, 2, _five)
    assert len(list(Path("here").iterdir())) == 2
    with worker_lib.connect(rank=0, world_size=1) as alone:
        alone.allreduce(np.ones(3, F32))
    assert len(list(Path("here").iterdir())) == 2, "a group of one sends nothing"


def test_a_folder_that_cannot_be_made_is_an_error_at_every_rank(
    host: EmbeddedController, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    outcomes = try_together(host.url, 2, _five, timeline=tmp_path / "file")
    for outcome in outcomes:
        with pytest.raises(UsageError, match=r"^timeline is '.*/file': File exists$"):
            outcome.get()
    eventually(lambda: not host.controller.busy)


def _write_and_wait(session: Any) -> None:
    session.barrier()
    session._state.timeline._next = 0.0  # the second that it waits is over
    session.allreduce(np.ones(100, F32))
    if session.rank == 0:
        child = os.fork()
        if child == 0:
            session.close()
            os._exit(0)
        os.waitpid(child, 0)
    say("written")
    signal.pause()


def test_a_killed_rank_leaves_what_it_had_written(host: EmbeddedController, tmp_path: Path) -> None:
    with processes(host.url, 2, _write_and_wait, timeline=str(tmp_path)) as ranks:
        for rank in ranks:
            assert rank.hear() == "written"
        for rank in ranks:
            rank.kill()
    # The barrier, which had ended when the next call came; and nothing by a forked child.
    assert [[record.number for record in each.records] for each in _read(tmp_path)] == [[0], [0]]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def test_files_that_are_no_timelines_are_refused(host: EmbeddedController, tmp_path: Path) -> None:
    together(host.url, 2, _five, timeline=tmp_path / "good")
    path = next((tmp_path / "good").iterdir())
    good = RankTimeline.read(path)
    cut = tmp_path / "cut"
    cut.write_text(path.read_text()[:-9])
    assert RankTimeline.read(cut) == replace(good, path=cut, records=good.records[:-1])

    def refused(lines: Sequence[str], message: str) -> None:
        bad = tmp_path / "bad"
        bad.write_text("".join(lines))
        with pytest.raises(UsageError, match=message):
            RankTimeline.read(bad)

    header, *records = _lines(path)
    refused([], "line 1, is not a timeline's")
    refused(['{"a": 1}\n'], "line 1, is not a timeline's")
    refused(["[]\n"], "line 1, is not a timeline's")
    refused(
        [json.dumps({**json.loads(header), "switchagg_timeline": 7}) + "\n"], "has version 7 .*accepted: 1"
    )
    refused([header, records[0], "[1]\n"], "line 3, is not a timeline's")
    wrong = records[0].replace('"done"', "0")
    refused([header, wrong], "line 2, .*status is 0")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        RankTimeline.read(tmp_path / "none")
