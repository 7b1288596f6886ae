"""Errors of a P4Runtime server: a canonical code and a message, as an exception."""

from __future__ import annotations

import enum
from functools import partial

from switchagg.errors import SwitchAggError


class Code(enum.IntEnum):
    """The canonical codes (google.rpc.Code) that this server answers with."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13


class StatusError(SwitchAggError):
    """A request fails with the canonical code `code`."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


invalid = partial(StatusError, Code.INVALID_ARGUMENT)
not_found = partial(StatusError, Code.NOT_FOUND)
already_exists = partial(StatusError, Code.ALREADY_EXISTS)
permission_denied = partial(StatusError, Code.PERMISSION_DENIED)
resource_exhausted = partial(StatusError, Code.RESOURCE_EXHAUSTED)
failed_precondition = partial(StatusError, Code.FAILED_PRECONDITION)
out_of_range = partial(StatusError, Code.OUT_OF_RANGE)
unimplemented = partial(StatusError, Code.UNIMPLEMENTED)
internal = partial(StatusError, Code.INTERNAL)
