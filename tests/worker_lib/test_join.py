"""Joining: against a real controller and switch, and against things that are neither."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest

import worker_lib
from switchagg.computer import memory_identity
from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import AdmissionError, SwitchError, UsageError
from switchagg.rules.planner import SkipPolicy
from tests.waiting import eventually
from tests.worker_lib.harness import ended
from worker_lib.embedded import controller_address, start_embedded
from worker_lib.join import Membership, join, places_behind


@pytest.fixture
def host() -> Iterator[EmbeddedController]:
    with EmbeddedController(capacity=4096, slots=16) as controller:
        yield controller


def join_all(url: str, world_size: int = 2, job: str = "a", **options: Any) -> list[Membership]:
    options.setdefault("deadline", 600.0)  # nobody sends heartbeats here

    def one(rank: int) -> Membership:
        return join(url, job, rank, world_size, "127.0.0.1", 41000 + rank, timeout=60, **options)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))


def states(url: str, job: str = "a") -> dict[int, str]:
    for each in ControllerClient(url).jobs():
        if each["name"] == job:
            return {member["rank"]: member["state"] for member in each["members"]}
    return {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_all_fields(host: EmbeddedController) -> None:
    zero, one = join_all(host.url, words=100, slots=32)
    assert dataclasses.replace(zero, rank=1, worker_bit=1, token=one.token, heartbeats=one.heartbeats) == one
    assert zero.heartbeats is not None
    assert one.heartbeats is not None
    assert (zero.heartbeats.address, zero.heartbeats.port) == ("127.0.0.1", int(host.url.rpartition(":")[2]))
    assert len({zero.heartbeats.cookie, one.heartbeats.cookie}) == 2
    assert (zero.places, zero.deadline, zero.on_loss) == ((0, 1), 600, "fail")
    assert (zero.controller, zero.name, zero.rank, zero.world_size) == (host.url, "a", 0, 2)
    assert (zero.switch_address, zero.switch_port) == host.switch.address
    assert zero.switch_receive_buffer == host.switch.receive_buffer
    assert (zero.slots, zero.words, zero.policy, zero.base % 32) == (32, 100, SkipPolicy(64), 0)
    assert 0 not in {zero.job, zero.token, one.token, zero.result_token}
    assert zero.token != one.token
    assert str(zero.token) not in repr(zero)
    with pytest.raises(dataclasses.FrozenInstanceError):
        zero.base = 1  # type: ignore[misc]
    assert zero.standing()[0] == ()
    zero.leave()
    zero.leave()
    assert states(host.url) == {0: "left", 1: "joined"}
    one.leave()
    assert ControllerClient(host.url).slots()["free"] == 4096


def test_slots_in_memory_are_fewer_unless_asked_for() -> None:
    mine = memory_identity()

    def slots(url: str, *memories: str, **options: Any) -> set[tuple[int, bool]]:
        def one(rank: int) -> Membership:
            port, memory = 41000 + rank, memories[rank]
            return join(url, "a", rank, 2, "127.0.0.1", port, timeout=60, memory=memory, **options)

        with ThreadPoolExecutor(2) as pool:
            members = list(pool.map(one, range(2)))
        for member in members:
            member.leave()
        return {(member.slots, member.shared) for member in members}

    with EmbeddedController() as host:
        assert slots(host.url, mine, mine) == {(128, True)}
        assert slots(host.url, mine, "") == slots(host.url, "", "") == {(256, False)}
        assert slots(host.url, mine, mine, touch=False) == {(256, False)}
        assert slots(host.url, mine, mine, slots=256) == {(256, True)}
    with EmbeddedController(slots=512) as host:
        assert slots(host.url, mine, mine) == {(512, True)}


def test_events_of_the_stream(host: EmbeddedController) -> None:
    zero, one, two = join_all(host.url, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.next_event)
        assert not waiting.done()
        one.close_stream()
        lost = waiting.result(60)
        assert lost is not None
        assert (lost["event"], lost["ranks"], lost["on_loss"]) == ("lost", [1], "fail")
    assert one.next_event() is None
    assert two.next_event(20) == lost
    with pytest.raises(TimeoutError):
        two.next_event(0.0)
    assert two.next_event() is None
    assert ended(two._held.stream)
    zero.leave()
    assert zero.next_event() is None


def test_a_stream_that_breaks_is_opened_again(host: EmbeddedController) -> None:
    zero, one = join_all(host.url)
    broken = zero._held.stream
    zero.attach()
    assert ended(broken)
    assert not ended(zero._held.stream)
    assert states(host.url) == {0: "joined", 1: "joined"}
    one.leave()
    left = zero.next_event(20)
    assert left is not None
    assert (left["event"], left["ranks"]) == ("left", [1])
    zero.leave(begun=3)
    with pytest.raises(AdmissionError) as error:
        one.attach()
    assert error.value.code in ("not_found", "lost")


def test_all_addresses_are_the_one_that_we_reached() -> None:
    with EmbeddedController(controller_host="0.0.0.0", capacity=64, slots=16) as everywhere:
        url = everywhere.url.replace("0.0.0.0", "127.0.0.1")
        (member,) = join_all(url, 1)
        assert member.heartbeats is not None
        assert member.heartbeats.address == "127.0.0.1"
        member.leave()


def test_lost_ranks_are_those_of_this_job(host: EmbeddedController) -> None:
    old = join_all(host.url, 3)
    old[1].close_descriptors()
    eventually(lambda: old[0].standing()[0] == (1,))
    with ThreadPoolExecutor(3) as pool:  # while rank 0 is still in the old one, 1 and 2 come back
        back = [pool.submit(join, host.url, "a", 1, 3, "127.0.0.1", 41001, timeout=60)]
        eventually(lambda: len(ControllerClient(host.url).jobs()) == 2)
        assert old[0].standing()[0] == (1,)
        for rank in (0, 2):
            old[rank].leave()
            back.append(pool.submit(join, host.url, "a", rank, 3, "127.0.0.1", 41000 + rank, timeout=60))
        members = [future.result(60) for future in back]
    assert members[0].standing()[0] == ()
    with pytest.raises(SwitchError, match="there is no job"):
        old[0].standing()[0]
    for member in members:
        member.leave()


def test_refusals_carry_the_code(host: EmbeddedController) -> None:
    members = join_all(host.url)
    for job, rank, world_size, words, code in (
        ("a", 0, 2, None, "rank_taken"),
        ("b", 2, 2, None, "rank_out_of_range"),
        ("b", 0, 33, None, "world_size"),
        ("b", 0, 1, 16001, "bad_request"),
    ):
        with pytest.raises(AdmissionError) as error:
            join(host.url, job, rank, world_size, "127.0.0.1", 42000, words=words, timeout=30)
        assert error.value.code == code
    with pytest.raises(
        AdmissionError, match=r"ranks 0, 2 of job 'b' did not join within .* seconds"
    ) as error:
        join(host.url, "b", 1, 3, "127.0.0.1", 42000, timeout=0.05)
    assert error.value.code == "join_timeout"
    assert states(host.url, "b") == {}
    for member in members:
        member.leave()


def test_untouched_payloads(host: EmbeddedController) -> None:
    for member in join_all(host.url, touch=False):
        member.leave()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, host.url, "a", 0, 2, "127.0.0.1", 42000, timeout=60, touch=False)
        eventually(lambda: states(host.url))
        with pytest.raises(AdmissionError, match="touch=True") as error:
            join(host.url, "a", 1, 2, "127.0.0.1", 42001, timeout=60)
        assert error.value.code == "settings_mismatch"
        other = join(host.url, "a", 1, 2, "127.0.0.1", 42001, timeout=60, touch=False)
        for member in (waiting.result(60), other):
            member.leave()


def test_nobody_listens() -> None:
    with socket.socket() as bound:  # the port is nobody else's, and refuses
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(SwitchError, match=f"no controller at {url}: connection refused; start one with"):
            join(url, "a", 0, 1, "127.0.0.1", 42000)


def test_rank_0_has_not_started_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.delenv("SWITCHAGG_CONTROLLER", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("SWITCHAGG_CONTROLLER_PORT", str(port))
    with pytest.raises(
        SwitchError,
        match=f"no controller at http://127.0.0.1:{port} within 0.1 seconds: connection refused; "
        "rank 0 starts the switch there, with its controller, when it calls connect",
    ):
        worker_lib.connect(rank=1, world_size=2, timeout=0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rank=9, world_size=2", "worker_lib.UsageError: rank is 9; accepted: 0 to 1 in a world of 2"),
        ("'http://127.0.0.1:1', 'j', 0, 2", "worker_lib.SwitchError: no controller at http://127.0.0.1:1: "),
    ],
)
def test_a_script_that_cannot_connect_ends_with_the_message(arguments: str, said: str) -> None:
    program = f"import worker_lib\nworker_lib.connect({arguments})\n"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = ran.stderr.splitlines()
    assert lines[-1].startswith(said)
    assert len([line for line in lines if line.startswith("  File")]) == 2  # the script's, and of connect()
    assert ran.stderr.count("Traceback") == 1


def test_errors_go_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(worker_lib.WorkerLostError("rank 1 is gone", (1,))))
    assert (type(error), str(error), error.ranks) == (worker_lib.WorkerLostError, "rank 1 is gone", (1,))


@pytest.mark.parametrize("first", [0, 2**32 - 1])
def test_the_ranks_that_the_oldest_round_waits_for(first: int) -> None:
    def slot(age: int, seen: list[int], missing: list[int]) -> dict[str, Any]:
        return {"seq": (first + age) % 2**32, "seen": seen, "missing": missing}

    assert places_behind([]) == set()
    assert places_behind([slot(1, [0], [1, 2]), slot(0, [0, 1], [2]), slot(2, [0], [1, 2])]) == {2}
    root, leaf = slot(0, [0, 1], [2, 3]), slot(0, [2], [3])
    assert places_behind([root, leaf]) == {3}
    assert places_behind([root]) == {2, 3}  # none of the leaf's has come there


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://127.0.0.1:1", "http://a", "http://a:b", "http://a:1/x", "http://b@a:1"]
)
def test_no_url(url: str) -> None:
    with pytest.raises(UsageError, match="accepted: http://host:port"):
        join(url, "a", 0, 1, "127.0.0.1", 42000)


def test_retry_until_somebody_listens() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(
            join, f"http://127.0.0.1:{port}", "a", 0, 1, "127.0.0.1", 42000, timeout=60, retry=True
        )
        time.sleep(0.1)
        with EmbeddedController(controller_port=port, capacity=1024):
            future.result(60).leave()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "went away, or is no switchagg controller"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "went away, or is no switchagg controller"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is no switchagg controller"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is no switchagg controller"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n[]", "is no switchagg controller"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "is no switchagg controller"),
    ],
)
def test_something_else_listens(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SwitchError, match=said):
            join(url, "a", 0, 1, "127.0.0.1", 42000, timeout=30)
        thread.join()


def test_it_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_lib.join.GRACE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SwitchError, match=r"did not answer within 0\.1 seconds"):
            join(url, "a", 0, 1, "127.0.0.1", 42000, timeout=0.1)


def test_the_controller_ends(host: EmbeddedController) -> None:
    zero, one = join_all(host.url)
    assert not ended(zero._held.stream)
    waiting: Future[Membership]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, host.url, "b", 0, 2, "127.0.0.1", 42000, timeout=60)
        eventually(lambda: states(host.url, "b"))
        host.close()
        with pytest.raises(AdmissionError, match="the controller is stopping"):
            waiting.result(60)
    eventually(lambda: ended(zero._held.stream))
    with pytest.raises(SwitchError, match="no controller at"):
        zero.standing()[0]
    zero.leave()
    one.leave()


def test_a_killed_process_is_lost_but_a_forked_child_that_closed_is_not(host: EmbeddedController) -> None:
    """The child outlives its parent, whose place must not live on in it."""
    program = f"""
