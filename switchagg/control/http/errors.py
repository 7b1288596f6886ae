"""The answer of a call that fails: a status, and ``{"error": {"code": ..., "message": ...}}``.

400 the request itself is wrong; 401, 403 who asks; 404 nobody of that name; 409 the state of jobs and
switches does not allow it, whether now or ever; 503 a switch or the controller cannot do its part.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from switchagg.errors import AdmissionError

STATUS: Final = {
    "bad_request": HTTPStatus.BAD_REQUEST,
    "rank_out_of_range": HTTPStatus.BAD_REQUEST,
    "world_size": HTTPStatus.BAD_REQUEST,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "wrong_token": HTTPStatus.FORBIDDEN,
    "quota": HTTPStatus.FORBIDDEN,
    "not_found": HTTPStatus.NOT_FOUND,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "name_taken": HTTPStatus.CONFLICT,
    "rank_taken": HTTPStatus.CONFLICT,
    "address_taken": HTTPStatus.CONFLICT,
    "world_size_mismatch": HTTPStatus.CONFLICT,
    "settings_mismatch": HTTPStatus.CONFLICT,
    "join_timeout": HTTPStatus.CONFLICT,
    "draining": HTTPStatus.CONFLICT,
    "evicted": HTTPStatus.CONFLICT,
    "failed": HTTPStatus.CONFLICT,
    "lost": HTTPStatus.CONFLICT,
    "no_slots": HTTPStatus.CONFLICT,
    "no_memory": HTTPStatus.CONFLICT,
    "no_switch": HTTPStatus.CONFLICT,
    "length_required": HTTPStatus.LENGTH_REQUIRED,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
    "switch": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
}


class HttpError(Exception):
    """An answer other than success."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> HTTPStatus:
        """The status that goes with its code."""
        return STATUS[self.code]


def status_of(error: AdmissionError) -> HTTPStatus:
    """Returns the status that goes with the code of a refusal."""
    return STATUS.get(error.code, HTTPStatus.BAD_REQUEST)


def error_body(code: str, message: str) -> bytes:
    """Returns the body of a failure."""
    return json.dumps({"error": {"code": code, "message": message}}).encode() + b"\n"
