"""The C client: `switchagg.h` and `libswitchagg.so`, for programs in C and in languages that call C.

    C program --> libswitchagg.so (switchagg/native/c/client.cpp) --embedded Python--> call(...) --> Session

    cc program.c $(python -m worker_lib.c --cflags --libs)

The library starts an interpreter in the program's process, or uses the one that is there, and calls `call`
with numbers, strings and addresses only. docs/c.md says why it is not a second implementation.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from switchagg.errors import (
    AdmissionError,
    CollectiveTimeout,
    IntegrityError,
    MismatchError,
    SessionBrokenError,
    SwitchError,
    UsageError,
    WorkerLostError,
)
from worker_lib.connect import connect
from worker_lib.session import Session

OK: Final = 0
OTHER: Final = 9
STATUSES: Final[dict[type[Exception], int]] = {
    UsageError: 1,
    MismatchError: 2,
    AdmissionError: 3,
    WorkerLostError: 4,
    CollectiveTimeout: 5,
    IntegrityError: 7,
    SwitchError: 6,
    SessionBrokenError: 8,
}
"""`switchagg_status` of an exception: that of the first class which it is an instance of."""

_NUMBERS: Final[dict[str, type]] = {
    **dict.fromkeys(
        ("rank", "world_size", "words", "slots", "priority", "bits", "min_bits", "block_size"), int
    ),
    **dict.fromkeys(("timeout", "join_timeout", "deadline"), float),
}
_CONNECT: Final = (
    "controller", "job", "rank", "world_size", "address", "timeout", "join_timeout", "words", "slots",
    "transport", "on_loss", "deadline", "priority", "credential", "switch", "congestion", "check",
    "seal", "timeline",
)  # fmt: skip
_ALLREDUCE: Final = ("bits", "min_bits", "blocks", "block_size", "accuracy", "timeout")
_sessions: Final[dict[int, Session]] = {}
_handles: Final = itertools.count(1)


def call(name: str, handle: int, *given: Any) -> tuple[int, str, int]:
    """Carries out a call of the C library.

    Args:
        name: of the function in `switchagg.h`, without its prefix.
        handle: of the session; 0 for `connect`.
        given: its arguments; an array as an address and a count.

    Returns:
        The `switchagg_status`, the message if it is not OK, and the result.
    """
    try:
        if name == "connect":
            return OK, "", _connect(*given)
        if handle not in _sessions:
            raise UsageError("session is NULL or closed; accepted: what switchagg_connect made")
        session = _sessions.pop(handle) if name == "close" else _sessions[handle]
        return OK, "", int(_FUNCTIONS[name](session, *given) or 0)
    except Exception as error:
        status = next((number for kind, number in STATUSES.items() if isinstance(error, kind)), OTHER)
        return status, str(error) if status != OTHER else f"{type(error).__name__}: {error}", 0


def settings(given: Sequence[str], accepted: Sequence[str]) -> dict[str, Any]:
    """Returns keyword arguments from strings "name=value".

    Raises:
        UsageError: a name that is not accepted or comes twice, or a value of the wrong type.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or name not in accepted or name in found:
            raise UsageError(
                f"setting {each!r}: accepted, each once: {', '.join(f'{n}=...' for n in accepted)}"
            )
        value: Any = text
        if name == "check":
            if text not in ("0", "1"):
                raise UsageError(f"setting {each!r}: accepted: 0, 1")
            value = text == "1"
        elif (number := _NUMBERS.get(name)) is not None and not (name == "bits" and text == "auto"):
            try:
                value = number(text)
            except ValueError:
                raise UsageError(f"setting {each!r}: accepted: a number") from None
        found[name] = value
    return found


def array(address: int, count: int, type_: str) -> np.ndarray[Any, Any]:
    """The caller's memory as an array of one dimension, not copied.

    Raises:
        UsageError: there is no such type, or no memory.
    """
    try:
        if type_ == "bfloat16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(type_)
    except (TypeError, ImportError) as error:
        raise UsageError(f"type is {type_!r} ({error}); accepted: NumPy's names of types") from None
    if dtype.hasobject or not dtype.isnative or not dtype.itemsize:
        raise UsageError(f"type is {type_!r}; accepted: types of numbers in the processor's byte order")
    if not count:
        return np.empty(0, dtype)
    if not address:
        raise UsageError(f"data is NULL; accepted: the address of {count} elements")
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def _connect(given: Sequence[str]) -> int:
    session = connect(**settings(given, _CONNECT))
    handle = next(_handles)
    _sessions[handle] = session
    return handle


def _allreduce(session: Session, address: int, count: int, type_: str, op: str, given: Sequence[str]) -> None:
    options = settings(given, _ALLREDUCE)
    session.allreduce(array(address, count, type_), op=op, **options)


def _broadcast(session: Session, address: int, count: int, root: int) -> None:
    session.broadcast(array(address, count, "uint8"), root)


def _allgather(session: Session, address: int, count: int, to: int) -> None:
    n = session.world_size
    session.allgather(array(address, count, "uint8"), array(to, n * count, "uint8").reshape(n, count))


_FUNCTIONS: Final[dict[str, Any]] = {
    "rank": lambda session: session.rank,
    "world_size": lambda session: session.world_size,
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "barrier": Session.barrier,
    "close": Session.close,
}
