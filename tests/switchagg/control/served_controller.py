"""A served controller with a fake switch, and HTTP calls of it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from switchagg.control.controller import Controller
from switchagg.control.service import ControlServer
from switchagg.control.store import Store
from tests.switchagg.control import http_calls
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.http_calls import Joined, Refused, asked, call


def _whole(answer: bytes) -> bool:
    """Returns True if an answer of HTTP is there to its last byte."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


@dataclass
class ServedController:
    """A server and its switch, with calls to it."""

    server: ControlServer
    driver: FakeDriver

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        return http_calls.connect(self.url)

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        connection = self.connection()
        try:
            return call(connection, method, path, body, token)
        finally:
            connection.close()

    def join(
        self, name: str, rank: int, world_size: int = 2, token: str | None = None, **options: Any
    ) -> Joined:
        path = f"/v1/jobs/{name}/members"
        return http_calls.stream(self.connection(), path, asked(rank, world_size, **options), token)

    def join_all(self, name: str = "a", world_size: int = 2, **options: Any) -> list[Joined]:
        return http_calls.join_all(self.url, name, world_size, **options)

    def leave(self, name: str, joined: Joined) -> tuple[int, Any]:
        return http_calls.leave(self.url, name, joined)

    def refused(self, name: str, rank: int, world_size: int = 2, **options: Any) -> tuple[int, str, str]:
        with pytest.raises(Refused) as refusal:
            self.join(name, rank, world_size, **options)
        return refusal.value.status, refusal.value.code, refusal.value.message

    def members(self, name: str = "a", token: str | None = None) -> dict[int, str] | None:
        status, job = self.call("GET", f"/v1/jobs/{name}", token=token)
        return None if status == 404 else {each["rank"]: each["state"] for each in job["members"]}

    def raw(self, data: bytes) -> bytes:
        """Sends bytes; returns the answer, and what follows until the end or a moment of silence."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as sock:
            sock.sendall(data)
            answer = b""
            try:
                while more := sock.recv(65536):
                    answer += more
                    if _whole(answer):
                        sock.settimeout(0.05)
            except TimeoutError:
                assert _whole(answer), answer
            return answer

    def text(self, path: str, token: str | None = None) -> tuple[int, str]:
        """Returns the status and the body of an answer that is not JSON."""
        connection = self.connection()
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        try:
            return response.status, response.read().decode()
        finally:
            connection.close()


@contextlib.contextmanager
def serving(store: Store | None = None, **options: Any) -> Iterator[ServedController]:
    """Serves until the end of the block; then nothing is left on the switch, and no thread.

    Args:
        store: in memory unless given. Jobs in one on a disk outlive the block.
        options: of `ControlServer`.
    """
    threads = set(threading.enumerate())
    driver = FakeDriver()
    server = ControlServer(Controller([driver], store=store or Store(), slots=16), **options)
    server.start()
    try:
        yield ServedController(server, driver)
    finally:
        server.close()
    server.close()
    assert driver.jobs == {}
    assert {thread for thread in threading.enumerate() if "switchagg" in thread.name} <= threads
