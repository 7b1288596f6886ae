"""The status of a `Write`, some of whose updates failed: UNKNOWN, with a p4.v1.Error for each update.

A status travels in the trailers of a call, for which clients leave some 8 KB. Messages are cut where they
would not fit; where the codes alone do not (past some 300 updates), the status has a message and no details.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from switchagg.p4runtime.protos import p4runtime_pb2, status_pb2
from switchagg.p4runtime.server.errors import Code, Refused

_ROOM: Final = 7000
_SHOWN: Final = 500
_TYPES: Final = "type.googleapis.com/"
# How long messages may be, and what stands before the name of their type, from the best that may fit on.
_ATTEMPTS: Final = ((2000, _TYPES), (300, _TYPES), (100, _TYPES), (40, ""), (0, ""))


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """What `context.abort_with_status` takes."""

    code: Any
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def write_status(results: Sequence[Refused | None]) -> WriteStatus:
    """The status of a batch: None for an update that was done."""
    failed = [(place, each) for place, each in enumerate(results) if each is not None]
    place, first = failed[0]
    text = f"{len(failed)} of {len(results)} updates failed; update {place}: {first.code.name}: {first}"
    text = _printable(text[:_SHOWN])
    for cut, prefix in _ATTEMPTS:
        status = status_pb2.Status(code=Code.UNKNOWN, message=text)
        for each in results:
            error = p4runtime_pb2.Error()
            if each is not None:
                error.canonical_code = each.code
                error.message = str(each)[:cut]
            status.details.add().Pack(error, prefix)
        data: bytes = status.SerializeToString()
        if len(data) <= _ROOM:
            return WriteStatus(grpc.StatusCode.UNKNOWN, text, (("grpc-status-details-bin", data),))
    return WriteStatus(grpc.StatusCode.UNKNOWN, f"{text} (the batch is too large for details)", ())


def _printable(text: str) -> str:
    return " ".join(text.split())
