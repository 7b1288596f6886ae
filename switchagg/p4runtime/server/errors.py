"""What a P4Runtime server answers when it refuses: a canonical code and a message, as an exception."""

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


class Refused(SwitchAggError):
    """A request that is refused.

    Attributes:
        code: the canonical code.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refused:
    """INVALID_ARGUMENT."""
    return Refused(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> Refused:
    """NOT_FOUND."""
    return Refused(Code.NOT_FOUND, message)


def unimplemented(message: str) -> Refused:
    """UNIMPLEMENTED."""
    return Refused(Code.UNIMPLEMENTED, message)