import os, signal, sys, time
from worker_lib.join import join
member = join({host.url!r}, "a", 0, 1, "127.0.0.1", 42000, timeout=60, deadline=600)
child = os.fork()
if child == 0:
    member.close_descriptors()
    member.leave()
    os.write(1, b"%d\\n" % os.getpid())
    os.close(1)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert states(host.url) == {0: "joined"}
            parent.kill()
            parent.wait()
            eventually(lambda: not states(host.url))
            assert child.is_running()
        finally:
            child.kill()


def test_an_interrupted_join_gives_the_place_back(host: EmbeddedController) -> None:
    program = f"""
from worker_lib.join import join
join({host.url!r}, "a", 0, 2, "127.0.0.1", 42000, timeout=60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        eventually(lambda: states(host.url))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    eventually(lambda: not states(host.url))


def test_a_child_that_hosts() -> None:
    with start_embedded(arguments=["--capacity", "64", "--loss", "0"]) as embedded:
        assert psutil.pid_exists(embedded.pid)
        assert ControllerClient(embedded.controller).slots()["capacity"] == 64
        assert ControllerClient(embedded.controller).health()["switch"]["port"] == embedded.switch[1]
        embedded.close()
        assert not psutil.pid_exists(embedded.pid)


def test_a_child_that_wants_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_embedded(arguments=["--capacity", "64", "--slots", "16"], credential="a-token") as embedded:
        with pytest.raises(AdmissionError, match="no token came") as error:
            join(embedded.controller, "a", 0, 1, "127.0.0.1", 42000, timeout=60)
        assert error.value.code == "unauthorized"
        with pytest.raises(AdmissionError, match="is not, or no longer"):
            join(embedded.controller, "a", 0, 1, "127.0.0.1", 42000, timeout=60, credential="b-token")
        assert "a-token" not in " ".join(psutil.Process(embedded.pid).cmdline())
        monkeypatch.setenv("SWITCHAGG_TOKEN", "a-token")
        join(embedded.controller, "a", 0, 1, "127.0.0.1", 42000, timeout=60).leave()
        assert ControllerClient(embedded.controller).jobs() == []


def test_a_child_waits_for_the_ranks_that_are_still_there() -> None:
    embedded = start_embedded(arguments=["--slots", "16"])
    (member,) = join_all(embedded.controller, 1)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(embedded.close)
        time.sleep(0.2)
        assert not closing.done()
        assert member.standing()[0] == ()
        member.leave()
        closing.result(60)
    assert embedded.process.returncode == 0


def test_what_a_child_says_when_it_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SwitchError,
            match=f"did not start: switchagg host: the controller cannot listen at 127.0.0.1:{port}",
        ):
            start_embedded("localhost", port)
    with pytest.raises(SwitchError, match=r"loss is 2\.0; accepted: a probability"):
        start_embedded(arguments=["--loss", "2"])
    with pytest.raises(UsageError, match=r"host is 'no\.such\.host\.invalid', which has no IP address"):
        start_embedded("no.such.host.invalid")


def test_a_child_ends_with_its_parent() -> None:
    """Also where a grandchild keeps the parent's pipes open."""
    program = """
import os, time
from worker_lib.embedded import start_embedded
embedded = start_embedded()
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
os.write(1, b"%d\\n" % embedded.pid)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        host = psutil.Process(int(parent.stdout.readline()))
        others = psutil.Process(parent.pid).children()
        parent.kill()
        parent.wait()
        try:
            host.wait(60)
        finally:
            for other in others:
                if other.pid != host.pid:
                    other.kill()


def test_where_ranks_meet_without_a_controller() -> None:
    assert controller_address({}) is None
    assert controller_address({"MASTER_ADDR": "127.0.0.1"}) is None
    assert controller_address({"MASTER_PORT": "29500"}) is None
    both = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert controller_address(both) == ("localhost", 29501)
    assert controller_address(both | {"SWITCHAGG_CONTROLLER_PORT": "7"}) == ("localhost", 7)
    for wrong, said in (
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"MASTER_PORT": "65535"}, "set SWITCHAGG_CONTROLLER_PORT"),
        ({"SWITCHAGG_CONTROLLER_PORT": "0"}, "SWITCHAGG_CONTROLLER_PORT is '0'"),
    ):
        with pytest.raises(UsageError, match=said):
            controller_address(both | wrong)
    with pytest.raises(UsageError, match="which has no IP address"):
        start_embedded("no.such.host.invalid")


def test_http_is_imported_only_to_join() -> None:
    program = "import sys, worker_lib.join; assert 'http.client' not in sys.modules, 'imported'"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
