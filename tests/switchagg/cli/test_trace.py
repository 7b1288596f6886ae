"""`switchagg trace`: its file follows the rules of the trace event format; it names the rank that is late."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.cli.main import main
from switchagg.cli.trace import Trace, aligned
from switchagg.control.embedded import EmbeddedController
from tests.waiting import eventually
from tests.worker_lib.harness import job_name, together
from worker_lib import Session
from worker_lib.timeline import RankTimeline, TimelineHeader, TimelineRecord

SLACK = 1e-4  # microseconds: what a float64 of microseconds may be off after some days


def check_trace(whole: Any) -> dict[str, int]:
    """Checks a trace by the rules of the trace event format; returns the number of events by phase.

    The rules are those of its description ("Trace Event Format", by Nat Duca and Dean Sinclair) for the
    JSON object format and for the phases that are used here: required members and their types, scopes of
    instant events, names of metadata events; complete events of a thread nest.
    """
    assert isinstance(whole, dict)
    assert isinstance(whole["traceEvents"], list)
    assert whole["displayTimeUnit"] in ("ms", "ns")
    counts: dict[str, int] = defaultdict(int)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    for event in whole["traceEvents"]:
        phase = event["ph"]
        counts[phase] += 1
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event.get("args", {}), dict)
        if phase == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index")
            key, kind = ("sort_index", int) if event["name"].endswith("index") else ("name", str)
            assert type(event["args"][key]) is kind
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            continue
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= 0
        assert isinstance(event["cat"], str)
        if phase == "X":
            assert type(event["dur"]) in (int, float)
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert phase == "i", f"phase {phase!r} is none that this command writes"
            assert event["s"] in ("t", "p", "g")
    assert set(threads) == named
    for spans in threads.values():
        open_: list[tuple[float, float]] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1][1] <= begin + SLACK:
                open_.pop()
            assert not open_ or end <= open_[-1][1] + SLACK, "complete events overlap without nesting"
            open_.append((begin, end))
    return counts


def test_the_checker_finds_what_is_wrong() -> None:
    def whole(*events: dict[str, Any]) -> dict[str, Any]:
        names = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "x"}}
        return {"traceEvents": [names, *events], "displayTimeUnit": "ms"}

    good = {"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0, "ts": 0.0, "dur": 5.0}
    assert check_trace(whole(good, {**good, "ts": 1.0, "dur": 2.0})) == {"M": 1, "X": 2}
    bad: list[dict[str, Any]] = [
        {**good, "ts": 3.0}, {**good, "dur": -1.0}, {**good, "pid": "0"}, {**good, "tid": 1},
        {**good, "ph": "i"}, {**good, "ts": -1.0}, {**good, "ph": "Z"},
    ]  # fmt: skip
    for event in bad:
        with pytest.raises((AssertionError, KeyError)):
            check_trace(whole(good, event))


def _late_rank(session: Session, folder: Path) -> None:
    """Rank 1 calls the second of three collectives only when the others have begun it; then many overlap."""
    session.barrier()
    if session.rank == 1:
        eventually((folder / "begun").exists)
    work = session.allreduce_async(np.ones(5000, np.float32))
    if session.rank == 0:
        eventually(lambda: work._native.begun_at)
        eventually((folder / "2").exists)
        time.sleep(0.2)  # among the longest waits, also where other work delays some of the others
        (folder / "begun").touch()
    elif session.rank == 2:
        eventually(lambda: work._native.begun_at)
        (folder / "2").touch()
    work.wait()
    for each in [session.allreduce_async(np.ones(50_000, np.float32)) for _ in range(6)]:
        each.wait()


@pytest.mark.parametrize("transport", ["auto", "udp"])
def test_a_trace_of_a_job(tmp_path: Path, transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "out.json", tmp_path / "timeline"
    with EmbeddedController() as host:
        together(host.url, 3, _late_rank, tmp_path, job="late", transport=transport, timeline=folder)
    assert main(["trace", str(folder), "-o", str(out)]) == 0
    whole = json.loads(out.read_text(), parse_constant=pytest.fail)
    counts = check_trace(whole)
    events = whole["traceEvents"]
    calls = [each for each in events if each.get("cat") == "collective"]
    assert len(calls) == 3 * 8
    assert counts["X"] > len(calls)
    second = [each for each in calls if each["args"]["number"] == 1]
    assert [each["pid"] for each in second] == [0, 1, 2]
    assert {each["args"]["last rank"] for each in second} == {1}
    waits = [each for each in events if each["name"] == "waits for rank 1"]
    assert {each["pid"] for each in waits} >= {0, 2}
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert [name.split(" on ")[0] for name in names] == [f"rank {rank} of 3" for rank in range(3)]
    assert any(each["tid"] for each in calls), "collectives that overlap are side by side"
    said = capsys.readouterr().out
    assert "\n#1 allreduce(float32, shape (5000,), sum, bounded)" in said
    assert f"{out}: open it" in said
    assert main(["trace", str(folder), "-o", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in summary["ranks"]] == [0, 1, 2]
    assert summary == whole["otherData"] == json.loads(out.read_text())["otherData"]
    assert summary["ranks"][1]["late"] >= 1
    assert summary["ranks"][1]["delayed"] > 0
    assert summary["missing"] == {}


# ---------------------------------------------------------------------- clocks


def _timelines(seed: int, offsets: Sequence[float], drift: float) -> list[RankTimeline]:
    """Three ranks with a clock each, which are `offsets` seconds off, the last one's drifting."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    made = []
    moments = [round(1e9 * (each + 100)) for each in range(300)]
    jitter = [[round(abs(draw.gauss(0, 20_000))) for _ in moments] for _ in offsets]
    for rank, offset in enumerate(offsets):
        header = TimelineHeader(1, "j", rank, 3, f"host{rank}", 7, f"clock{rank}", 10**11, 10**18, "udp")

        def own(moment: int, rank: int = rank, offset: float = offset) -> int:
            return round(moment * (1 + (drift if rank == 2 else 0)) + offset * 1e9)

        records = [
            TimelineRecord(
                1, number, rank, "barrier()", "done", False, own(at - 10**7 + rank * 10**6),
                own(at - 10**7 + rank * 10**6), own(at + jitter[rank][number]), own(at + 10**6), 1, 1, (),
            )
            for number, at in enumerate(moments)
        ]  # fmt: skip
        made.append(RankTimeline(Path(f"r{rank}"), header, tuple(records)))
    return made


