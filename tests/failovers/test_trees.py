"""The root of a tree is killed in the middle of an all-reduce, and one switch takes all workers."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

import worker_lib
from tests.switchagg.control.drivers.test_two_switches import _free_port, _started
from tests.waiting import eventually

from ..worker_lib.harness import in_threads

_WIRING = {  # ranks 0 and 1 are in 127.0.1.0/24, 2 and 3 in 127.0.2.0/24
    "root": "host=127.9.0.0/24",
    "left": "parent=root&host=127.0.1.0/24",
    "other_left": "parent=root&host=127.0.1.0/24",
    "right": "parent=root&host=127.0.2.0/24",
    "spare": "",
}


class Tree:
    """A root with three leaves, a controller, and a switch that takes everybody, once it is started."""

    def __init__(self) -> None:
        self._ports = {name: _free_port() for name in _WIRING}
        self.switches: dict[str, subprocess.Popen[str]] = {}
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        line = ["--listen", f"127.0.0.1:{self._port}", "--log-level", "error"]
        for name, wiring in _WIRING.items():
            line += [
                "--switch",
                f"{name}=p4runtime://127.0.0.1:{self._ports[name]}?timeout=2&{wiring}".rstrip("&"),
            ]
        for name in ("root", "left", "other_left", "right"):
            self.start(name)
        self._controller = _started("controller", *line)
        self.await_switches(4)

    def start(self, name: str) -> None:
        """Starts a switch."""
        server = f"127.0.0.1:{self._ports[name]}"
        self.switches[name] = _started(
            "switch", "--p4runtime", server, "--port", "0", "--host", "127.0.0.1", "--capacity", "1024"
        )

    def await_switches(self, number: int) -> None:
        """Waits until so many are up."""

        def states() -> list[str]:
            return [each["state"] for each in self.get("/v1/switches")["switches"]]

        eventually(lambda: states().count("up") == number, 60)

    def get(self, path: str) -> Any:
        """The controller's answer."""
        with urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def close(self) -> None:
        """Ends all of it."""
        for each in (self._controller, *self.switches.values()):
            each.kill()
            each.communicate()


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    try:
        yield made
    finally:
        made.close()


def test_a_job_goes_from_its_tree_to_one_switch(tree: Tree) -> None:
    results: dict[str, list[npt.NDArray[Any]]] = {}
    ready, struck = threading.Barrier(5), threading.Event()

    def member(job: str, rank: int) -> npt.NDArray[Any]:
        x = np.random.default_rng(rank).standard_normal(1 << 22).astype(np.float32)
        address = f"127.0.{1 + rank // 2}.{1 + rank}"
        with worker_lib.connect(
            tree.url, job, rank, 4, timeout=60.0, transport="udp", address=address, slots=256, words=352
        ) as session:
            ready.wait(60)
            ready.wait(60)
            session.allreduce(x, blocks="dense")
            struck.wait(60)
            session.barrier()
        return x

    def strike(job: str) -> None:
        ready.wait(60)
        (found,) = tree.get("/v1/jobs")["jobs"]
        assert {found["switch"], *(leaf["switch"] for leaf in found["leaves"])} == {
            "root", "left", "other_left", "right",
        }  # fmt: skip
        if job == "disturbed":  # before, it would have got the job alone
            tree.start("spare")
            tree.await_switches(5)
        ready.wait(60)
        if job == "disturbed":
            time.sleep(0.02)
            tree.switches["root"].kill()
        struck.set()

    for job in ("undisturbed", "disturbed"):
        struck.clear()
        calls = [partial(member, job, rank) for rank in range(4)]
        *ranks, striker = in_threads([*calls, partial(strike, job)])
        striker.get()
        results[job] = [rank.get() for rank in ranks]
    for undisturbed, disturbed in zip(results["undisturbed"], results["disturbed"], strict=True):
        assert np.array_equal(undisturbed, disturbed)
    moved = [each["text"] for each in tree.get("/v1/events?limit=100")["events"] if each["kind"] == "moved"]
    assert moved, "the switch was killed when all was done"
    assert moved[-1].endswith(" runs on spare")
