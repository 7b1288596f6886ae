"""The HTTP service over real sockets, in front of a switch that only pretends."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from switchagg.control.client import ControllerClient
from switchagg.control.controller import Controller
from switchagg.control.http import guard, protocol, streams
from switchagg.control.service import ControlServer
from switchagg.errors import SwitchError, UsageError
from tests.switchagg.control import http_calls
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.http_calls import Refused, asked, call
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually


@pytest.fixture
def place() -> Iterator[ServedController]:
    with serving() as it:
        yield it


@pytest.fixture(scope="module")
def lasting() -> Iterator[ServedController]:
    """For tests that leave everything as it was."""
    with serving() as it:
        yield it


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def test_join_and_leave(place: ServedController) -> None:
    zero, one = place.join_all(words=100)
    (entry,) = place.driver.jobs.values()
    assert [worker.token for worker in entry.workers] == [zero.place["token"], one.place["token"]]
    assert len(place.driver.inits) == 16
    beats = zero.place.pop("heartbeat")
    assert (beats["address"], beats["port"], len(bytes.fromhex(beats["cookie"]))) == (
        "127.0.0.1",
        place.port,
        16,
    )
    assert zero.place == {
        "event": "admitted",
        "job": entry.job,
        "token": entry.workers[0].token,
        "result_token": entry.result_token,
        "first_packet": 0,
        "standby": False,
        "switch": {
            "name": "fake",
            "address": "127.0.0.1",
            "port": 48879,
            "receive_buffer": 1 << 20,
            "link": "a-link",
            "threads": 1,
        },
        "base": 0,
        "slots": 16,
        "words": 100,
        "first_seq": one.place["first_seq"],
        "policy": {"block": 64, "dense": False, "bits": None},
        "worker_bit": 0,
        "receivers": [],
        "senders": 2,
        "rank": 0,
        "world_size": 2,
        "places": [0, 1],
        "lost": [],
        "deadline": 600.0,
        "on_loss": "fail",
        "shared": False,
        "stripes": [],
    }
    assert (one.place["worker_bit"], one.place["rank"]) == (1, 1)
    assert place.leave("a", zero) == (200, {})
    assert zero.event() is None  # the stream ends with the membership
    assert place.members() == {0: "left", 1: "joined"}
    zero.close()
    assert place.leave("a", one) == (200, {})
    assert place.members() is None
    eventually(lambda: place.driver.jobs == {})
    one.close()


def test_what_people_see(place: ServedController) -> None:
    joined = place.join_all("x%20y%2Fz")
    waiting = in_thread(lambda: place.refused("b", 1, 3))
    client = ControllerClient(place.url, timeout=60.0)
    eventually(lambda: len(client.jobs()) == 2)
    b, xyz = client.jobs()
    assert (b["name"], b["state"], b["missing"], b["id"]) == ("b", "joining", [0, 2], None)
    assert (xyz["name"], xyz["state"], xyz["world_size"], xyz["lost"]) == ("x y/z", "running", 2, [])
    one = client.job("x y/z")["members"][1]
    assert (one["rank"], one["state"], one["address"], one["port"]) == (1, "joined", "127.0.0.1", 40001)
    slots = client.slots()
    assert (slots["capacity"], slots["free"], slots["ranges"][0]["slots"]) == (4096, 4080, 16)
    assert client.waiting_slots("x y/z")["slots"] == [
        {
            "switch": "fake",
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
    place.server.close()
    assert waiting.result(60)[:2] == (503, "stopping")
    for member in joined:
        assert member.event() == {"event": "stopping", "jobs": "end"}
        assert member.event() is None


def test_a_closed_connection_is_a_lost_rank(place: ServedController) -> None:
    first, second = place.join_all()
    second.close()
    lost = first.event()
    assert lost is not None
    assert (lost["event"], lost["ranks"]) == ("lost", [1])
    eventually(lambda: place.members() == {0: "joined", 1: "lost"})
    status, job = place.call("GET", "/v1/jobs/a")
    assert (status, job["state"], job["lost"]) == (200, "failed", [1])
    assert place.call("GET", f"/v1/jobs/a?id={job['id']}")[1]["lost"] == [1]
    assert place.call("GET", "/v1/jobs/a?id=999")[0] == 404
    first.close()
    eventually(lambda: place.members() is None)
    eventually(lambda: place.driver.jobs == {})
    place.join_all()


def joining(place: ServedController, more: bytes = b"") -> socket.socket:
    """A raw connection on which rank 0 of 2 waits."""
    body = json.dumps(asked(0)).encode()
    head = b"POST /v1/jobs/a/members HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock = socket.create_connection(("127.0.0.1", place.port), timeout=120)
    sock.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) + more)
    return sock


@pytest.mark.parametrize("how", ["end", "half", "reset"])
def test_a_connection_closed_while_it_waits(place: ServedController, how: str) -> None:
    with joining(place) as sock:
        eventually(lambda: place.members() == {0: "joined"})
        if how == "half":
            sock.shutdown(socket.SHUT_WR)
            eventually(lambda: place.members() is None)
        elif how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: place.members() is None)
    place.join_all()


def test_what_follows_a_join_does_not_hide_its_end(place: ServedController) -> None:
    with joining(place, b"GET /healthz HTTP/1.1\r\n\r\n") as sock:
        assert sock.recv(1000) == b""
    eventually(lambda: place.members() is None)
    with joining(place) as sock:
        eventually(lambda: place.members() == {0: "joined"})
        sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        eventually(lambda: place.members() is None)


def test_a_join_that_times_out_may_be_repeated(place: ServedController) -> None:
    status, code, message = place.refused("a", 1, 3, timeout=0.05)
    assert (status, code) == (409, "join_timeout")
    assert "ranks 0, 2 of job 'a' did not join within 0.05 seconds" in message
    assert place.members() is None
    connection = place.connection()
    for _ in range(3):  # on one connection
        assert call(connection, "POST", "/v1/jobs/a/members", asked(1, 3, timeout=0.01))[0] == 409
    place.join_all(world_size=3)


def test_a_member_that_does_not_read(place: ServedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off, and was in nobody's way."""
    monkeypatch.setattr(streams, "MAX_EVENTS", 20)
    zero, one = place.join_all()
    line = next(iter(place.server.controller._core.streams._members))
    text = "x" * 100_000
    eventually(
        lambda: line.send({"event": "noise", "text": text}) or place.members() != {0: "joined", 1: "joined"}
    )
    assert "lost" in (place.members() or {}).values()
    zero.close()
    one.close()


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"rank": 5}, 400, "rank_out_of_range"),
        ({"rank": 32}, 400, "rank_out_of_range"),
        ({"rank": -1}, 400, "rank_out_of_range"),
        ({"world_size": 33}, 400, "world_size"),
        ({"world_size": 257}, 400, "world_size"),
        ({"words": 365}, 400, "bad_request"),
        ({"slots": 3}, 400, "bad_request"),
        ({"slots": 8192}, 409, "no_slots"),
        ({"port": 10**30}, 400, "bad_request"),
        ({"rank": "0"}, 400, "bad_request"),
        ({"rank": "١٢"}, 400, "bad_request"),
        ({"rank": True}, 400, "bad_request"),
        ({"rank": None}, 400, "bad_request"),
        ({"rank": 0.0}, 400, "bad_request"),
        ({"rank": 2**70}, 400, "rank_out_of_range"),
        ({"address": 7}, 400, "bad_request"),
        ({"address": "fe80::1"}, 400, "bad_request"),
        ({"address": "\ud800"}, 400, "bad_request"),
        ({"timeout": "1"}, 400, "bad_request"),
        ({"timeout": float("nan")}, 400, "bad_request"),
        ({"timeout": float("inf")}, 400, "bad_request"),
        ({"timeout": 0}, 400, "bad_request"),
        ({"touch": 1}, 400, "bad_request"),
        ({"tiemout": 1}, 400, "bad_request"),
    ],
)
def test_refusals(lasting: ServedController, options: dict[str, Any], status: int, code: str) -> None:
    with pytest.raises(Refused) as refusal:
        http_calls.stream(lasting.connection(), "/v1/jobs/a/members", asked(0) | options)
    got, said, message = refusal.value.status, refusal.value.code, refusal.value.message
    assert (got, said) == (status, code)
    (name,) = options
    assert name in message
    assert lasting.members() is None


