"""Processor time that processes have used so far, in seconds."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def own_seconds() -> float:
    """Of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_seconds(pid: int) -> float:
    """Of another process, in steps of the kernel's tick; 0 where it cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
