"""Links with faults: `loss`, `delay`, `jitter` and `rate`, each way, with a seed, on any kernel.

    h1-eth0 ── 0a [process] 0b ── s1-eth1         both inner ends in a namespace of the process

Mininet's `tc` links need netem, which not every kernel has, and whose decisions cannot be repeated. Here one
process (`switchagg.topo.link_process`) serves all links of a network that have faults; the other links are
plain veth pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

from mininet.link import Link

from mininet_topos import marks, programs

FAULTS = ("loss", "delay", "jitter", "rate", "queue", "seed")


class LinkError(Exception):
    """A link cannot be made, or its process has failed."""


class LinkProcess:
    """The process of a network's faulty links."""

    def __init__(self) -> None:
        marks.own()
        self._process = subprocess.Popen(
            ["mnexec", "-n", programs.python(), "-m", "switchagg.topo.link_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._made = 0
        end = time.monotonic() + 10
        while _namespace(self.pid) == _namespace(os.getpid()):
            if time.monotonic() > end or self._process.poll() is not None:
                raise LinkError("the process of the links did not start")
            time.sleep(0.002)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises `LinkError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise LinkError("the process of the links has ended")
        said: dict[str, Any] = json.loads(answer)
        if "error" in said:
            raise LinkError(str(said["error"]))
        return said

    def name(self) -> str:
        """Returns a name for the next link."""
        self._made += 1
        return str(self._made - 1)

    def close(self) -> None:
        """Ends the process, with its interfaces and their peers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class FaultyLink(Link):
    """A link that loses and delays frames.

    Args:
        loss: probability, 0 to 1.
        delay, jitter: seconds, or a text such as "5ms".
        rate: Mbit/s.
        queue: limit of the frames that wait, with a rate.
        seed: of the random decisions.
    """

    _wires: LinkProcess | None = None
    _users = 0

    def __init__(self, node1: Any, node2: Any, **params: Any) -> None:
        self._faults = {name: params.pop(name) for name in FAULTS if name in params}
        self._name = ""
        # Mininet's option `fast` would make the two ends one pair.
        super().__init__(node1, node2, **params)
        FaultyLink._users += 1

    def makeIntfPair(
        self, intfname1: str, intfname2: str, addr1: str | None = None, addr2: str | None = None,
        node1: Any = None, node2: Any = None, deleteIntfs: bool = True,
    ) -> None:  # fmt: skip
        """Makes two pairs, with the process between them."""
        del deleteIntfs
        if FaultyLink._wires is None:
            FaultyLink._wires = LinkProcess()
        wires = FaultyLink._wires
        self._name = wires.name()
        ends = [self._name + side for side in "ab"]
        for node, name, mac, end in ((node1, intfname1, addr1, ends[0]), (node2, intfname2, addr2, ends[1])):
            said = node.cmd(
                f"ip link add name {name} {f'address {mac}' if mac else ''} type veth "
                f"peer name {end} netns {wires.pid}"
            )
            if said:
                raise LinkError(f"interface {name} cannot be made: {said.strip()}")
            subprocess.run(["mnexec", "-a", str(wires.pid), "ip", "link", "set", end, "up"], check=True)
        wires.ask({"add": self._name, "ends": ends, "faults": self._faults})

    def set(self, **faults: Any) -> dict[str, Any]:
        """Replaces the faults and returns the new ones. Raises `LinkError`."""
        assert self._wires is not None
        said: dict[str, Any] = self._wires.ask({"set": self._name, "faults": faults})["faults"]
        self._faults = faults
        return said

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns frames passed, lost and dropped by the queue: `forth` from the first node, and `back`."""
        assert self._wires is not None
        found: dict[str, dict[str, int]] = self._wires.ask({"counts": True})[self._name]
        return found

    def delete(self) -> None:
        """Removes the link."""
        super().delete()
        FaultyLink._users -= 1
        if not FaultyLink._users:
            self.forget()

    @classmethod
    def forget(cls) -> None:
        """Ends the process, after a network is removed."""
        wires, FaultyLink._wires, FaultyLink._users = FaultyLink._wires, None, 0
        if wires is not None:
            wires.close()


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""
