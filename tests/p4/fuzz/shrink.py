"""From a sequence of steps that shows a difference to a short one that still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic

import numpy as np

from switchagg.wire.header import WireError, decode, encode

from .steps import Admit, Send, Step

Shows = Callable[[list[Step]], bool]


def shrink(steps: list[Step], shows: Shows, seconds: float = 60.0) -> list[Step]:
    """Returns a sequence for which `shows` still holds and of which no single step can be left out.

    Args:
        steps: `shows` holds for them.
        seconds: gives up looking for a shorter one after so long.
    """
    search = _Search(steps, shows, monotonic() + seconds)
    # Jobs first: admitting them takes longest when steps are repeated.
    search.try_each(_without_a_job)
    search.try_each(_without_workers)
    size = max(1, len(steps) // 2)
    while size > 1:
        search.leave_out(size)
        size //= 2
    while search.leave_out(1) or search.try_each(_without_workers):
        pass
    search.try_each(_simpler)
    return search.steps


class _Search:
    def __init__(self, steps: list[Step], shows: Shows, deadline: float) -> None:
        self.steps = steps
        self._shows = shows
        self._deadline = deadline

    def leave_out(self, size: int) -> bool:
        """Leaves out what it can, so many steps at a time; returns whether it could."""
        before = len(self.steps)
        # From the end: what comes after the difference goes first.
        end = before
        while end > 0:
            begin = max(0, end - size)
            self._try(self.steps[:begin] + self.steps[end:])
            end = begin
        return len(self.steps) < before

    def try_each(self, changes: Callable[[list[Step], int], Iterator[list[Step]]]) -> bool:
        """Makes what changes it can at each step; returns whether it could."""
        done = False
        index = 0
        while index < len(self.steps):
            while index < len(self.steps) and any(map(self._try, changes(self.steps, index))):
                done = True
            index += 1
        return done

    def _try(self, steps: list[Step]) -> bool:
        if monotonic() >= self._deadline or not self._shows(steps):
            return False
        self.steps = steps
        return True


def _without_a_job(steps: list[Step], index: int) -> Iterator[list[Step]]:
    if isinstance(steps[index], Admit):
        yield steps[:index] + steps[index + 1 :]


def _without_workers(steps: list[Step], index: int) -> Iterator[list[Step]]:
    """The same for a smaller job, where a step admits one of several workers."""
    step = steps[index]
    if not isinstance(step, Admit):
        return
    workers = step.job.workers
    size = len(workers) // 2
    while size:
        for begin in range(0, len(workers), size):
            gone = {worker.address for worker in workers[begin : begin + size]}
            left = workers[:begin] + workers[begin + size :]
            if left:
                rest = [each for each in steps if not isinstance(each, Send) or each.source not in gone]
                rest[rest.index(step)] = replace(step, job=replace(step.job, workers=left))
                yield rest
        size //= 2


def _simpler(steps: list[Step], index: int) -> Iterator[list[Step]]:
    """The same with all words zero or else one, or without stations that nobody is at."""
    step = steps[index]
    if isinstance(step, Admit):
        stations = {worker.bit: step.place.stations[worker.bit] for worker in step.job.workers}
        if stations != step.place.stations:
            yield _with(steps, index, replace(step, place=replace(step.place, stations=stations)))
    if not isinstance(step, Send):
        return
    try:
        header, words = decode(step.payload)
    except WireError:
        return
    if words is not None and words.any():
        yield _with(steps, index, replace(step, payload=encode(header, np.zeros_like(words))))
        if (words != 1).any():
            yield _with(steps, index, replace(step, payload=encode(header, np.ones_like(words))))


def _with(steps: list[Step], index: int, step: Step) -> list[Step]:
    return [*steps[:index], step, *steps[index + 1 :]]
