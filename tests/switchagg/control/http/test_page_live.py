"""The web page against the real controller, with ranks that join, beat and die."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import worker_lib
from switchagg.cli.main import main
from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.embedded import EmbeddedController
from switchagg.control.jobs.records import OPEN, Tenant
from switchagg.control.service import ControlServer
from switchagg.emulator.switch import Switch
from switchagg.wire.heartbeat import Heartbeat, Report
from tests.browser import Browser, Page
from tests.worker_lib.test_changes import vanish
from worker_lib.join import Membership, join

LIVE = "document.querySelector('#connection')?.dataset.state === 'live'"


def members(url: str, job: str, count: int) -> list[Membership]:
    with ThreadPoolExecutor(count) as pool:
        return list(
            pool.map(
                lambda rank: join(
                    url, job, rank, count, "127.0.0.1", 43200 + rank, timeout=100, deadline=600
                ),
                range(count),
            )
        )


@contextmanager
def beating(ranks: list[Membership]) -> Iterator[None]:
    """Sends heartbeats: 200 MB reduced a second, one packet of 50 sent again, data in one block of 4."""
    done = threading.Event()

    def beat() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            began, sequence = time.monotonic(), 0
            while not done.wait(0.2):
                sequence += 1
                number = int(5 * (time.monotonic() - began))
                report = Report(
                    collectives=number,
                    bytes_reduced=40_000_000 * number,
                    packets_sent=5_000 * number,
                    retransmissions=100 * number,
                    blocks_total=1_000 * number,
                    blocks_own=250 * number,
                    blocks_union=500 * number,
                    rtt_ns=150_000,
                )
                for rank in ranks:
                    assert rank.heartbeats is not None
                    there = (rank.heartbeats.address, rank.heartbeats.port)
                    udp.sendto(Heartbeat(rank.heartbeats.cookie, sequence, report).pack(), there)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture
def controller() -> Iterator[EmbeddedController]:
    with EmbeddedController(slots=64) as running:
        yield running


def test_a_job_from_its_first_rank_to_its_end(page: Page, controller: EmbeddedController) -> None:
    page.open(controller.url)
    page.wait(LIVE)
    page.wait("document.querySelectorAll('.switch').length === 1")
    assert "No jobs." in page.text("#jobs-empty")
    ranks = members(controller.url, "train", 3)
    with beating(ranks):
        page.wait("document.querySelector('tr.job .badge')?.innerText === 'running'")
        page.wait("document.querySelectorAll('.slot-range').length === 1")
        page.wait("document.querySelector('.ranks-text').innerText === '3/3'")
        page.wait("document.querySelectorAll('tr.job i[data-health=ok]').length === 3")
        page.wait("/^(1[5-9]|2[0-4])\\d MB\\/s$/.test(document.querySelector('.rate').innerText)")
        page.click("tr.job .disclose")
        page.wait("document.querySelectorAll('.detail .members tbody tr').length === 3")
        for figure in ("2.00 %", "50.0 %", "25.0 %"):  # loss, skipped, density
            page.wait(f"document.querySelector('tr.job').innerText.includes('{figure}')")
        page.wait("document.querySelector('.detail').innerText.includes('150 µs')")
        page.wait("document.querySelector('.chart .line').getAttribute('d').split('L').length >= 3")
        # All that the page reads of the controller's history is there.
        history = "fetch('v1/jobs/train/history').then((answer) => answer.json())"
        page.wait(f"{history}.then(({{points}}) => points.length >= 3)")
        points = page.evaluate(history)["points"]
        assert set(points[-1]) >= {"t", "GBps", "loss", "skip_ratio", "density"}
        page.open(controller.url)
        page.wait("document.querySelector('tr.job .spark .line')?.getAttribute('d').split('L').length >= 3")
        ranks[1].close_descriptors()
        page.wait("document.querySelector('tr.job .badge')?.innerText === 'failed'")
        page.wait("document.querySelector('#events').innerText.includes('its process ended')")
        page.wait("document.querySelectorAll('tr.job i[data-health=lost]').length === 1")
    for rank in (ranks[0], ranks[2]):
        rank.leave()
    page.wait("document.querySelectorAll('tr.job').length === 0")
    page.wait("document.querySelectorAll('.slot-range').length === 0")
    assert page.errors == []


def test_evict_and_drain(page: Page, controller: EmbeddedController) -> None:
    (rank,) = members(controller.url, "a job/with ünusual name", 1)
    page.open(controller.url)
    page.wait("document.querySelectorAll('tr.job').length === 1")
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.detail .danger')")
    page.click(".detail .danger")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    page.wait("document.querySelector('tr.job .badge').innerText === 'failed'")
    page.wait("document.querySelector('.detail .why').innerText === 'evicted by default'")
    page.wait("document.querySelectorAll('.slot-range').length === 0")
    event = rank.next_event(120)
    assert event is not None
    assert event["event"] == "evicted"
    rank.close_descriptors()
    page.wait("document.querySelectorAll('tr.job').length === 0")
    page.click(".switch .panel-head button")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    page.wait("document.querySelector('.switch .badge').innerText === 'draining'")
    page.click(".switch .panel-head button")
    page.wait("document.querySelector('.switch .badge').innerText === 'up'")
    assert page.errors == []


def test_the_commands_see_what_the_page_sees(
    controller: EmbeddedController, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHAGG_CONTROLLER", controller.url)
    ranks = members(controller.url, "train", 2)
    name = controller.driver.name

    def said(*line: str, status: int = 0) -> str:
        assert main(line) == status
        out, err = capsys.readouterr()
        return err if status else out

    assert "running" in said("jobs", "train")
    assert said("switches").splitlines()[1].split()[0] == name
    assert "train" in said("slots")
    assert "inits" in said("stats")
    assert "train" in said("top", "--once")
    assert "job_created" in said("events", "--job", "train")
    assert said("job", "create", "next", "--world-size", "2", "--priority", "9").startswith(
        "job 'next' is created"
    )
    assert said("job", "create", "next", "--world-size", "2", status=1).startswith("switchagg job: ")
    assert "accepted: " in said("job", "create", "x", "--world-size", "33", status=1)
    assert said("drain", "next") == "job 'next' is draining\n"
    assert said("drain", "--switch", name) == f"switch {name!r} is draining\n"
    assert "draining" in said("switches")
    assert said("undrain", "--switch", name) == f"switch {name!r} takes jobs again\n"
    assert said("evict", "train", "--tenant", "default") == "job 'train' was evicted\n"
    assert (
        said("evict", "train", "--tenant", "nobody", status=1) == "switchagg evict: there is no job 'train'\n"
    )
    for rank in ranks:
        event = rank.next_event(120)
        assert event is not None
        assert (event["event"], "evicted by default" in event["why"]) == ("evicted", True)


@contextmanager
def two_switches() -> Iterator[tuple[ControlServer, dict[str, str]]]:
    """A controller of two switches, and the tokens of two tenants."""
    with ExitStack() as stack:
        drivers = [
            EmbeddedDriver(stack.enter_context(Switch("127.0.0.1", 0, capacity=4096)), 4096, name=name)
            for name in ("left", "right")
        ]
        server = ControlServer(Controller(drivers))
        stack.callback(server.close)
        server.start()
        tenants = server.controller.tenants
        yield server, {name: tenants.add(name) for name in ("alice", "bob")}


def until_told(session: worker_lib.Session, told: threading.Event, gone: threading.Event) -> None:
    """Sums until rank 0 was told to end; rank 1 ends without a word as soon as it is to be `gone`."""
    while True:
        if session.places[session.rank] == 1 and gone.is_set():
            return vanish(session)
        x = np.full(1000, session.rank == 0 and told.is_set(), np.int32)
        try:
            session.allreduce(x)
        except worker_lib.WorkerLostError:
            continue
        if x[0]:
            return None
        time.sleep(0.005)


def test_the_timeline_of_a_job_that_loses_a_rank_and_moves(page: Page, chromium: Browser) -> None:
    told, gone = threading.Event(), threading.Event()
    kinds = "[...document.querySelectorAll('.timeline tbody .kind')].map((cell) => cell.textContent)"

    def timeline_of(tab: Page, url: str, token: str) -> None:
        tab.open(url)
        tab.wait("document.querySelector('#token')?.open")
        tab.type(token)
        tab.press("Enter")
        tab.wait("document.querySelectorAll('tr.job').length === 1")
        tab.click("tr.job .disclose")
        tab.wait("document.querySelector('.timeline')")
        tab.evaluate("document.querySelector('.timeline details').open = true")

    with two_switches() as (server, tokens), ThreadPoolExecutor(5) as pool:

        def rank(number: int) -> None:
            with worker_lib.connect(
                server.url, "train", number, 3, credential=tokens["alice"], transport="udp", on_loss="shrink"
            ) as session:
                until_told(session, told, gone)

        def other(number: int) -> None:
            with worker_lib.connect(server.url, "train", number, 2, credential=tokens["bob"]):
                told.wait(280)

        running = [pool.submit(rank, number) for number in range(3)]
        running += [pool.submit(other, number) for number in range(2)]
        try:
            timeline_of(page, server.url, tokens["alice"])
            page.wait(f"{kinds}.join() === 'job created,opened'")
            page.wait(
                r"/, \d[\d.]* collectives\/s$/.test(document.querySelector('.timeline-figures').innerText)"
            )
            gone.set()
            page.wait(f"{kinds}.join() === 'job created,opened,lost,shrunk'")
            job = server.controller.queries.job(Tenant("alice"), "train")
            assert job is not None
            assert job["switch"] is not None
            server.controller.drain_switch(OPEN, job["switch"])
            page.wait(f"{kinds}.join() === 'job created,opened,lost,shrunk,moving,moved'")
            page.wait("document.querySelectorAll('.timeline .switch-bar').length === 2")
            bars = (
                "[...document.querySelectorAll('.timeline .switch-bar text')].map((text) => text.textContent)"
            )
            assert sorted(page.evaluate(bars)) == ["left", "right"]
            said = page.text(".timeline tbody")
            assert "rank 1 of job 'train' is lost: its process ended" in said
            assert "goes on with ranks 0, 2" in said
            assert said.count(" without sums") == 2
            # A tab that is opened only now has all of it from the log.
            again, stranger = chromium.page(), chromium.page()
            timeline_of(again, server.url, tokens["alice"])
            again.wait(f"{kinds}.join() === 'job created,opened,lost,shrunk,moving,moved'")
            # Another tenant's job of the same name has its own events only.
            timeline_of(stranger, server.url, tokens["bob"])
            stranger.wait(f"{kinds}.includes('opened')")
            assert {"lost", "shrunk"}.isdisjoint(stranger.evaluate(kinds))
            assert "rank 1" not in stranger.evaluate("document.body.textContent")
            for tab in (page, again, stranger):  # of each there is the answer that asked for a token
                assert [said for said in tab.errors if "401 (Unauthorized)" not in said] == []
            again.close()
            stranger.close()
        finally:
            gone.set()
            told.set()
        for each in running:
            each.result(60)
