"""`switchagg trace`: the timeline of a job, for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

    files of ranks (connect(timeline=...), SWITCHAGG_TIMELINE=FOLDER)
        --> one clock --> trace events, a process a rank --> trace.json
                      --> a summary: waits, ranks that were late, retransmissions

The format is Chrome's "Trace Event Format": complete events (X) for collectives and their parts, instants (i)
for retransmissions, metadata (M) for names.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from switchagg.errors import UsageError
from worker_lib.timeline import RankTimeline, TimelineRecord

_EPILOG: Final = """\
  SWITCHAGG_TIMELINE=timeline switchagg run -n 4 -- python train.py
  switchagg trace timeline -o trace.json       then open trace.json at https://ui.perfetto.dev

A collective has up to three parts: "queued" behind earlier ones, "waits for rank N", which is the last to
begin it, and "sums", from the first packet's RESULT on. Ranks of one host share a clock. The clocks of
different hosts are aligned by the first RESULTs of collectives, which a switch sends to all ranks at once,
and so to about the difference of the ways from it.
"""
_BUCKET: Final = 10_000_000_000  # nanoseconds of which one offset of a clock is the median
_LEAST: Final = 1000  # nanoseconds of a part that is shown
_LONGEST: Final = 5  # waits that the summary lists

Key = tuple[str, int, int]  # job, membership, number: a collective


@dataclass(frozen=True, slots=True)
class Alignment:
    """The offset of one clock to that of the first file.

    Attributes:
        clock: as in `TimelineHeader`. host: one that has it.
        shared: collectives that it was found from; 0: the hosts' own clocks of the day stand in.
        spread: nanoseconds, half of the collectives are nearer to the fit.
        times, offsets: what to add, in nanoseconds, at these times of the clock; between them it is a line.
    """

    clock: str
    host: str
    shared: int
    spread: float
    times: tuple[float, ...]
    offsets: tuple[float, ...]

    def at(self, time: int) -> int:
        """Returns what to add to a time of this clock."""
        return round(float(np.interp(time, self.times, self.offsets)))


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's part. Seconds; `late` counts collectives that it was the last to begin.

    `waited` is for ranks that began later; `delayed` by how much it, being last, was behind the last but one.
    """

    job: str
    rank: int
    host: str
    collectives: int
    seconds: float
    waited: float
    late: int
    delayed: float
    retransmissions: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of one rank for another, in seconds; `at` from the start of the trace."""

    job: str
    call: str
    number: int
    rank: int
    late: int
    seconds: float
    at: float


def aligned(timelines: Sequence[RankTimeline]) -> list[Alignment]:
    """Returns an alignment for each clock, that of the first timeline first."""
    opened: dict[str, dict[Key, float]] = {}
    hosts: dict[str, str] = {}
    for timeline in timelines:
        clock = timeline.header.clock
        hosts.setdefault(clock, timeline.header.host)
        seen = opened.setdefault(clock, {})
        for record in timeline.records:
            if record.opened:
                key = (timeline.header.job, record.membership, record.number)
                seen[key] = min(seen.get(key, record.opened), record.opened)
    first = timelines[0].header
    found = [Alignment(first.clock, first.host, 0, 0.0, (0.0,), (0.0,))]
    known = dict(opened.pop(first.clock))  # opened, on the first clock
    while opened:
        clock = max(opened, key=lambda each: len(opened[each].keys() & known.keys()))
        seen = opened.pop(clock)
        keys = sorted(seen.keys() & known.keys(), key=seen.__getitem__)
        if keys:
            times = np.array([seen[key] for key in keys], float)
            offsets = np.array([known[key] for key in keys], float) - times
            buckets = ((times - times[0]) // _BUCKET).astype(int)
            middles = [float(np.median(times[buckets == each])) for each in np.unique(buckets)]
            medians = [float(np.median(offsets[buckets == each])) for each in np.unique(buckets)]
            spread = float(np.median(np.abs(offsets - np.interp(times, middles, medians))))
            alignment = Alignment(clock, hosts[clock], len(keys), spread, tuple(middles), tuple(medians))
        else:
            own = next(each.header for each in timelines if each.header.clock == clock)
            offset = (own.unix - own.monotonic) - (first.unix - first.monotonic)
            alignment = Alignment(clock, hosts[clock], 0, 0.0, (0.0,), (float(offset),))
        found.append(alignment)
        known |= {key: time + alignment.at(round(time)) for key, time in seen.items() if key not in known}
    return found


class Trace:
    """The ranks' timelines on one clock.

    Raises:
        UsageError: two files have the same collective of the same rank, and so are of two runs.
    """

    def __init__(self, timelines: Sequence[RankTimeline]) -> None:
        self.timelines = sorted(
            timelines, key=lambda each: (each.header.job, each.header.rank, each.header.unix)
        )
        self.alignments = aligned(self.timelines)
        clocks = {each.clock: each for each in self.alignments}
        self.records = [
            [_moved(record, clocks[each.header.clock].at(record.called)) for record in each.records]
            for each in self.timelines
        ]
        self.start = min((record.called for records in self.records for record in records), default=0)
        # Of each collective, the ranks' files and records, the first to begin first.
        self.collectives: dict[Key, list[tuple[int, TimelineRecord]]] = defaultdict(list)
        for index, records in enumerate(self.records):
            for record in records:
                key = (self.timelines[index].header.job, record.membership, record.number)
                for other, same in self.collectives[key]:
                    if same.rank == record.rank:
                        raise UsageError(
                            f"{self.timelines[other].path} and {self.timelines[index].path} are of two runs "
                            f"of rank {record.rank} of job {key[0]!r}; accepted: the files of one"
                        )
                self.collectives[key].append((index, record))
        for each in self.collectives.values():
            each.sort(key=lambda entry: (not entry[1].begun, entry[1].begun))

    def late(self, key: Key) -> tuple[TimelineRecord, TimelineRecord] | None:
        """Returns the records of the last rank to begin a collective, and of the last but one; or None."""
        begun = [record for _, record in self.collectives[key] if record.begun]
        return (begun[-1], begun[-2]) if len(begun) > 1 else None

    def missing(self) -> dict[str, list[int]]:
        """Returns, for each job, the ranks that joined it and have no file here."""
        out = {}
        for job in dict.fromkeys(each.header.job for each in self.timelines):
            headers = [each.header for each in self.timelines if each.header.job == job]
            absent = set(range(max(each.world_size for each in headers))) - {each.rank for each in headers}
            if absent:
                out[job] = sorted(absent)
        return out

    # ------------------------------------------------------------------ events

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the trace events. Times are microseconds from the start."""
        several = len({each.header.job for each in self.timelines}) > 1
        for index, timeline in enumerate(self.timelines):
            header = timeline.header
            name = f"rank {header.rank} of {header.world_size} on {header.host}"
            if several:
                name = f"{header.job}: {name}"
            yield _metadata("process_name", index, name=name)
            yield _metadata("process_sort_index", index, sort_index=index)
            ends: list[int] = []  # of the lanes: what overlaps is shown side by side
            for record in sorted(self.records[index], key=lambda each: each.called):
                end = max(record.called, record.begun, record.opened, record.ended)
                lane = next((i for i, busy in enumerate(ends) if busy <= record.called), len(ends))
                if lane == len(ends):
                    ends.append(0)
                    thread = f"collectives {lane + 1}" if lane else "collectives"
                    yield _metadata("thread_name", index, lane, name=thread)
                ends[lane] = end
                yield from self._collective(index, lane, header.job, record, end)

    def _collective(
        self, pid: int, tid: int, job: str, record: TimelineRecord, end: int
    ) -> Iterator[dict[str, Any]]:
        place = {"pid": pid, "tid": tid}

        def part(name: str, category: str, begin: int, stop: int, **args: Any) -> dict[str, Any]:
            times = {"ts": (begin - self.start) / 1000, "dur": (stop - begin) / 1000}
            return {"ph": "X", "name": name, "cat": category, **place, **times, "args": args}

        late = self.late((job, record.membership, record.number))
        about: dict[str, Any] = {
            "number": record.number, "membership": record.membership, "status": record.status,
            "packets": record.packets, "results": record.results,
            "retransmissions": sum(packets for _, packets in record.again), "background": record.background,
        }  # fmt: skip
        if late is not None:
            about |= {
                "last rank": late[0].rank,
                "behind the last but one, us": (late[0].begun - late[1].begun) / 1000,
            }
        yield part(record.call, "collective", record.called, end, **about)
        if record.begun - record.called >= _LEAST:
            yield part("queued", "part", record.called, record.begun)
        if record.begun:
            opened = record.opened or end
            waits = late is not None and late[0] is not record and late[0].begun > record.begun
            name = f"waits for rank {late[0].rank}" if waits and late is not None else "first packet"
            if opened - record.begun >= _LEAST:
                yield part(name, "part", record.begun, opened)
        if record.opened and end - record.opened >= _LEAST:
            yield part("sums", "part", record.opened, end)
        for at, packets in record.again:
            instant = {"ph": "i", "name": "retransmission", "cat": "packets", **place, "s": "t"}
            yield {**instant, "ts": (at - self.start) / 1000, "args": {"packets": packets}}

    # ------------------------------------------------------------------ summary

    def ranks(self) -> list[RankSummary]:
        """Returns a summary for each file."""
        waited, delayed = [0] * len(self.timelines), [0] * len(self.timelines)
        late = [0] * len(self.timelines)
        for key, entries in self.collectives.items():
            found = self.late(key)
            if found is None:
                continue
            for index, record in entries:
                if record is found[0]:
                    late[index] += 1
                    delayed[index] += record.begun - found[1].begun
                elif record.begun:
                    waited[index] += found[0].begun - record.begun
        return [
            RankSummary(
                each.header.job, each.header.rank, each.header.host, len(self.records[index]),
                _covered(self.records[index]) / 1e9, waited[index] / 1e9, late[index], delayed[index] / 1e9,
                sum(packets for record in self.records[index] for _, packets in record.again),
            )
            for index, each in enumerate(self.timelines)
        ]  # fmt: skip

    def waits(self) -> list[Wait]:
        """Returns the longest waits, one a collective."""
        found = []
        for key, entries in self.collectives.items():
            if (late := self.late(key)) is not None:
                first = entries[0][1]
                found.append(
                    Wait(
                        key[0], first.call, key[2], first.rank, late[0].rank,
                        (late[0].begun - first.begun) / 1e9, (first.begun - self.start) / 1e9,
                    )
                )  # fmt: skip
        return sorted(found, key=lambda each: -each.seconds)[:_LONGEST]


