"""Runs episodes against one controller: all lanes at once, each with its own thread and processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from . import judge
from .plan import DEADLINE, Episode, Event, Lane, draw

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 90.0  # seconds for an episode


class Rank:
    """A worker's process, used for one episode after the other until it is struck."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def start(self, command: dict[str, Any]) -> None:
        """Sends it into an episode."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Kills the process and waits for its end."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Report:
    """The result of a run."""

    seed: str
    episodes: Counter[str] = field(default_factory=Counter)
    collectives: int = 0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, episode: Episode, said: dict[int, list[dict[str, Any]]], found: list[str], struck: bool
    ) -> None:
        """Takes up one episode."""
        with self.lock:
            what = f"{episode.lane.job}: {episode.event.value}" + (
                " (too late)" if episode.event in (Event.kill, Event.stop) and not struck else ""
            )
            self.episodes[what] += 1
            self.collectives += len(
                {line["index"] for lines in said.values() for line in lines if line["kind"] == "done"}
            )
            self.errors += [
                f"{episode.lane.job} {episode.number} ({episode.event.value}, rank {episode.victim} of "
                f"{episode.world_size}): {each}"
                for each in found
            ]


def soak(
    controller: str,
    lanes: Sequence[Lane],
    seconds: float,
    seed: str,
    tell: Callable[[Episode, list[str]], None] = lambda _episode, _found: None,
) -> Report:
    """Plays for so many seconds; every episode that has begun is played to its end."""
    report = Report(seed)
    until = time.monotonic() + seconds

    def play_lane(lane: Lane) -> None:
        rng = Random(f"{seed}/{lane.job}")
        ranks: dict[int, Rank] = {}
        number = 0
        try:
            while time.monotonic() < until:
                episode = draw(lane, number, rng)
                said, struck = _play(episode, ranks, controller)
                found = judge.faults(episode, said, struck=struck)
                report.add(episode, said, found, struck)
                tell(episode, found)
                number += 1
        except BaseException as error:
            with report.lock:
                report.errors.append(f"{lane.job} {number}: {error!r}")
            raise
        finally:
            for rank in ranks.values():
                rank.end()

    threads = [threading.Thread(target=play_lane, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report


def _play(
    episode: Episode, ranks: dict[int, Rank], controller: str
) -> tuple[dict[int, list[dict[str, Any]]], bool]:
    """Runs one episode. Returns what each rank said, and whether the victim was struck in the middle."""
    members = {place: ranks.get(place) or Rank() for place in range(episode.world_size)}
    ranks.update(members)
    late = episode.victim if episode.event is Event.late else None
    for place, rank in members.items():
        if place != late:
            rank.start(episode.command(place, controller))
    if late is not None:
        time.sleep(episode.after)
        members[late].start(episode.command(late, controller))
    said: dict[int, list[dict[str, Any]]] = {place: [] for place in members}
    deadline = time.monotonic() + PATIENCE
    struck = False
    if episode.event in (Event.kill, Event.stop):
        victim = members[episode.victim]
        _collect(victim, said[episode.victim], deadline, lambda line: line["kind"] in ("running", "end"))
        time.sleep(episode.after)
        while not victim.lines.empty():
            _collect(victim, said[episode.victim], deadline, lambda _line: True)
        struck = not any(line["kind"] == "end" for line in said[episode.victim])
        victim.signal(signal.SIGKILL if episode.event is Event.kill else signal.SIGSTOP)
    for place, rank in members.items():
        if not (struck and place == episode.victim):
            _collect(rank, said[place], deadline, lambda line: line["kind"] == "end")
    if episode.event is Event.stop:
        time.sleep(DEADLINE)
        members[episode.victim].signal(signal.SIGCONT)
    if episode.event is Event.kill or (struck and episode.event is Event.stop):
        rank = ranks.pop(episode.victim)
        if episode.event is Event.stop:
            _collect(rank, said[episode.victim], deadline, lambda line: line["kind"] == "end")
        else:
            # It may have got to its end between our last look and the blow.
            rank.process.wait(PATIENCE)
            _collect(rank, said[episode.victim], deadline, lambda _line: False)
            struck = not any(line["kind"] == "end" for line in said[episode.victim])
        rank.end()
    return said, struck


def _collect(
    rank: Rank, into: list[dict[str, Any]], deadline: float, enough: Callable[[dict[str, Any]], bool]
) -> None:
    """Takes lines until one is enough, the process has ended, or the time is up."""
    if into and into[-1]["kind"] == "end":
        return
    while True:
        try:
            line = rank.lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return
        if line is None:
            return
        into.append(line)
        if enough(line):
            return
