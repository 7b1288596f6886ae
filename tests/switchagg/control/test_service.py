"""The HTTP service over real sockets, in front of a switch that only pretends."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from switchagg.control import service
from switchagg.control.client import ControllerClient
from switchagg.control.controller import Controller
from switchagg.control.service import ControlServer
from switchagg.errors import SwitchError, UsageError
from tests.switchagg.control.fake_driver import FakeDriver
from tests.waiting import eventually


@dataclass
class Place:
    server: ControlServer
    driver: FakeDriver

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def raw(self, data: bytes) -> bytes:
        """Sends bytes, and nothing after them; returns all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture
def place() -> Iterator[Place]:
    threads = set(threading.enumerate())
    driver = FakeDriver()
    server = ControlServer(Controller([driver], slots=16))
    server.start()
    try:
        yield Place(server, driver)
    finally:
        server.close()
    server.close()
    assert driver.jobs == {}
    assert {thread for thread in threading.enumerate() if "switchagg" in thread.name} <= threads


def call(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(response.read())


def asked(rank: int, world_size: int = 2, **options: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "world_size": world_size,
        "address": "127.0.0.1",
        "port": 40000 + rank,
        "words": None,
        "slots": None,
        "timeout": 20,
        **options,
    }


def join_all(
    place: Place, name: str = "a", world_size: int = 2, **options: Any
) -> list[tuple[http.client.HTTPConnection, dict[str, Any]]]:
    """Joins every rank, each on a connection of its own that stays open."""
    connections = [place.connection() for _ in range(world_size)]

    def one(rank: int) -> dict[str, Any]:
        status, answer = call(
            connections[rank], "POST", f"/v1/jobs/{name}/members", asked(rank, world_size, **options)
        )
        assert status == 200, answer
        return dict(answer)

    with ThreadPoolExecutor(world_size) as pool:
        return list(zip(connections, pool.map(one, range(world_size)), strict=True))


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def members(place: Place, name: str = "a") -> dict[int, str] | None:
    status, job = call(place.connection(), "GET", f"/v1/jobs/{name}")
    return None if status == 404 else {each["rank"]: each["state"] for each in job["members"]}


def test_join_and_leave(place: Place) -> None:
    (first, zero), (second, one) = join_all(place, words=100)
    (entry,) = place.driver.jobs.values()
    assert [worker.token for worker in entry.workers] == [zero["token"], one["token"]]
    assert len(place.driver.inits) == 16
    assert zero == zero | {
        "event": "admitted",
        "job": entry.job,
        "token": entry.workers[0].token,
        "result_token": entry.result_token,
        "switch": {
            "name": "fake",
            "address": "127.0.0.1",
            "port": 48879,
            "receive_buffer": 1 << 20,
            "link": "a-link",
        },
        "base": 0,
        "slots": 16,
        "words": 100,
        "first_seq": one["first_seq"],
        "policy": {"block": 64, "dense": False},
        "worker_bit": 0,
    }
    assert one["worker_bit"] == 1
    # On the connection of the join, and on another one.
    assert call(first, "POST", "/v1/jobs/a/members/0/leave", {"token": zero["token"]}) == (200, {})
    assert members(place) == {0: "left", 1: "joined"}
    first.close()
    assert call(place.connection(), "POST", "/v1/jobs/a/members/1/leave", {"token": one["token"]}) == (
        200,
        {},
    )
    assert members(place) is None
    assert place.driver.jobs == {}
    second.close()


def test_what_people_see(place: Place) -> None:
    joined = join_all(place, "x%20y%2Fz")
    waiting = place.connection()
    future = in_thread(lambda: call(waiting, "POST", "/v1/jobs/b/members", asked(1, 3)))
    client = ControllerClient(place.server.url)
    eventually(lambda: len(client.jobs()) == 2)
    b, xyz = client.jobs()
    assert (b["name"], b["state"], b["missing"], b["id"]) == ("b", "joining", [0, 2], None)
    assert (xyz["name"], xyz["state"], xyz["world_size"], xyz["lost"]) == ("x y/z", "running", 2, [])
    assert client.job("x y/z")["members"][1] == {
        "rank": 1,
        "state": "joined",
        "address": "127.0.0.1",
        "port": 40001,
        "silent": None,
        "packets": None,
        "why": "",
    }
    slots = client.slots()
    assert (slots["capacity"], slots["free"], slots["ranges"][0]["slots"]) == (4096, 4080, 16)
    assert client.waiting_slots("x y/z")["slots"] == [
        {
            "slot": 1,
            "seq": client.waiting_slots("x y/z")["slots"][0]["seq"],
            "filled": False,
            "seen": [0],
            "missing": [1],
        }
    ]
    assert client.waiting_slots("b")["slots"] == []
    stats = client.stats()
    assert stats["switch"] == {"received": 7, "inits": 16}
    assert [(each["name"], each["counters"]["worker_0_packets"]) for each in stats["jobs"]] == [("x y/z", 1)]
    assert client.health()["status"] == "ok"
    (entry,) = place.driver.jobs.values()
    seen = json.dumps([client.jobs(), slots, stats, client.health()])
    for secret in (entry.result_token, *(worker.token for worker in entry.workers)):
        assert str(secret) not in seen
    with pytest.raises(SwitchError, match="there is no job 'c'"):
        client.job("c")
    assert len(joined) == 2  # until here their connections are open
    place.server.close()
    status, answer = future.result(20)
    assert (status, answer["error"]["code"]) == (503, "stopping")


def test_a_closed_connection_is_a_lost_rank(place: Place) -> None:
    (first, _), (second, _) = join_all(place)
    second.close()
    eventually(lambda: members(place) == {0: "joined", 1: "lost"})
    status, job = call(place.connection(), "GET", "/v1/jobs/a")
    assert (status, job["state"], job["lost"]) == (200, "failed", [1])
    assert call(place.connection(), "GET", f"/v1/jobs/a?id={job['id']}")[1]["lost"] == [1]
    assert call(place.connection(), "GET", "/v1/jobs/a?id=999")[0] == 404
    first.close()
    eventually(lambda: members(place) is None)
    assert place.driver.jobs == {}
    join_all(place)


def test_a_connection_closed_while_it_waits(place: Place) -> None:
    body = json.dumps(asked(0)).encode()
    request = b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection(("127.0.0.1", place.port)) as sock:
        # What follows the request must not hide that the connection ends.
        sock.sendall(request + b"GET /healthz HTTP/1.1\r\n\r\n")
        eventually(lambda: members(place) == {0: "joined"})
    eventually(lambda: members(place) is None)
    join_all(place)


def test_a_join_that_times_out_may_be_repeated(place: Place) -> None:
    status, answer = call(place.connection(), "POST", "/v1/jobs/a/members", asked(1, 3, timeout=0.05))
    assert (status, answer["error"]["code"]) == (504, "join_timeout")
    assert "ranks 0, 2 of job 'a' did not join within 0.05 seconds" in answer["error"]["message"]
    assert members(place) is None
    connection = place.connection()
    for _ in range(3):  # on one connection
        assert call(connection, "POST", "/v1/jobs/a/members", asked(1, 3, timeout=0.01))[0] == 504
    join_all(place, world_size=3)


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"rank": 5}, 400, "rank_out_of_range"),
        ({"world_size": 33}, 400, "world_size"),
        ({"words": 365}, 400, "bad_request"),
        ({"slots": 3}, 400, "bad_request"),
        ({"slots": 8192}, 503, "no_slots"),
        ({"port": 10**30}, 400, "bad_request"),
        ({"rank": "0"}, 400, "bad_request"),
        ({"rank": True}, 400, "bad_request"),
        ({"rank": None}, 400, "bad_request"),
        ({"rank": 0.0}, 400, "bad_request"),
        ({"address": 7}, 400, "bad_request"),
        ({"timeout": "1"}, 400, "bad_request"),
        ({"touch": 1}, 400, "bad_request"),
        ({"tiemout": 1}, 400, "bad_request"),
    ],
)
def test_refusals(place: Place, options: dict[str, Any], status: int, code: str) -> None:
    got, answer = call(place.connection(), "POST", "/v1/jobs/a/members", asked(0) | options)
    assert (got, answer["error"]["code"]) == (status, code)
    assert members(place) is None


