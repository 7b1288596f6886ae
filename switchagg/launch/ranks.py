"""Local ranks of one command, as under torchrun: passes on output and signals, stops all when one fails."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from switchagg.launch.processes import Child, Ended, Output, Processes, Readable, ending
from switchagg.launch.signals import STOP_SIGNALS

KILL_AFTER: Final = 5.0  # seconds between SIGTERM and SIGKILL
DRAIN: Final = 0.5  # seconds to wait for output through a pipe that another process still holds open


def run_ranks(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    *,
    prefix: bool,
    grace: float,
    say: Callable[[str], None],
    signals: int,
    watched: Mapping[int, Callable[[], None]] | None = None,
    inherited: Sequence[int] = (),
    to_stderr: bool = False,
    ended: Callable[[int, int], None] | None = None,
) -> int:
    """Starts a process for each command, with the environment at its side, and waits until all have ended.

    When a rank fails, the others have `grace` seconds to end by themselves, then they get SIGTERM and after 5
    more seconds SIGKILL. A signal is passed on to all, which then have `grace` seconds; a second one kills
    them.

    Args:
        commands: program and arguments by rank.
        prefix: whether lines are marked with their rank; otherwise the ranks write to this process's own
            streams.
        grace: seconds.
        say: takes a message for the user.
        signals: file descriptor of `switchagg.launch.signals.stop_signals`.
        watched: process file descriptors of other processes; the function to call when one ends.
        inherited: a file descriptor for each rank, which it alone inherits; or none at all.
        to_stderr: pass on to standard error also what ranks write to their standard output.
        ended: takes a rank and its exit status (128 + n where signal n killed it) when it ends.

    Returns:
        128 + n after signal n to this process; else the exit status of the first rank that failed, 128 + n
        where signal n killed it; else 0.

    Raises:
        CannotExecute: a command cannot be executed.
    """
    watched = watched or {}
    failed: Child | None = None
    stopping: signal.Signals | None = None
    term_at = kill_at = math.inf
    processes = Processes()
    try:
        for rank, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            output = Output.MARKED if prefix else Output.INHERITED
            processes.start(
                f"rank {rank}", command, environment=environment, output=output, prefix=f"[{rank}] ",
                descriptors=inherited[rank : rank + 1], to_stderr=to_stderr,
            )  # fmt: skip
        for descriptor in (signals, *watched):
            processes.watch(descriptor)
        while processes.running():
            due = min(term_at, kill_at)
            timeout = None if due == math.inf else max(0.0, due - time.monotonic())
            for event in processes.poll(timeout):
                now = time.monotonic()
                if isinstance(event, Ended) and ended is not None:
                    ended(processes.children.index(event.child), _exit_status(event.child))
                match event:
                    case Ended(child) if child.status and failed is None and stopping is None:
                        failed = child
                        others = processes.running()
                        more = f"; the others have {grace:g} seconds to end" if others else ""
                        say(f"{child.name} (pid {child.pid}) {ending(child.status)}{more}")
                        term_at = now + grace
                    case Readable(descriptor) if descriptor != signals:
                        processes.unwatch(descriptor)
                        watched[descriptor]()
                    case Readable():
                        for number in os.read(signals, 64):
                            if number not in STOP_SIGNALS:
                                continue
                            if stopping is None:
                                stopping = signal.Signals(number)
                                term_at, kill_at = math.inf, now + grace
                                processes.signal(number)
                            else:
                                kill_at = now
            now = time.monotonic()
            if now >= term_at:
                term_at, kill_at = math.inf, now + KILL_AFTER
                processes.signal(signal.SIGTERM)
            if now >= kill_at:
                kill_at = math.inf
                processes.signal(signal.SIGKILL)
        processes.drain(DRAIN)
    finally:
        processes.close(patience=0)
    if stopping is not None:
        return 128 + stopping
    return 0 if failed is None else _exit_status(failed)


def _exit_status(child: Child) -> int:
    """Returns a shell's number for how a child ended: its status, or 128 + n where signal n killed it."""
    assert child.status is not None
    return child.status if child.status >= 0 else 128 - child.status
