"""Requests that are no HTTP in the middle."""

from __future__ import annotations

import logging

import pytest

from tests.switchagg.control.served_controller import serving


def test_a_body_that_is_no_http_is_answered_once_and_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as place, caplog.at_level(logging.ERROR):
        answer = place.raw(
            b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk\r\n"
        )
        assert place.call("GET", "/healthz")[0] == 200
    assert answer.count(b"content-length") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert not [record.getMessage() for record in caplog.records]
