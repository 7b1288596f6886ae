"""Kills and stops ranks of jobs with shared slots, at random moments of their all-reduces.

episode   three ranks reduce; one of them is stopped and goes on, again and again; then one is killed, or
          stopped until it is lost, and the two others go on. After the last moment all calls end.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from switchagg.control.embedded import EmbeddedController
from tests.shared_slots import ranks

_STOPS: Final = 4  # of an episode, at most
_LONG_STOP: Final = 0.04  # share of episodes in which a rank is not killed but stopped until it is lost
_MORE_CALLS: Final = 5  # that all survivors make after the last moment
_LOST_SECONDS: Final = ranks.DEADLINE + 0.6  # past the deadline of a rank that is stopped


@dataclass(frozen=True)
class Episode:
    """One job: the signals to its ranks, and their outcome.

    Attributes:
        stops: signals that stopped a rank which then went on.
        end: "killed", or "stopped": until it was lost.
        calls: of the survivors.
        complaint: what was wrong; empty if nothing.
    """

    stops: int
    end: str
    calls: int
    complaint: str

    @property
    def moments(self) -> int:
        """Random moments at which a rank was killed or stopped."""
        return self.stops + 1


class _Rank:
    def __init__(self, context: Any, url: str, job: str, rank: int, seed: int) -> None:
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=ranks.run, args=(theirs, url, job, rank, seed), daemon=True)
        self.process.start()
        theirs.close()
        # Of the fork server's child: a number could be another's by now.
        self._descriptor = os.pidfd_open(self.process.pid)

    def hear(self) -> Any:
        if not self.pipe.poll(ranks.SECONDS):
            raise TimeoutError(f"process {self.process.pid} hangs")
        return self.pipe.recv()

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.join()
        os.close(self._descriptor)
        self.pipe.close()


def episodes(rng: random.Random, moments: int) -> Iterator[Episode]:
    """Yields episodes until ranks have been killed or stopped at so many random moments."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.shared_slots.ranks"])
    done = 0
    with EmbeddedController() as host:
        while done < moments:
            episode = _episode(context, host.url, f"job-{done}", rng)
            done += episode.moments
            yield episode


def _episode(context: Any, url: str, job: str, rng: random.Random) -> Episode:
    seed = rng.getrandbits(32)
    with ExitStack() as stack:
        everybody = []
        for rank in range(ranks.WORKERS):
            everybody.append(_Rank(context, url, job, rank, seed))
            stack.callback(everybody[-1].close)
        for each in everybody:
            if (said := each.hear()) != "ready":
                return Episode(0, "", 0, f"{said}")
        stops = rng.randint(0, _STOPS)
        for _ in range(stops):
            time.sleep(rng.uniform(0, 0.02))
            victim = rng.choice(everybody)
            victim.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, 0.03))
            victim.signal(signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.05))
        victim = rng.choice(everybody)
        end = "stopped" if rng.random() < _LONG_STOP else "killed"
        victim.signal(signal.SIGSTOP if end == "stopped" else signal.SIGKILL)
        survivors = [each for each in everybody if each is not victim]
        if end == "stopped":
            time.sleep(_LOST_SECONDS)
            victim.signal(signal.SIGCONT)  # it is about to write into slots that the others have left
        return Episode(stops, end, *_outcome(survivors))


def _outcome(survivors: list[_Rank]) -> tuple[int, str]:
    for each in survivors:
        each.pipe.send(None)
    said = [each.hear() for each in survivors]
    if any(not isinstance(calls, int) for calls in said):
        return 0, f"{said}"
    last = max(said) + _MORE_CALLS
    for each in survivors:
        each.pipe.send(last)
    said = [each.hear() for each in survivors]
    return last, "" if said == ["over"] * len(survivors) else f"{said}"