def test_conflicts(place: ServedController) -> None:
    joined = place.join_all()
    assert place.refused("a", 0)[:2] == (409, "rank_taken")
    assert place.refused("a", 2, 3)[:2] == (409, "world_size_mismatch")
    status, answer = place.call("POST", "/v1/jobs/a/members/0/leave", {"token": 1})
    assert (status, answer["error"]["code"]) == (403, "wrong_token")
    status, answer = place.call("POST", "/v1/jobs/a/members/9/leave", {"token": 1})
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert len(joined) == 2


def test_inits_are_repeated_until_they_are_echoed(
    place: ServedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.driver.drop = 20
    place.join_all()
    assert len(place.driver.inits) == 16
    monkeypatch.setattr("switchagg.control.agent.INIT_PAUSE", 0)
    place.driver.drop = -1
    status, code, message = place.refused("b", 0, 1)
    assert (status, code) == (503, "switch")
    assert "16 of 16 slots were not initialised" in message
    place.driver.drop = 0
    place.join_all("b", 1)


def test_no_copy_of_an_init_is_under_way_when_a_job_opens(place: ServedController) -> None:
    """A switch that obeyed it then would set back a slot that is in use, for good."""
    place.driver.slow = 2
    place.join_all()
    assert place.driver.behind == []


def test_a_switch_that_refuses(place: ServedController) -> None:
    place.driver.refuse = "the table is full"
    status, code, message = place.refused("a", 0, 1)
    assert (status, code) == (503, "switch")
    assert "the table is full" in message
    place.driver.refuse = None
    place.join_all()


JSON = b"POST /v1/jobs/a/members HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /v1/nothing HTTP/1.1\r\nHost: a\r\n\r\n", 403),
        (b"GET /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"GET /v1/jobs/a/members HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /v1/jobs/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/jobs/a?id=x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/jobs/a?id=1_0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/jobs/a?id=%D9%A1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"PUT /v1/jobs/a HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n", 400),
        (JSON + b"Content-Length: 3\r\n\r\n{a}", 400),
        (JSON + b"Content-Length: 2\r\n\r\n[]", 400),
        (JSON + b"Content-Length: 2\r\n\r\n\xff\xff", 400),
        (JSON + b"Content-Length: 9\r\n\r\n" + b"9" * 9, 400),
        (JSON + b"\r\n", 400),
        (JSON + b"Content-Length: -1\r\n\r\n", 400),
        (JSON + b"Content-Length: 1_0\r\n\r\n", 400),
        (JSON + b"Content-Length: 70000\r\n\r\n", 413),
        (JSON + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (JSON + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n", 413),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (JSON + b"Content-Length: 60000\r\n\r\n" + b"[" * 60000, 400),
        (JSON + b"Content-Length: 60000\r\n\r\n" + b"9" * 60000, 400),
        (JSON.replace(b"json", b"text") + b"Content-Length: 2\r\n\r\n{}", 400),
        (JSON.replace(b"members", b"members/0/leave") + b'Content-Length: 13\r\n\r\n{"token":"x"}', 400),
        (JSON.replace(b"members", b"members/x/leave") + b"Content-Length: 2\r\n\r\n{}", 400),
        (JSON + b"Origin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}", 403),
    ],
)
def test_malformed(
    lasting: ServedController, sent: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = lasting.raw(sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, answer
    assert json.loads(body)["error"]["message"]
    assert b"Traceback" not in answer
    assert lasting.call("GET", "/healthz")[0] == 200
    assert lasting.members() is None
    assert capfd.readouterr() == ("", "")


def test_a_body_of_100_mb(lasting: ServedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read: the client gets its answer whether it waits for it or sends all the same."""
    monkeypatch.setattr(guard, "DISCARD_SECONDS", 60.0)  # a busy machine takes longer to send it all
    memory = psutil.Process().memory_info().rss
    connection = lasting.connection()
    status, answer = call(connection, "POST", "/v1/jobs", "x" * 100_000_000)
    assert (status, answer["error"]["code"]) == (413, "too_large")
    assert "accepted: up to 65536" in answer["error"]["message"]
    assert psutil.Process().memory_info().rss - memory < 400 << 20  # what the client itself takes


def test_half_a_request_and_nothing_more(place: ServedController, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=120) as short:
        short.sendall(JSON + b"Content-Length: 20\r\n\r\n{")
        short.shutdown(socket.SHUT_WR)
        assert short.recv(1000) == b""
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT", 0.05)
    for begun in (JSON + b"Content-Length: 20\r\n\r\n{", b"GET", b""):
        with socket.create_connection(("127.0.0.1", place.port), timeout=120) as slow:
            slow.sendall(begun)
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(1000) == b""
    assert place.members() is None


def test_a_member_may_be_silent(place: ServedController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT", 1.0)  # also of the calls below, on a busy computer
    monkeypatch.setattr(streams, "PING_INTERVAL", 0.05)
    joined = place.join_all()
    for _ in range(30):  # longer than that
        assert json.loads(joined[0].response.readline()) == {"event": "ping"}
    assert place.members() == {0: "joined", 1: "joined"}
    for member in joined:
        assert place.leave("a", member)[0] == 200


def test_idle_connections_make_room_the_oldest_first(place: ServedController) -> None:
    joined = place.join_all()
    used = place.connection()
    assert call(used, "GET", "/healthz")[0] == 200
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", place.port), timeout=120))
            for _ in range(protocol.MAX_WAITING + 100)
        ]
        for old in idle[:99]:
            with contextlib.suppress(ConnectionResetError):
                assert old.recv(100) == b""
        for young in idle[-200:]:
            young.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert young.recv(100).startswith(b"HTTP/1.1 200")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):  # silent since before all of them
        call(used, "GET", "/healthz")
    assert place.members() == {0: "joined", 1: "joined"}
    for member in joined:
        assert place.leave("a", member)[0] == 200


def test_keep_alive(lasting: ServedController) -> None:
    connection = lasting.connection()
    connection.connect()
    sock = connection.sock
    for _ in range(5):
        assert call(connection, "GET", "/healthz")[0] == 200
        assert call(connection, "GET", "/v1/nothing")[0] == 404
    assert connection.sock is sock


def test_a_port_in_use(lasting: ServedController) -> None:
    with pytest.raises(
        SwitchError, match=f"cannot listen at 127.0.0.1:{lasting.port}: Address already in use"
    ):
        ControlServer(Controller([FakeDriver()]), port=lasting.port)
    with pytest.raises(SwitchError, match=r"cannot listen at 127\.0\.0\.1:70000"):
        ControlServer(Controller([FakeDriver()]), port=70000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        while True:  # a port that others have for UDP alone
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
                tcp.bind(("127.0.0.1", 0))
                port = tcp.getsockname()[1]
                with contextlib.suppress(OSError):
                    udp.bind(("127.0.0.1", port))
                    break
        with pytest.raises(SwitchError, match=f"cannot take heartbeats at 127.0.0.1:{port}"):
            ControlServer(Controller([FakeDriver()]), port=port)
        with socket.socket() as tcp:
            tcp.bind(("127.0.0.1", port))  # nothing was left open


def test_a_switch_that_does_not_answer_holds_up_who_asks_for_it_only(place: ServedController) -> None:
    answer = threading.Event()
    read = place.driver.counters

    def counters() -> dict[str, int]:
        assert answer.wait(60)
        return read()

    place.driver.counters = counters  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(40) as pool:
            asking = [pool.submit(place.call, "GET", "/v1/stats") for _ in range(40)]
            time.sleep(0.3)
            assert place.call("POST", "/v1/jobs", {"name": "a", "world_size": 2})[0] == 201
            assert place.call("DELETE", "/v1/jobs/a")[0] == 200
            assert not any(each.done() for each in asking)
            answer.set()
            assert {each.result()[0] for each in asking} == {200}
    finally:
        answer.set()


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SwitchError, match=f"no controller at {url}: connection refused; start one with"):
            ControllerClient(url).jobs()
    for wrong in ("127.0.0.1:80", "ftp://a:1", "http://a", "http://a:x", "http://a:1/b", ""):
        with pytest.raises(UsageError, match="accepted: http://host:port"):
            ControllerClient(wrong)


@pytest.mark.long
def test_jobs_in_sequence_leave_nothing_behind(place: ServedController) -> None:
    process = psutil.Process()

    def one(number: int) -> None:
        name = f"job{number % 7}"
        for rank, member in enumerate(place.join_all(name, 4)):
            if (number + rank) % 3:
                assert place.leave(name, member) == (200, {})
            member.close()

    for number in range(40):
        one(number)
    ControllerClient(place.url).slots()
    eventually(lambda: not place.driver.jobs)
    gc.collect()
    memory, descriptors = process.memory_info().rss, process.num_fds()
    for number in range(200):
        one(number)
    eventually(lambda: not place.driver.jobs)
    gc.collect()
    assert place.driver.installed == 240
    assert ControllerClient(place.url).slots()["free"] == 4096
    eventually(lambda: process.num_fds() <= descriptors)
    place.driver.inits.clear()
    gc.collect()
    assert process.memory_info().rss - memory < 8 << 20


def test_a_connection_that_is_reset_is_forgotten(place: ServedController) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", place.port), timeout=120) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def remembered() -> int:
        gc.collect()
        # By type(): isinstance asks a weak proxy, and that of something gone raises.
        return sum(issubclass(type(each), protocol.Protocol) for each in gc.get_objects())

    eventually(lambda: remembered() < 5)


def test_many_jobs_at_once(place: ServedController) -> None:
    """16 jobs of 4 from 64 threads, several times over; half of them lose a rank."""

    def one(number: int) -> None:
        name = f"job{number}"
        for turn in range(3):
            joined = place.join_all(name, 4)
            assert len({member.place["job"] for member in joined}) == 1
            for rank, member in enumerate(joined):
                if rank or (number + turn) % 2:
                    assert place.leave(name, member) == (200, {})
                member.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))
    eventually(lambda: not place.driver.jobs)
    assert place.driver.installed == 48
