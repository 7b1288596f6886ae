"""What an experiment's function may use while it runs in a rank's process."""

from __future__ import annotations

import json
import sys
from typing import Any

from switchagg.processor_time import process_seconds

_switch_pid = 0


def say(text: str) -> None:
    """Tell whoever watches the experiment how it goes on; a line."""
    tell({"say": text})


def switch_cpu_seconds() -> float:
    """Processor time so far of the process that holds switch and controller, in steps of 10 ms."""
    return process_seconds(_switch_pid)


def begin(switch_pid: int) -> None:
    """Called once, by `rank.py`."""
    global _switch_pid  # noqa: PLW0603  (of this process there is one)
    _switch_pid = switch_pid


def tell(message: dict[str, Any]) -> None:
    """A line of JSON to the lab."""
    sys.stdout.write(json.dumps(message, default=plain) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """For `json.dumps`: NumPy's scalars and arrays as Python's.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}, which JSON cannot carry")
