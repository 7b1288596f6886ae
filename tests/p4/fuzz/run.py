"""Fuzzes one device: so many packets, every branch taken, and what was found made short."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Final

from switchagg.p4program.entries import job_entries, switch_entries
from switchagg.p4program.program import (
    ADMISSION,
    COMPLETING,
    MAX_JOBS,
    OUTCOMES,
    OUTCOMES_PER_JOB,
    Entries,
    JobPlace,
    Outcome,
    Station,
    Target,
)
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import COUNTERS
from tests.p4.device_under_test import DeviceUnderTest
from tests.p4.engine import ADDRESS, install_switch
from tests.p4.model import Model
from tests.p4.native import UNTOLD, EtherSwitchDevice
from tests.switchagg.conformance.traffic import HARMLESS, HOSTILE

from .bystanders import KINDS
from .draw import Drawer
from .replay import Differs, Pair, ports_of, replay
from .shrink import shrink
from .steps import Send, Step
from .wrappers import Counted, kind_of

EPISODE: Final = 400
"""Packets of an episode, at most."""

PATIENCE: Final = 20_000
"""Packets, at most, beyond those that were asked for, until every branch was taken."""

_AUDIENCES: Final = ("all", "one", "the only one")
_ANSWERS: Final = (
    "an echo",
    *(f"RESULT to {who}, {what}" for who in _AUDIENCES for what in ("empty", "with words")),
    "a reply echoed",
    "a reply set aside",
    "RESULT to one, bare to the others",
    "RESULT bare to all",
    "a full slot raised",
    "a full slot raised, directed",
    "a repeat raised",
    "a RESULT handed down to all",
    "a RESULT handed down to one",
    "a bare RESULT handed down",
    *KINDS,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A difference: what it is, and steps that lead to it from an empty switch."""

    what: str
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run.

    Attributes:
        following: packets of workers that follow the window rule.
        hits: how often each branch was taken.
    """

    packets: int
    following: int
    seconds: float
    hits: Counter[str]
    found: Found | None

    @property
    def missed(self) -> list[str]:
        """Branches that no packet took."""
        return [name for name, count in self.hits.items() if not count]


def branches(target: Target) -> list[str]:
    """Returns the names of all that a run must have done at least once."""
    job = JobEntry(0, 0, 2, target.words, 0, (WorkerEntry(0, "10.0.0.1", 1, 0),))
    entries = (
        *switch_entries(target, ADDRESS, ()).tables,
        *job_entries(target, job, JobPlace(0, {0: Station(1, 1)})).tables,
    )
    return [
        *(f"counter: {name}" for name in COUNTERS),
        *(f"outcome: {name}" for name in _outcomes().values()),
        *dict.fromkeys(f"admission: {kind_of(entry)}" for entry in entries if entry.table == ADMISSION),
        *(f"answer: {name}" for name in _ANSWERS),
        *(f"trick: {name}" for name in (*HARMLESS, *HOSTILE)),
        "another port",
        "a job leaves",
        "a job joins",
    ]


def fuzz(bare: DeviceUnderTest, packets: int, seed: str) -> Report:
    """Sends a device packets until it differs.

    It ends after so many packets, once every branch was taken and most packets were of workers that follow
    the window rule.

    Args:
        bare: with nothing in its tables.
        seed: the same, with the same `packets`, makes the same run.
    """
    began = perf_counter()
    dut = Counted(bare)
    drawer = Drawer(Random(seed), dut.target)
    common = install_switch(dut, ports_of(dut.target))
    pair = Pair(dut, common)
    history: list[Step] = []
    hits: Counter[str] = Counter()
    what = None
    count = 0
    enough = False
    try:
        while count < packets or (count < packets + PATIENCE and not enough):
            for step in drawer.episode(EPISODE):
                history.append(step)
                count += isinstance(step, Send)
                drawer.answer(pair.apply(step))
            pair.check()
            if count >= packets:
                hits = _hits(dut, pair, drawer, native=isinstance(bare, EtherSwitchDevice))
                enough = all(hits.values()) and 2 * drawer.following > count
    except Differs as difference:
        what = str(difference)
        hits = _hits(dut, pair, drawer, native=isinstance(bare, EtherSwitchDevice))
    seconds = perf_counter() - began
    pair.close()
    found = None if what is None else _shortest(bare, common, history, what)
    return Report(count, drawer.following, seconds, hits, found)


def _outcomes() -> dict[int, str]:
    names = {int(outcome): outcome.name for outcome in Outcome}
    completing = {o + COMPLETING: f"{o.name}, completing" for o in Outcome if o >= Outcome.SKIP}
    return names | completing


def _hits(dut: Counted, pair: Pair, drawer: Drawer, *, native: bool) -> Counter[str]:
    """Returns how often each branch was taken so far."""
    hits = Counter(dict.fromkeys(branches(dut.target), 0))
    hits.update({f"counter: {name}": count for name, count in pair.counters().items()})
    for cell, name in _outcomes().items():
        cells = range(cell, MAX_JOBS * OUTCOMES_PER_JOB, OUTCOMES_PER_JOB)
        hits[f"outcome: {name}"] = sum(dut.cell(OUTCOMES, each) for each in cells)
    hits.update({f"admission: {kind}": count for kind, count in dut.admissions().items()})
    if native:
        for kind in UNTOLD:
            assert not hits.pop(f"admission: {kind}"), f"{kind} is told after all"
    hits.update({f"answer: {kind}": count for kind, count in pair.hits.items()})
    hits.update(drawer.hits)
    return hits


def _shortest(dut: DeviceUnderTest, common: Entries, history: list[Step], what: str) -> Found:
    """Returns few steps of `history` that lead to a difference, which is then often another one."""

    def difference(steps: list[Step]) -> str | None:
        if isinstance(dut, Model):
            dut.reset()
        return replay(dut, steps, common)

    # Most differences need no more than the episode that they show in; some, what an earlier one left.
    size = 2 * EPISODE
    while size < len(history) and difference(history[-size:]) is None:
        size *= 4
    steps = history[-size:]
    if difference(steps) is None:
        return Found(f"{what}\nNot seen again when repeated.", steps)
    steps = shrink(steps, lambda shorter: difference(shorter) is not None)
    return Found(difference(steps) or what, steps)
