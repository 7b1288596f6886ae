"""`switchagg controller` over P4Runtime, with two `switchagg switch --p4runtime` of the native engine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from tests.switchagg.control.drivers.model_switch import until
from tests.switchagg.control.drivers.rack_jobs import WORKER, Talk, heard


def _free_port() -> int:
    """Returns a port that is free for TCP and UDP, and that the kernel gives to nobody."""
    while True:
        port = random.randrange(20_000, 32_768)
        try:
            for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
                with socket.socket(type=kind) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port


class Site:
    """Switches, a controller with its state in a folder, and workers of this host.

    `wiring` has the controller's options for each switch, by its name.
    """

    timeout = 20  # seconds for a call to a switch

    def __init__(
        self, folder: Path, wiring: Mapping[str, str] = MappingProxyType({"a": "", "b": ""})
    ) -> None:
        self._state, self._wiring = folder, wiring
        self._ports = {name: (_free_port(), _free_port()) for name in wiring}
        self._switches: dict[str, subprocess.Popen[str]] = {}
        self._controller: subprocess.Popen[str] | None = None
        self.port = _free_port()
        try:
            for name in self._ports:
                self.start_switch(name)
            self.start_controller()
        except BaseException:
            self.close()
            raise

    def start_switch(self, name: str) -> None:
        """Starts a switch that holds nothing."""
        server, data = self._ports[name]
        self._switches[name] = _started(
            "switch", "--p4runtime", f"127.0.0.1:{server}", "--port", str(data), "--capacity", "1024"
        )

    def kill_switch(self, name: str) -> None:
        """Ends a switch, whatever it is at."""
        switch = self._switches.pop(name)
        switch.kill()
        switch.communicate()

    def signal_switch(self, name: str, number: int) -> None:
        """Sends a signal to a switch's process."""
        self._switches[name].send_signal(number)

    def start_controller(self) -> None:
        """Starts a controller on what an earlier one has left; returns when it has reached all switches."""
        self.start_controller_only()
        until(lambda: all(each["state"] == "up" for each in self.get("/v1/switches")))

    def start_controller_only(self) -> None:
        """Starts a controller on what an earlier one has left."""
        switches = [
            word
            for name, (server, _) in self._ports.items()
            for word in (
                "--switch",
                f"{name}=p4runtime://127.0.0.1:{server}?timeout={self.timeout}&{self._wiring[name]}".rstrip(
                    "&"
                ),
            )
        ]
        listen = ["--listen", f"127.0.0.1:{self.port}", "--state", str(self._state), "--log-level", "warning"]
        self._controller = _started("controller", *listen, *switches)

    def kill_controller(self) -> None:
        """Ends it by SIGKILL."""
        assert self._controller is not None
        self._controller.send_signal(signal.SIGKILL)
        self._controller.communicate()

    def get(self, path: str) -> Any:
        """The controller's answer."""
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            found = json.load(answer)
        (inner,) = found.values() if isinstance(found, dict) and len(found) == 1 else (found,)
        return inner

    def post(self, path: str) -> None:
        """Gives the controller an order."""
        with urlopen(f"http://127.0.0.1:{self.port}{path}", data=b"", timeout=60):
            pass

    def close(self) -> None:
        """Ends all of it."""
        for each in (self._controller, *self._switches.values()):
            if each is not None:
                each.kill()
                each.communicate()


def _started(*line: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "switchagg.cli.main", *line, "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline(), f"{line} did not start"
    return process


def _work(
    site: Site, name: str, workers: int, act: Callable[[list[Talk]], None], **environment: str
) -> list[list[dict[str, Any]]]:
    """Runs a job and something that happens to it; what each worker said."""
    processes = []
    for rank in range(workers):
        own = (
            os.environ
            | environment
            | {
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "SWITCHAGG_CONTROLLER": f"http://127.0.0.1:{site.port}",
                "WORKER_ADDRESS": "127.0.0.1",
                "OPENBLAS_NUM_THREADS": "1",
            }
        )
        line = [sys.executable, "-c", WORKER, name]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=own))
    try:
        return heard(processes, act)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "state")
    try:
        yield made
    finally:
        made.close()


