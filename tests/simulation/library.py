"""The C functions of `tests/native/simulation/system.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final


class Settings(ctypes.Structure):
    """The seed, the hosts, and what the network does to packets. Times are nanoseconds."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("switches", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        *((name, ctypes.c_int64) for name in ("delay", "jitter", "latency", "queue", "inbox")),
        *((name, ctypes.c_int64) for name in ("reordered_by", "late_by")),
        ("ns_per_byte", ctypes.c_double),
        *((name, ctypes.c_double) for name in ("lost", "damaged", "reordered", "twice", "twice_late")),
    )


class CallFields(ctypes.Structure):
    """A `_native.Call`, with the names of its arguments."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "op", "dtype", "bits", "root", "sparse")),
        *((name, ctypes.c_uint32) for name in ("block", "shape_crc", "workers", "rank", "policy")),
        *((name, ctypes.c_uint64) for name in ("count", "fingerprint_count", "in_begin", "in_end")),
        *((name, ctypes.c_uint64) for name in ("out_begin", "out_end")),
        *((name, ctypes.c_void_p) for name in ("input", "output", "mask", "memory", "union_out")),
        *((name, ctypes.c_int32) for name in ("zero_fill", "auto_zeros", "auto_block", "auto_lanes")),
    )


class Failed(Exception):
    """A C function has failed."""


class Library:
    """The library, once `load` was called."""

    def __init__(self) -> None:
        self._c: Any = None

    def load(self, path: Path) -> None:
        self._c = c = ctypes.CDLL(str(path))
        c.system_failure.restype = ctypes.c_char_p
        for name in ("system_packets", "system_hash"):
            getattr(c, name).restype = ctypes.c_uint64
        signed, number, pointer = ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p
        c.system_stop.argtypes = [number, signed]
        c.system_run.argtypes = [signed]
        c.system_open.argtypes = [pointer, pointer, signed, ctypes.c_char_p, ctypes.c_char_p]
        c.system_met.argtypes = [pointer, signed]
        c.engine_submit.argtypes = [number, pointer, signed, ctypes.c_int, number]
        c.engine_finish.argtypes = c.engine_fail_from.argtypes = c.engine_silence.argtypes = [
            number,
            ctypes.c_uint64,
        ]
        c.engine_move.argtypes = [number, number, pointer, ctypes.c_uint64, number, ctypes.c_int]
        for name in _SIGNED:
            getattr(c, name).restype = signed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._c, name)

    def checked(self, name: str, *arguments: Any) -> int:
        """Calls a function; raises `Failed` with its reason."""
        found = int(getattr(self._c, name)(*arguments))
        if found == -1:
            raise Failed(self._c.system_failure().decode())
        return found

    def run(self, until: int) -> int | None:
        """Has the network go on until a time, or until an engine has news; returns that one's host."""
        host = self.checked("system_run", until)
        return None if host == -2 else host

    def met(self) -> list[int]:
        """The ids of the packets' faults that have happened."""
        count = int(self._c.system_met(None, 0))
        into = (ctypes.c_uint64 * count)()
        self._c.system_met(into, count)
        return list(into)

    def cells(self) -> list[int]:
        """Counts of packets' faults by leaf, state and fault."""
        into = (ctypes.c_uint64 * (2 * 8 * 11))()
        self._c.system_cells(into)
        return list(into)


_SIGNED: Final = (
    "system_open", "system_now", "system_met", "system_run", "switch_start", "switch_add", "switch_remove",
    "switch_fence", "switch_packet_out", "switch_slot", "worker_socket", "engine_open", "engine_submit",
    "work_status", "engine_freeze", "engine_finish", "engine_resume", "engine_suspend", "engine_move",
    "engine_refused",
    "engine_fail_from", "engine_abort", "engine_close", "engine_request_pause", "engine_set_policy",
    "engine_silence", "engine_fields", "engine_stats", "engine_report",
)  # fmt: skip
library: Final = Library()


def numbers(values: Sequence[int]) -> Any:
    """An array of 32-bit numbers."""
    return (ctypes.c_uint32 * len(values))(*(value & 0xFFFFFFFF for value in values))