def test_conflicts(place: Place) -> None:
    joined = join_all(place)
    for given, code in ((asked(0), "rank_taken"), (asked(2, 3), "world_size_mismatch")):
        status, answer = call(place.connection(), "POST", "/v1/jobs/a/members", given)
        assert (status, answer["error"]["code"]) == (409, code)
    status, answer = call(place.connection(), "POST", "/v1/jobs/a/members/0/leave", {"token": 1})
    assert (status, answer["error"]["code"]) == (403, "wrong_token")
    status, answer = call(place.connection(), "POST", "/v1/jobs/a/members/9/leave", {"token": 1})
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert len(joined) == 2


def test_inits_are_repeated_until_they_are_echoed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.driver.drop = 20
    join_all(place)
    assert len(place.driver.inits) == 16
    monkeypatch.setattr("switchagg.control.agent.INIT_PAUSE", 0)
    place.driver.drop = -1
    status, answer = call(place.connection(), "POST", "/v1/jobs/b/members", asked(0, 1))
    assert (status, answer["error"]["code"]) == (503, "switch")
    assert "16 of 16 slots were not initialised" in answer["error"]["message"]
    place.driver.drop = 0
    join_all(place, "b", 1)


def test_a_switch_that_refuses(place: Place) -> None:
    place.driver.refuse = "the table is full"
    status, answer = call(place.connection(), "POST", "/v1/jobs/a/members", asked(0, 1))
    assert (status, answer["error"]["code"]) == (503, "switch")
    assert "the table is full" in answer["error"]["message"]
    place.driver.refuse = None
    join_all(place)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /v1/nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/jobs/a/members HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/jobs/a?id=x HTTP/1.1\r\n\r\n", 400),
        (b"DELETE /v1/jobs/a HTTP/1.1\r\n\r\n", 501),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 3\r\n\r\n{a}", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xff", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", 413),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60000, 400),
        (b'POST /v1/jobs/a/members/0/leave HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"token":"x"}', 400),
        (b"POST /v1/jobs/a/members/x/leave HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
    ],
)
def test_malformed(place: Place, sent: bytes, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    answer = place.raw(sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, answer
    assert json.loads(body)["error"]["message"]
    assert b"Traceback" not in answer
    assert call(place.connection(), "GET", "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_half_a_request_and_nothing_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.raw(b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 20\r\n\r\n{") == b""
    assert place.raw(b"") == b""
    monkeypatch.setattr(service._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", place.port), timeout=20) as slow:
        slow.sendall(b"POST /v1/jobs/a/members HTTP/1.1\r\nContent-Length: 20\r\n\r\n{")
        assert slow.recv(1000) == b""


def test_a_member_may_be_silent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._Handler, "timeout", 0.05)
    joined = join_all(place)
    time.sleep(0.3)
    assert members(place) == {0: "joined", 1: "joined"}
    for connection, answer in joined:
        path = f"/v1/jobs/a/members/{answer['worker_bit']}/leave"
        assert call(connection, "POST", path, {"token": answer["token"]})[0] == 200


def test_keep_alive(place: Place) -> None:
    connection = place.connection()
    connection.connect()
    sock = connection.sock
    for _ in range(5):
        assert call(connection, "GET", "/healthz")[0] == 200
        assert call(connection, "GET", "/nothing")[0] == 404
    assert connection.sock is sock


def test_a_port_in_use(place: Place) -> None:
    with pytest.raises(SwitchError, match=f"cannot listen at 127.0.0.1:{place.port}: Address already in use"):
        ControlServer(Controller([FakeDriver()]), port=place.port)
    with pytest.raises(SwitchError, match=r"cannot listen at 127\.0\.0\.1:70000"):
        ControlServer(Controller([FakeDriver()]), port=70000)


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SwitchError, match=f"no controller at {url}: connection refused; start one with"):
            ControllerClient(url).jobs()
    for wrong in ("127.0.0.1:80", "https://a:1", "http://a", "http://a:x", "http://a:1/b", ""):
        with pytest.raises(UsageError, match="accepted: http://host:port"):
            ControllerClient(wrong)


def test_jobs_in_sequence_leave_nothing_behind(place: Place) -> None:
    process = psutil.Process()

    def one(number: int) -> None:
        joined = join_all(place, f"job{number % 7}", 4)
        for rank, (connection, answer) in enumerate(joined):
            if (number + rank) % 3:
                path = f"/v1/jobs/job{number % 7}/members/{rank}/leave"
                assert call(connection, "POST", path, {"token": answer["token"]}) == (200, {})
            connection.close()

    def settled() -> bool:
        names = [thread.name for thread in threading.enumerate()]
        return not place.driver.jobs and names.count("switchagg-http-connection") == 0

    for number in range(40):
        one(number)
    eventually(settled)
    gc.collect()
    memory, descriptors = process.memory_info().rss, process.num_fds()
    for number in range(200):
        one(number)
    eventually(settled)
    gc.collect()
    assert place.driver.installed == 240
    assert ControllerClient(place.server.url).slots()["free"] == 4096
    eventually(settled)
    assert process.num_fds() <= descriptors
    place.driver.inits.clear()
    gc.collect()
    assert process.memory_info().rss - memory < 8 << 20


def test_many_jobs_at_once(place: Place) -> None:
    """16 jobs of 4 from 64 threads, several times over; half of them lose a rank."""

    def one(number: int) -> None:
        for turn in range(3):
            joined = join_all(place, f"job{number}", 4)
            ids = {answer["job"] for _, answer in joined}
            assert len(ids) == 1
            for rank, (connection, answer) in enumerate(joined):
                if rank or (number + turn) % 2:
                    path = f"/v1/jobs/job{number}/members/{rank}/leave"
                    assert call(connection, "POST", path, {"token": answer["token"]}) == (200, {})
                connection.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))
    eventually(lambda: not place.driver.jobs)
    assert place.driver.installed == 48