def test_the_controller_is_killed_and_comes_back(site: Site) -> None:
    seen: dict[str, Any] = {}

    def act(talks: list[Talk]) -> None:
        for each in talks:
            each.until(50)
        seen["before"] = site.get("/v1/slots")
        site.kill_controller()
        reached = talks[0].said[-1]["turn"]
        talks[0].until(reached + 200)
        seen["without"] = talks[0].said[-1]
        site.start_controller()
        seen["after"] = site.get("/v1/slots")
        for each in talks:
            each.until(each.said[-1]["turn"] + 200)

    said = _work(site, "j", 3, act, SWITCHAGG_DEADLINE="60")
    for each in said:
        assert "error" not in each[-1], each[-1]
        assert all(turn["exact"] for turn in each)
    assert "turn" in seen["without"]
    assert seen["after"] == seen["before"]
    found = [each for each in site.get("/v1/events?limit=200") if each["kind"] == "reconciled"]
    assert found[-1]["text"].endswith("1 jobs were in order, 0 were not there, 0 were nobody's")
    until(lambda: not any(each["ranges"] for each in site.get("/v1/switches")))


def test_a_switch_is_killed_and_its_job_goes_on_at_the_other(site: Site) -> None:
    def act(talks: list[Talk]) -> None:
        for each in talks:
            each.until(20)
        (job,) = site.get("/v1/jobs")
        (other,) = {"a", "b"} - {job["switch"]}
        site.kill_switch(job["switch"])
        until(
            lambda: [(other, "running")] == [(each["switch"], each["state"]) for each in site.get("/v1/jobs")]
        )
        for each in talks:
            each.until(each.said[-1]["turn"] + 100)
        site.start_switch(job["switch"])
        until(lambda: all(each["state"] == "up" for each in site.get("/v1/switches")))

    for each in _work(site, "j", 3, act, SWITCHAGG_DEADLINE="60"):
        assert "error" not in each[-1], each[-1]
        assert all(turn["exact"] for turn in each)
    until(lambda: not any(each["ranges"] for each in site.get("/v1/switches")))


def test_a_job_waits_for_a_switch_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one stands still for longer than the controller waits for an answer, then takes the job."""
    monkeypatch.setattr(Site, "timeout", 3)
    with contextlib.closing(Site(tmp_path / "state")) as site:
        _waits_for_a_switch(site)


def _waits_for_a_switch(site: Site) -> None:

    def said() -> str:
        return "\n".join(each["text"] for each in site.get("/v1/events?limit=200"))

    def act(talks: list[Talk]) -> None:
        for each in talks:
            each.until(20)
        (job,) = site.get("/v1/jobs")
        (other,) = {"a", "b"} - {job["switch"]}
        site.signal_switch(other, signal.SIGSTOP)
        try:
            site.kill_switch(job["switch"])
            until(lambda: f"switch {other!r} did not take job 'j'" in said())
        finally:
            site.signal_switch(other, signal.SIGCONT)
        for each in talks:
            each.until(each.said[-1]["turn"] + 100)
        (job,) = site.get("/v1/jobs")
        assert (job["switch"], job["state"]) == (other, "running")
        assert "job 'j' waits for a switch, at most 60 s" in said()

    for each in _work(site, "j", 3, act, SWITCHAGG_DEADLINE="60"):
        assert "error" not in each[-1], each[-1]
        assert all(turn["exact"] for turn in each)
    until(lambda: not any(each["ranges"] for each in site.get("/v1/switches")))


def test_without_another_switch_a_job_ends(site: Site) -> None:
    """The other switch is down before; the one that is left comes back too late."""
    (other,) = {"a", "b"} - {_first_switch(site)}
    site.kill_switch(other)
    until(lambda: any(each["state"] == "down" for each in site.get("/v1/switches")))
    seen: dict[str, Any] = {}

    def act(talks: list[Talk]) -> None:
        for each in talks:
            each.until(20)
        (job,) = site.get("/v1/jobs")
        seen["switch"] = job["switch"]
        site.kill_switch(job["switch"])
        for each in talks:
            each.rest()
        site.start_switch(job["switch"])

    for each in _work(site, "j", 3, act):
        assert each[-1].get("error") == "SwitchError", each[-1]
        assert any(
            said in each[-1]["text"] for said in ("is gone: its port refuses packets", "no other has room")
        ), each[-1]
        assert all(turn["exact"] for turn in each[:-1])
    site.start_switch(other)
    until(lambda: all(each["state"] == "up" for each in site.get("/v1/switches")))
    until(lambda: not any(each["ranges"] for each in site.get("/v1/switches")))

    def go_on(talks: list[Talk]) -> None:
        for each in talks:
            each.until(5)

    for each in _work(site, "again", 3, go_on):
        assert all(turn["exact"] for turn in each)


def _first_switch(site: Site) -> str:
    """The switch that a job of three gets while both are empty."""
    seen: list[str] = []

    def look(talks: list[Talk]) -> None:
        talks[0].until(1)
        seen.append(site.get("/v1/jobs")[0]["switch"])

    _work(site, "first", 3, look)
    return seen[0]
