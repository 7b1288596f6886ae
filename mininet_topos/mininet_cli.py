"""The command `workers CMD` of Mininet's shell: runs CMD on every worker host at once, as its rank."""

from __future__ import annotations

import os
import shlex
import signal
from typing import Any

import mininet.cli
from mininet.log import error, output
from mininet.util import pmonitor

from mininet_topos import programs
from mininet_topos.hosts import WorkerHost


def run_on_workers(net: Any, line: str) -> dict[str, int]:
    """Runs a shell's command line on every worker host. Returns the exit status of each.

    Ctrl-C ends all of them. `switchagg` and `python` are of the environment that has switchagg.
    """
    members = [each for each in net.hosts if isinstance(each, WorkerHost) and each.environment]
    if not members:
        error("no worker host has a rank: is there a `switchagg` controller?\n")
        return {}
    folder = os.path.dirname(programs.python())
    started = {
        each: each.popen(
            ["sh", "-c", line],
            stderr=-2,
            env={**os.environ, **each.environment, "PATH": f"{folder}:{os.environ.get('PATH', os.defpath)}"},
        )
        for each in members
    }
    try:
        for each, said in pmonitor(dict(started)):
            if said.strip():
                output(f"[{each.name}] {said.rstrip()}\n")
    except KeyboardInterrupt:
        for process in started.values():
            process.send_signal(signal.SIGINT)
    return {each.name: process.wait() for each, process in started.items()}


def _do_workers(self: Any, line: str) -> None:
    """Run a command on every worker host, as its rank. Usage: workers switchagg topo check"""
    if not shlex.split(line):
        error("usage: workers CMD [argument ...]\n")
        return
    failed = {name: status for name, status in run_on_workers(self.mn, line).items() if status}
    if failed:
        error("failed: " + ", ".join(f"{name} ({status})" for name, status in failed.items()) + "\n")


def install() -> None:
    """Adds the command to Mininet's shell."""
    mininet.cli.CLI.do_workers = _do_workers
