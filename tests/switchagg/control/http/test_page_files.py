"""The files of the page: the paths that are served, and their headers."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.control.http.page_files import PAGE_HEADERS, page_file


def test_the_page_and_what_it_asks_for() -> None:
    page = page_file("")
    assert page is not None
    assert page == page_file("index.html")
    assert page.media_type == "text/html; charset=utf-8"
    asked = re.findall(r'(?:src|href)="page/([^"]+)"', page.content.decode())
    assert "main.js" in asked
    seen = set()
    while asked:
        name = asked.pop()
        if name in seen:
            continue
        seen.add(name)
        file = page_file(name)
        assert file is not None, name
        if name.endswith(".js"):
            assert file.media_type == "text/javascript; charset=utf-8"
            asked += re.findall(r'from "\./([^"]+)"', file.content.decode())
    assert len(seen) > 10


@pytest.mark.parametrize(
    "name", ["../page_files.py", "/etc/passwd", "page_files.py", "nothing.js", "index.html/", "\0"]
)
def test_nothing_else(name: str) -> None:
    assert page_file(name) is None


def test_the_page_fits_its_own_policy() -> None:
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = page_file("")
    assert page is not None
    text = page.content.decode()
    assert "<style" not in text
    assert not re.search(r"\s(?:style|on\w+)=", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/docs", "/healthz"])
def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    with EmbeddedController() as controller:
        url = urlsplit(controller.url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port or 0, timeout=120)
        answers = []
        for method in ("GET", "HEAD"):
            connection.request(method, path)
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("content-length")))
            body = answer.read()
        connection.close()
    assert answers[0] == answers[1]
    assert answers[0][0] == 200
    assert body == b""
