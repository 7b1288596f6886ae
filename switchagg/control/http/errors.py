"""The answer of a call that fails: a status, and ``{"error": {"code": ..., "message": ...}}``.

400 the request itself is wrong; 401, 403 who asks; 404 nobody of that name; 409 the state of jobs and
switches does not allow it, whether now or ever; 503 a switch or the controller cannot do its part.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from switchagg.errors import AdmissionError

_CODES: Final = {
    HTTPStatus.BAD_REQUEST: ("bad_request", "rank_out_of_range", "world_size"),
    HTTPStatus.UNAUTHORIZED: ("unauthorized",),
    HTTPStatus.FORBIDDEN: ("forbidden", "wrong_token", "quota"),
    HTTPStatus.NOT_FOUND: ("not_found",),
    HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed",),
    HTTPStatus.CONFLICT: (
        *("name_taken", "rank_taken", "address_taken", "world_size_mismatch", "settings_mismatch"),
        *("join_timeout", "draining", "evicted", "failed", "lost", "no_slots", "no_memory", "no_switch"),
    ),
    HTTPStatus.LENGTH_REQUIRED: ("length_required",),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("too_large",),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("internal",),
    HTTPStatus.SERVICE_UNAVAILABLE: ("switch", "stopping"),
}
STATUS: Final = {code: status for status, codes in _CODES.items() for code in codes}


def status_of(error: AdmissionError) -> HTTPStatus:
    """Returns the status that goes with the code of a refusal."""
    return STATUS.get(error.code, HTTPStatus.BAD_REQUEST)


def error_body(code: str, message: str) -> bytes:
    """Returns the body of a failure."""
    return json.dumps({"error": {"code": code, "message": message}}).encode() + b"\n"
