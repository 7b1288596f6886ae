"""Errors of a P4Runtime server: a canonical code and a message, as an exception."""

from __future__ import annotations

import enum

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


def invalid(message: str) -> StatusError:
    """INVALID_ARGUMENT."""
    return StatusError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    """NOT_FOUND."""
    return StatusError(Code.NOT_FOUND, message)


def unimplemented(message: str) -> StatusError:
    """UNIMPLEMENTED."""
    return StatusError(Code.UNIMPLEMENTED, message)


def failed_precondition(message: str) -> StatusError:
    """FAILED_PRECONDITION."""
    return StatusError(Code.FAILED_PRECONDITION, message)