def _metadata(kind: str, pid: int, tid: int = 0, /, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _moved(record: TimelineRecord, offset: int) -> TimelineRecord:
    """The record with all its times on another clock; one offset, so that its parts stay within it."""
    return replace(
        record,
        called=record.called + offset,
        begun=record.begun and record.begun + offset,
        opened=record.opened and record.opened + offset,
        ended=record.ended and record.ended + offset,
        again=tuple((at + offset, packets) for at, packets in record.again),
    )


def _covered(records: Sequence[TimelineRecord]) -> int:
    """Nanoseconds in which at least one collective was under way."""
    total = until = 0
    for record in sorted(records, key=lambda each: each.called):
        end = max(record.called, record.ended)
        total += max(0, end - max(record.called, until))
        until = max(until, end)
    return total


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        description="Merges the ranks' timelines to one trace of their job, for https://ui.perfetto.dev or "
        "chrome://tracing, and says which rank others waited for.",
        epilog=_EPILOG,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of the ranks, or their folder")
    parser.add_argument("-o", "--output", type=Path, default=Path("trace.json"), help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Writes the trace and prints the summary. Raises `UsageError` for files that are no timelines."""
    trace = Trace([RankTimeline.read(path) for path in _files(args.files)])
    said = {
        "ranks": [asdict(each) for each in trace.ranks()],
        "waits": [asdict(each) for each in trace.waits()],
        "missing": trace.missing(),
        "clocks": [
            {"host": each.host, "collectives": each.shared, "spread_us": each.spread / 1000}
            for each in trace.alignments
        ],
    }
    whole = {"traceEvents": list(trace.events()), "displayTimeUnit": "ms", "otherData": said}
    try:
        args.output.write_text(json.dumps(whole, allow_nan=False, separators=(",", ":")))
    except OSError as error:
        raise UsageError(f"output {args.output} cannot be written: {error.strerror}") from None
    print(json.dumps(said, indent=1) if args.json else _summary(trace, args.output))
    return 0


def _files(given: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in given:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} has no *.jsonl in it; accepted: a folder that SWITCHAGG_TIMELINE named")
        found |= dict.fromkeys(inside)
    return list(found)


def _summary(trace: Trace, output: Path) -> str:
    from switchagg.report.format import microseconds
    from switchagg.report.format import ranks as named
    from switchagg.report.table import listing

    ranks = trace.ranks()
    rows = [
        (
            each.job, each.rank, each.host, each.collectives, f"{each.seconds:.3f} s", f"{each.waited:.3f} s",
            each.late, f"{each.delayed:.3f} s", each.retransmissions,
        )
        for each in ranks
    ]  # fmt: skip
    headings = (
        "job",
        "rank",
        "host",
        "collectives",
        "in them",
        "waited",
        "last",
        "behind by",
        "retransmitted",
    )
    parts = [listing(headings, rows)]
    slowest = max(ranks, key=lambda each: each.delayed)
    if slowest.delayed > 0:
        parts.append(
            f"Rank {slowest.rank} of {slowest.job} was the last to begin {slowest.late} of "
            f"{slowest.collectives} collectives, {slowest.delayed:.3f} s in all behind the last but one."
        )
    waits = [
        (
            f"#{each.number} {each.call}",
            each.rank,
            each.late,
            microseconds(each.seconds * 1e6),
            f"{each.at:.3f} s",
        )
        for each in trace.waits()
    ]
    if waits:
        parts.append(
            "The longest waits:\n" + listing(("collective", "rank", "waited for", "time", "at"), waits)
        )
    parts += [
        f"There is no file of {job}'s rank{'s' if len(absent) > 1 else ''} {named(absent)}."
        for job, absent in trace.missing().items()
    ]
    for each in trace.alignments[1:]:
        parts.append(
            f"The clock of {each.host} is aligned by the first RESULTs of {each.shared:,} collectives; half "
            f"of them are within {microseconds(each.spread / 1000)} of the fit."
            if each.shared
            else f"The clock of {each.host} is not aligned: it shares no collective with the others. Its "
            "clock of the day stands in."
        )
    parts.append(f"{output}: open it at https://ui.perfetto.dev or in chrome://tracing.")
    return "\n\n".join(parts)
