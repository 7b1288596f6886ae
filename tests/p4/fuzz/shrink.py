"""From a sequence of steps that shows a difference to a short one that still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic

import numpy as np

from switchagg.wire import WireError, decode, encode

from .steps import Admit, Send, Step

Shows = Callable[[list[Step]], bool]


def shrink(steps: list[Step], shows: Shows, seconds: float = 60.0) -> list[Step]:
    """Returns a sequence for which `shows` still holds and of which no single step can be left out.

    Args:
        steps: `shows` holds for them.
        seconds: gives up looking for a shorter one after so long.
    """
    deadline = monotonic() + seconds
    size = max(1, len(steps) // 2)
    while monotonic() < deadline:
        shorter = _without_chunks(steps, shows, size, deadline)
        if size > 1:
            size //= 2
        elif len(shorter) == len(steps):
            break
        steps = shorter
    for index in range(len(steps)):
        for simpler in _simpler(steps[index]):
            changed = [*steps[:index], simpler, *steps[index + 1 :]]
            if monotonic() < deadline and shows(changed):
                steps = changed
    return steps


def _without_chunks(steps: list[Step], shows: Shows, size: int, deadline: float) -> list[Step]:
    # From the end: what comes after the difference goes first.
    end = len(steps)
    while end > 0 and monotonic() < deadline:
        begin = max(0, end - size)
        shorter = steps[:begin] + steps[end:]
        if shows(shorter):
            steps = shorter
        end = begin
    return steps


def _simpler(step: Step) -> Iterator[Step]:
    """Ways in which a step could be less, each to be tried on the step as it was."""
    if isinstance(step, Admit):
        for slots in (2, 4, 8, 16, 32):
            if slots < step.job.slots:
                yield replace(step, job=replace(step.job, slots=slots))
    if isinstance(step, Send):
        try:
            header, words = decode(step.payload)
        except WireError:
            return
        if words is not None:
            for values in (np.ones_like(words), np.zeros_like(words)):
                yield replace(step, payload=encode(header, values))
