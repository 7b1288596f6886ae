"""Local ranks of one command, as under torchrun: passes on output and signals, stops all when one fails.

`switchagg/launch/hosts.py` has those of several hosts, where this runs on each.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from switchagg.launch.cores import shares
from switchagg.launch.processes import Child, Ended, Output, Processes, Readable, ending
from switchagg.launch.signals import STOP_SIGNALS
from worker_lib.secret import Secret, hand_on

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
    first: int = 0,
    bind: bool,
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
        first: number of the first of these ranks.
        bind: each to its share of the cores that this process may use (`switchagg.launch.cores`).

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
    cores = shares(os.sched_getaffinity(0), len(commands)) if bind else [set[int]()] * len(commands)
    try:
        for index, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            output, rank = Output.MARKED if prefix else Output.INHERITED, first + index
            processes.start(
                f"rank {rank}", command, environment=environment, output=output, prefix=f"[{rank}] ",
                descriptors=inherited[index : index + 1], to_stderr=to_stderr,
                cores=cores[index],
            )  # fmt: skip
        for descriptor in (signals, *watched):
            processes.watch(descriptor)
        while processes.running():
            due = min(term_at, kill_at)
            timeout = None if due == math.inf else max(0.0, due - time.monotonic())
            for event in processes.poll(timeout):
                now = time.monotonic()
                if isinstance(event, Ended) and ended is not None:
                    ended(first + processes.children.index(event.child), exit_status(event.child))
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
    return 0 if failed is None else exit_status(failed)


def exit_status(child: Child) -> int:
    """Returns a shell's number for how a child ended: its status, or 128 + n where signal n killed it."""
    assert child.status is not None
    return child.status if child.status >= 0 else 128 - child.status


def rank_environments(
    common: Mapping[str, str], count: int, pipes: Sequence[int] = (), first: int = 0
) -> list[dict[str, str]]:
    """Returns an environment for each of the ranks of one host.

    Args:
        common: that of all ranks of the job.
        pipes: of `sealed_pipes`, one for each rank; none where sums are not sealed.
        first: number of the first of these ranks.
    """
    environments = [
        {**common, "RANK": str(first + local), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count)}
        for local in range(count)
    ]
    for environment, pipe in zip(environments, pipes, strict=False):
        environment["SWITCHAGG_SEAL"] = f"fd:{pipe}"
    return environments


def sealed_pipes(secret: Secret, count: int, stack: contextlib.ExitStack) -> list[int]:
    """Returns a pipe for each rank with the secret in it; this process and its ranks leave no core files."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # 1 byte has room for no core file, and keeps the kernel from a handler's pipe too, as 0 does not.
    least = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (least, most))
    pipes = [hand_on(secret) for _ in range(count)]
    for pipe in pipes:
        stack.callback(os.close, pipe)
    return pipes


def unusable(program: str, say: Callable[[str], None]) -> int | None:
    """Returns the shell's exit status for a program that cannot be run, and says why; else None."""
    if shutil.which(program) is not None:
        return None
    if os.path.sep in program and os.path.exists(program):
        say(f"{program}: not an executable file")
        return 126
    say(f"{program}: command not found")
    return 127


def free_port(address: str = "127.0.0.1") -> int:
    """Returns a TCP port that nobody listens at now, for the ranks' rendezvous."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
