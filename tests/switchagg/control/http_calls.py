"""Calls to a controller as a stranger would make them: plain `http.client`, streams line by line."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


def call(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    token: str | None = None,
) -> tuple[int, Any]:
    """One request and its JSON answer."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "application/json", response.read()
    return response.status, json.loads(response.read())


def asked(rank: int, world_size: int = 2, **options: Any) -> dict[str, Any]:
    """Returns the body of a rank's join. It sends no heartbeats, so its deadline is long."""
    wishes = {"words": None, "slots": None, "timeout": 100, "address": "127.0.0.1", "deadline": 600}
    return {"rank": rank, "world_size": world_size, "port": 40000 + rank} | wishes | options


@dataclass
class Joined:
    """A member with its open stream."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    place: dict[str, Any]

    def event(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        while line := self.response.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] != "ping":
                return event
        return None

    def close(self) -> None:
        """Ends the connection, without a word."""
        self.response.close()
        self.connection.close()


class Refused(Exception):
    """A join was not admitted."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(status, answer)
        self.status = status
        self.code: str = answer["error"]["code"]
        self.message: str = answer["error"]["message"]


def stream(
    connection: http.client.HTTPConnection, path: str, body: dict[str, Any], token: str | None = None
) -> Joined:
    """Opens a member's stream. Raises `Refused`."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise Refused(response.status, json.loads(response.read()))
    assert response.headers["Content-Type"] == "application/x-ndjson"
    joined = Joined(connection, response, {})
    event = joined.event()
    assert event is not None
    assert event["event"] == "admitted"
    joined.place = event
    return joined


def connect(url: str) -> http.client.HTTPConnection:
    """A connection to a controller."""
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)


def join_all(url: str, name: str = "a", world_size: int = 2, **options: Any) -> list[Joined]:
    """Joins every rank, each on a connection of its own that stays open."""

    def one(rank: int) -> Joined:
        return stream(connect(url), f"/v1/jobs/{name}/members", asked(rank, world_size, **options))

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))


def leave(url: str, name: str, joined: Joined, rank: int | None = None) -> tuple[int, Any]:
    """Leaves in order, on a connection of its own."""
    connection = connect(url)
    try:
        number = joined.place["rank"] if rank is None else rank
        path = f"/v1/jobs/{name}/members/{number}/leave"
        return call(connection, "POST", path, {"token": joined.place["token"]})
    finally:
        connection.close()
