"""Bytes on the sockets of a running controller, beneath the schema of its HTTP API.

Requests are mutated, cut, joined, sent in pieces, with wrong lengths, large heads, deep JSON, and values of
any type in every field; heartbeats likewise. The controller answers with no 5xx but 503, ends what it cannot
read, answers /healthz after each, and neither its threads nor its memory grow.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from switchagg.wire.heartbeat import Heartbeat, Report
from tests.fuzz.mutations import TEXTS, any_value, bytes_changed, value_changed
from tests.switchagg.control.served_controller import ServedController, serving

_PATIENCE: Final = 20.0  # seconds for an answer; a hung controller takes longer
_SILENCE: Final = 0.05  # seconds after which nothing more is expected
_GROWTH: Final = 200 << 20  # bytes of memory
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PATHS: Final = (
    "/healthz",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/",
    "/page/main.js",
    "/v1/jobs",
    "/v1/jobs/a",
    "/v1/jobs/a/drain",
    "/v1/jobs/a/history",
    "/v1/jobs/a/members",
    "/v1/jobs/a/members/0/leave",
    "/v1/jobs/a/members/0/attach",
    "/v1/jobs/a/members/0/heartbeat",
    "/v1/jobs/a/members/0/progress",
    "/v1/jobs/a/members/0/proceed",
    "/v1/switches",
    "/v1/switches/fake/drain",
    "/v1/switches/fake/undrain",
    "/v1/slots",
    "/v1/slots?job=a",
    "/v1/stats",
    "/v1/events?since=0&limit=5",
    "/v1/jobs/a?id=1&tenant=default",
)
_BODIES: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a",
        "world_size": 2,
        "words": 64,
        "slots": 16,
        "priority": 5,
        "deadline": 3.0,
        "on_loss": "fail",
    },
    {"rank": 0, "world_size": 2, "address": "127.0.0.1", "port": 4000, "timeout": 0.01, "switch": "fake"},
    {"token": 7, "begun": 1, "completed": 0, "why": "ValueError: x"},
    {"token": 7, "report": {"collectives": 1, "rtt_ns": 5}},
    {"token": 7, "completed": 3},
    {"token": 7, "address": "10.0.0.1", "port": 5000},
)
_HEADERS: Final = (
    "Authorization: Bearer x",
    "Authorization: Basic eDp5",
    "Connection: close",
    "Connection: upgrade",
    "Upgrade: websocket",
    "Expect: 100-continue",
    "Transfer-Encoding: chunked",
    "Origin: http://elsewhere",
    "X-Request-Id: \x01",
    "Content-Type: text/plain",
    "Content-Type: application/json; charset=utf-16",
    "Content-Encoding: gzip",
    "Host: elsewhere",
    "Host: [::1",
    "Range: bytes=0-1",
    "Cookie: " + "a" * 8000,
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
)


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Callable[[Random], None]]:
    """Yields a function that sends one thing to a controller."""
    del folder
    with serving() as place:
        place.join("held", 0, 1)  # a job that runs
        memory = _memory()

        def execute(random: Random) -> None:
            if random.randrange(6) == 0:
                _heartbeat(place, random)
            else:
                _request(place, random)
            status, answer = place.call("GET", "/healthz")
            assert (status, answer["status"]) == (200, "ok"), answer
            assert _memory() < memory + _GROWTH, _memory()
            assert threading.active_count() < 100, threading.enumerate()

        yield execute
        place.call("DELETE", "/v1/jobs/held")


def _heartbeat(place: ServedController, random: Random) -> None:
    data = Heartbeat(random.randbytes(16), random.randrange(2**64), Report(collectives=3)).pack()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(random.choice((1, 1, 20))):
            sock.sendto(bytes_changed(data, random)[:60_000], ("127.0.0.1", place.port))


def _request(place: ServedController, random: Random) -> None:
    data = b"".join(_text(random) for _ in range(random.choice((1, 1, 1, 1, 2, 5))))
    if random.randrange(3) == 0:
        data = bytes_changed(data, random)
    sock = socket.create_connection(("127.0.0.1", place.port), timeout=_PATIENCE)
    with sock, contextlib.suppress(OSError):
        if random.randrange(4) == 0:  # in pieces
            cut = random.randrange(len(data) + 1)
            sock.sendall(data[:cut])
            if random.randrange(2):
                return  # half a request, and the connection ends
            sock.sendall(data[cut:])
        else:
            sock.sendall(data)
        if random.randrange(4) == 0:
            sock.shutdown(socket.SHUT_WR)
        _check(_answers(sock), data)


def _answers(sock: socket.socket) -> bytes:
    sock.settimeout(_SILENCE)
    answers = b""
    with contextlib.suppress(TimeoutError):
        while len(answers) < 1 << 20 and (more := sock.recv(65536)):
            answers += more
    return answers


def _check(answers: bytes, data: bytes) -> None:
    assert not answers or _STATUS.match(answers), answers[:200]
    for status in _STATUS.findall(answers):
        assert status == b"503" or status < b"500", (answers[:500], data[:500])


def _text(random: Random) -> bytes:
    path = random.choice(_PATHS)
    if random.randrange(5) == 0:
        path = path.replace("a", random.choice(TEXTS)).replace("\r", "").replace("\n", "")
    method = random.choice(
        ("GET", "GET", "POST", "POST", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "TRACE", "x")
    )
    if path.count("/") > 4 and random.randrange(4):
        method = "POST"
    body = _body(random) if method in ("POST", "PUT") else b""
    lines = [f"{method} {path} HTTP/1.{random.choice('1111102')}", "Host: 127.0.0.1"]
    if body:
        lines += ["Content-Type: application/json"]
        lines += [f"Content-Length: {len(body) + random.choice((0,) * 12 + (1, -1, 5000, 70_000))}"]
    lines += random.sample(_HEADERS, random.choice((0, 0, 0, 1, 2)))
    if random.randrange(20) == 0:
        lines += [
            f"X-{number}: {'v' * random.choice((1, 60, 20_000))}" for number in range(random.choice((1, 300)))
        ]
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def _body(random: Random) -> bytes:
    match random.randrange(12):
        case 0:
            opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ('{"name":[', "]}")))
            depth = random.choice((10, 900, 8000))
            return (opening * depth + "1" + closing * depth).encode()[: 60 * 1024]
        case 1:
            name = random.choice(list(random.choice(_BODIES)))
            value = random.choice(
                ("1" * 5000, "1e999", "-0", "NaN", "Infinity", '"\\ud800"', '"\\u0000"', "1.0")
            )
            return f'{{"{name}": {value}}}'.encode()
        case 2:
            return json.dumps(any_value(random)).encode()
        case 3:
            return random.choice(
                (b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"{", b"", b'{"a":1,"a":2}', b"\x00" * 100)
            )
    body: Any = random.choice(_BODIES)
    for _ in range(random.choice((0, 1, 1, 2))):
        body = value_changed(body, random)
    if isinstance(body, dict):
        if isinstance(body.get("timeout"), int | float):
            body["timeout"] = 0.01
        if body.get("world_size") == 1 and "rank" in body:
            body["world_size"] = 2
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _memory() -> int:
    """Returns the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
