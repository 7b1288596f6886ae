"""Controller and switch in processes of their own, each killed and started again while workers sum."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from switchagg.control.client import ControllerClient
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.test_native_switch import NativeSwitch
from tests.waiting import eventually

from .plan import Episode, Event, Lane
from .run import ROOT, Rank

LANE = Lane("steady", "float32", 32, 20_000, 0.5, (3, 3))
Line = dict[str, Any]


class ControllerProcess:
    """`switchagg controller` in front of one switch. It comes back at the same address and state."""

    def __init__(self, state: Path, switch: NativeSwitch) -> None:
        self._state, self._switch = state, switch
        self._listen = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        line = [sys.executable, "-m", "switchagg.cli.main", "controller", "--json", "--listen", self._listen]
        line += ["--state", str(self._state), "--switch", f"rack=p4runtime://{self._switch.server}"]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.url = str(json.loads(self.process.stdout.readline())["controller"])
        self._listen = self.url.removeprefix("http://")
        self.client = ControllerClient(self.url, timeout=60.0)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)

    def events(self) -> list[str]:
        return [event["kind"] for event in self.client.events()]


@pytest.fixture
def switch() -> Iterator[NativeSwitch]:
    made = NativeSwitch()
    yield made
    made.kill()


@pytest.fixture
def controller(tmp_path: Path, switch: NativeSwitch) -> Iterator[ControllerProcess]:
    made = ControllerProcess(tmp_path, switch)
    yield made
    made.process.kill()
    made.process.communicate()


@contextlib.contextmanager
def working(
    controller: ControllerProcess, collectives: int, until: Path | None = None
) -> Iterator[list[Rank]]:
    """Three ranks in the middle of so many collectives, or of more, until this file exists."""
    episode = Episode(
        LANE, 0, 3, collectives, 20_000, seed_of_this_run(), Event.none, 0, 0.0, 0, str(until or "")
    )
    ranks = [Rank() for _ in range(3)]
    try:
        for place, rank in enumerate(ranks):
            rank.start(episode.command(place, controller.url))
        for rank in ranks:
            assert take(rank)["kind"] == "running"
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def take(rank: Rank, seconds: float = 60.0) -> Line:
    line = rank.lines.get(timeout=seconds)
    assert line is not None, "the rank's process ended"
    return line


def take_until_end(rank: Rank) -> list[Line]:
    lines = [take(rank)]
    while lines[-1]["kind"] != "end":
        lines.append(take(rank))
    return lines


def done(rank: Rank, count: int) -> list[Line]:
    """The next `count` lines, which must be of collectives that are done."""
    lines = [take(rank) for _ in range(count)]
    assert {line["kind"] for line in lines} == {"done"}, lines[-1]
    return lines


@pytest.mark.long
def test_a_controller_killed_in_the_middle_disturbs_no_collective(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    before = controller.client.slots()
    enough = tmp_path / "enough"
    with working(controller, 300, enough) as ranks:
        seen = {place: done(rank, 50) for place, rank in enumerate(ranks)}
        controller.kill()
        # With nobody in control, sums go on.
        for place, rank in enumerate(ranks):
            seen[place] += done(rank, 200)
        controller.start()
        eventually(lambda: [job["state"] for job in controller.client.jobs()] == ["running"], 20)
        members = controller.client.jobs()[0]["members"]
        assert [member["state"] for member in members] == ["joined"] * 3
        assert "reconciled" in controller.events()
        # Past the time that a member has to come back after a restart: nobody is taken for lost.
        time.sleep(6)
        assert [job["state"] for job in controller.client.jobs()] == ["running"]
        enough.touch()
        for place, rank in enumerate(ranks):
            seen[place] += take_until_end(rank)
    for lines in seen.values():
        assert lines[-1] == {"kind": "end", "how": "finished"}
        assert len(lines) > 301
        assert all(line["right"] for line in lines[:-1])
    assert len({tuple(line["digest"] for line in lines[:-1]) for lines in seen.values()}) == 1
    eventually(lambda: controller.client.jobs() == [], 20)
    assert controller.client.slots() == before
    assert "lost" not in controller.events()


@pytest.mark.long
def test_a_switch_killed_in_the_middle_is_named_and_serves_the_next_job(
    controller: ControllerProcess, switch: NativeSwitch
) -> None:
    before = controller.client.slots()
    with working(controller, 100_000) as ranks:
        for rank in ranks:
            done(rank, 20)
        switch.kill()
        switch.start()
        for rank in ranks:
            end = take_until_end(rank)[-1]
            assert end["how"] == "SwitchError", end
            assert "restarted" in end["text"], end
    eventually(lambda: controller.client.jobs() == [], 20)
    eventually(lambda: controller.client.slots() == before, 20)
    with working(controller, 30) as ranks:
        for rank in ranks:
            lines = take_until_end(rank)
            assert lines[-1] == {"kind": "end", "how": "finished"}
            assert all(line["right"] for line in lines[:-1])
