"""The controller of a Mininet network: `switchagg controller`, over P4Runtime to every kind of switch.

    switches' ports, hosts' addresses  -->  a configuration file  -->  switchagg controller  -->  P4Runtime
                                                                             ^-- workers' management links

It starts when all switches run and listens at an address that only this network's hosts reach. Its one tenant
has a token, which is part of the environment of each rank.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from mininet.log import info, warn
from mininet.node import Controller, Node
from mininet.util import naturalSeq

from mininet_topos import marks, programs
from mininet_topos.hosts import CONTROLLER, WorkerHost, mac_of

PORT = 8080
_START = 60.0


class ControllerFailed(Exception):
    """The controller does not start, or cannot drive a switch."""


class Station(NamedTuple):
    """A host, or another switch's own address, behind a port of a switch."""

    ip: str
    mac: str
    port: int


class SwitchAggController(Controller):
    """The controller of all switches of a network.

    Args:
        words, slots: of jobs that ask for none.

    Attributes:
        url: of its API, once it serves.
        token: of an administrator.
        switches: the switches that it drives.
        workers: the hosts with a rank, by job, in the order of their ranks.
    """

    def __init__(self, name: str, words: int | None = None, slots: int | None = None, **params: Any) -> None:
        params.pop("command", None)
        marks.own()
        self._sizes = {"words": words, "slots": slots}
        self.switches: list[Any] = []
        self.workers: dict[str, list[WorkerHost]] = {}
        self.url = ""
        self.token = ""
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(name, inNamespace=False, **params)

    def checkListening(self) -> None:
        """Does nothing: Mininet would check an OpenFlow port, which this controller does not have."""

    def start(self) -> None:
        """Does nothing: `serve` starts the process when all switches run."""

    def adopt(self, switch: Any) -> None:
        """Adds a switch to those that it drives; called by the switch."""
        self.switches.append(switch)
        switch.add_controller(self)

    def serve(self) -> None:
        """Starts the process; returns when all switches are up and all worker hosts have their environment.

        Raises `ControllerFailed`.
        """
        if self._process is not None:
            return
        folder = marks.folder()
        state = folder / f"{self.name}-state"
        added = subprocess.run(
            [*programs.switchagg(), "tenant", "add", "mininet", "--admin", "--state", str(state)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if added.returncode:
            raise ControllerFailed(f"no tenant: {added.stdout.decode(errors='replace').strip()}")
        self.token = added.stdout.decode().split()[-1]
        workers = [each for each in _hosts(self.switches) if isinstance(each, WorkerHost)]
        # Only worker hosts bring up the address.
        listen = f"{CONTROLLER if workers else '127.0.0.1'}:{PORT}"
        configuration = folder / f"{self.name}.toml"
        configuration.write_text(self._configuration(listen, str(state)))
        log = folder / f"{self.name}.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*programs.switchagg(), "controller", "--config", str(configuration)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.url = f"http://{listen}"
        self._wait(lambda: log.read_text(errors="replace"))
        self._give_environments(workers)
        info(f"({self.url}) ")

    def ask(self, path: str) -> dict[str, Any]:
        """Returns the controller's answer to GET `path`, such as /v1/jobs."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
        return said

    def stop(self, *_: Any, **__: Any) -> None:
        """Ends the process; called by Mininet."""
        if self._process is not None:
            if self._process.poll() is not None:
                warn(f"{self.name} had ended by itself, with status {self._process.returncode}\n")
            programs.end(self._process)
            self._process = None
        Node.stop(self)

    def IP(self, intf: Any = None) -> str:
        """Returns its address."""
        del intf
        return CONTROLLER

    def _configuration(self, listen: str, state: str) -> str:
        tables: dict[str, dict[str, Any]] = {"controller": {"listen": listen, "state": state}}
        tables["controller"].update({name: size for name, size in self._sizes.items() if size is not None})
        top = root(self.switches)
        for switch in self.switches:
            table = {
                "address": switch.address,
                "stations": [f"{each.ip},{each.mac},{each.port}" for each in stations(switch)],
                **switch.table(),
            }
            if len(self.switches) > 1:
                # Stations include hosts of other switches. Without own hosts: an address that no worker has.
                direct = [str(each.IP()) for each in neighbours(switch) if not _aggregates(each)]
                table["hosts"] = direct or [switch.address]
            if top is not None and switch is not top:
                table["parent"] = top.name
            tables[f"switch.{switch.name}"] = table
        # JSON's numbers, strings and lists of these are TOML's too.
        return "".join(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            for name, table in tables.items()
        )

    def _wait(self, said: Any) -> None:
        """Waits until every switch is up."""
        assert self._process is not None
        end = time.monotonic() + _START
        states: dict[str, Any] = {}
        while True:
            with contextlib.suppress(OSError, ValueError):
                states = {each["name"]: each for each in self.ask("/v1/switches")["switches"]}
                if all(states[switch.name]["state"] == "up" for switch in self.switches):
                    return
            if self._process.poll() is not None or time.monotonic() > end:
                waiting = [each for each in states.values() if each["state"] != "up"]
                down = "; ".join(f"{each['name']} is {each['state']}: {each.get('why')}" for each in waiting)
                words = "; ".join(said().strip().splitlines()[-3:])
                raise ControllerFailed(f"the controller does not start: {down or words or 'it said nothing'}")
            time.sleep(0.05)

    def _give_environments(self, workers: list[WorkerHost]) -> None:
        for each in workers:
            self.workers.setdefault(each.job, []).append(each)
        for job, members in self.workers.items():
            for rank, each in enumerate(members):
                each.enter(
                    {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(len(members)),
                        "LOCAL_RANK": "0",
                        "LOCAL_WORLD_SIZE": "1",
                        "MASTER_ADDR": str(members[0].IP()),
                        "MASTER_PORT": "29500",
                        "SWITCHAGG_CONTROLLER": self.url,
                        "SWITCHAGG_TOKEN": self.token,
                        "SWITCHAGG_JOB": job,
                        "SWITCHAGG_ADDRESS": str(each.IP()),
                        "SWITCHAGG_SWITCH": next(one.name for one in neighbours(each) if _aggregates(one)),
                    }
                )


def stations(switch: Any) -> list[Station]:
    """Returns the stations behind each port: hosts at any distance, and adjacent switches. No rings."""
    found = []
    for port, intf in sorted(switch.intfs.items()):
        for depth, node in _behind(intf):
            if not _aggregates(node):
                found.append(Station(str(node.IP()), str(node.MAC()), port))
            elif depth == 0:
                found.append(Station(node.address, mac_of(node.address), port))
    return found


def neighbours(node: Any) -> list[Any]:
    """Returns the nodes at the other ends of a node's links, by port."""
    there = (_neighbour(intf) for _, intf in sorted(node.intfs.items()))
    return [each[0] for each in there if each is not None]


def root(switches: list[Any]) -> Any:
    """Returns the switch that is adjacent to all others, its leaves; None if there is none.

    Of several, it is the one with the fewest hosts.
    """
    if len(switches) < 2:
        return None
    found = []
    for each in switches:
        others = [one for one in neighbours(each) if _aggregates(one)]
        if len(others) == len(switches) - 1:
            found.append((len(neighbours(each)) - len(others), naturalSeq([each.name]), each))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _aggregates(node: Any) -> bool:
    """Returns True for a switch of ours."""
    return hasattr(node, "server")


def _neighbour(intf: Any) -> tuple[Any, Any] | None:
    """Returns the node at the other end of an interface's link, and its interface there."""
    link = getattr(intf, "link", None)
    if not link:
        return None
    other = link.intf2 if link.intf1 is intf else link.intf1
    return other.node, other


def _behind(intf: Any, depth: int = 0) -> Iterator[tuple[int, Any]]:
    """Yields the nodes behind an interface, each with the number of switches between."""
    there = _neighbour(intf)
    if there is None:
        return
    node, entered = there
    yield depth, node
    if _aggregates(node):
        for each in node.intfList():
            if each is not entered:
                yield from _behind(each, depth + 1)


def _hosts(switches: list[Any]) -> list[Any]:
    """Returns all hosts at these switches, in the natural order of their names."""
    nodes = {node.name: node for switch in switches for node in neighbours(switch) if not _aggregates(node)}
    return sorted(nodes.values(), key=lambda each: naturalSeq([each.name]))


controllers = {"switchagg": SwitchAggController}