@pytest.mark.parametrize("drift", [0.0, 5e-5])
def test_clocks_of_hosts_are_aligned(drift: float) -> None:
    trace = Trace(_timelines(random.randrange(1 << 32), (0.0, 5.5, -70.0), drift))
    assert [each.shared for each in trace.alignments] == [0, 300, 300]
    for rank in range(3):
        for record, first in zip(trace.records[rank], trace.records[0], strict=True):
            # The jitter is some 20 us; five minutes of drift unaligned would be 15,000 us.
            assert abs(record.begun - first.begun - rank * 10**6) < 400_000
    assert [each.late for each in trace.ranks()] == [0, 0, 300]
    assert trace.ranks()[0].waited == pytest.approx(0.6, abs=0.05)


def test_clocks_that_share_no_collective_go_by_the_time_of_day() -> None:
    first, second, _ = _timelines(1, (0.0, 5.0, 0.0), 0.0)
    other = replace(second, header=replace(second.header, job="other", unix=10**18 + 3 * 10**9))
    found = aligned([first, other])
    assert (found[1].shared, found[1].at(0)) == (0, 3 * 10**9)
    group = replace(
        second, header=replace(second.header, job="j.group", clock="clock0"), records=second.records
    )
    linked = replace(other, header=replace(other.header, job="j.group"))
    assert [each.shared for each in aligned([first, group, linked])] == [0, 300]


def test_files_that_do_not_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedController() as host:
        name = job_name()
        together(host.url, 2, lambda session: session.barrier(), job=name, timeline=tmp_path)
    one, two = sorted(tmp_path.iterdir())
    out = ["-o", str(tmp_path / "out.json")]
    again = tmp_path / "again.jsonl"
    again.write_text(one.read_text())
    assert main(["trace", str(tmp_path), *out]) == 2
    assert "are of two runs of rank 0 of job" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
    assert main(["trace", str(two), *out]) == 0
    assert f"There is no file of {name}'s rank 0." in capsys.readouterr().out
    check_trace(json.loads((tmp_path / "out.json").read_text()))
    (tmp_path / "empty").mkdir()
    assert main(["trace", str(tmp_path / "empty"), *out]) == 2
    assert "has no *.jsonl in it" in capsys.readouterr().err
    assert main(["trace", str(two), "-o", str(tmp_path / "no" / "folder")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
