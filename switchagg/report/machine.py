"""The computer that figures come from, for the JSON files of benchmarks and experiments."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, kernel, bytes of memory, versions, huge pages, socket buffers; None: unknown."""
    huge_pages = _read("/sys/kernel/mm/transparent_hugepage/enabled")  # such as always [madvise] never
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) * 1024,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("switchagg", "numpy", "torch", "mpi4py")},
        "huge_pages": huge_pages.partition("[")[2].partition("]")[0] or None,
        "rmem_max": _number("/proc/sys/net/core/rmem_max"),
        "wmem_max": _number("/proc/sys/net/core/wmem_max"),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _field(path: str, name: str) -> str | None:
    lines = _read(path).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
