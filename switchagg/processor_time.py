"""Processor time that has been used so far, in seconds: a process's, its children's, everybody's."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def own_seconds() -> float:
    """Of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def family_seconds() -> float:
    """Of this process and of its children that have ended, and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own_seconds() + usage.ru_utime + usage.ru_stime


def everybody_seconds() -> float:
    """Of all processes, on the cores that this one may use; 0 where the kernel does not say."""
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return 0.0
    # user, nice, system, then idle and waiting for input and output, then interrupts.
    busy = (sum(map(int, fields[1:4])) + sum(map(int, fields[6:8])) for fields in lines if fields[0] in mine)
    return sum(busy) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """Of another process, in steps of the kernel's tick; 0 where it cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
