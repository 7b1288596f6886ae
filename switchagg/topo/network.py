"""A network of `switchagg topo`: built, used, measured, and removed whatever happens.

    root? programs? names free?  -->  Mininet builds  -->  switches, controller  -->  command on every host
                                                                                         |
    as it was before  <--  removal of everything with our mark  <--  Mininet stops  <--  counters

Mininet builds it and removes most of it. The rest, such as half of a network whose construction failed, is
found and removed by its mark (`mininet_topos.marks`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchagg.errors import SwitchError, UsageError
from switchagg.launch.processes import raise_descriptor_limit
from switchagg.launch.ranks import run_ranks
from switchagg.launch.signals import STOP_SIGNALS, stop_signals, stop_signals_exit
from switchagg.topo import mininet_module
from switchagg.topo.check import RESULT_VARIABLE
from switchagg.topo.traffic import Traffic, TrafficMeter


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Settings of a network.

    Attributes:
        topology: as `mn --topo` has it: rack,4 or two_level,leaves=4,workers=16.
        switch: as `mn --switch` has it: native, or bmv2,words=16.
        words, slots: of jobs that ask for none.
    """

    topology: str
    switch: str
    words: int | None = None
    slots: int | None = None


@dataclass(slots=True)
class RunResult:
    """The result of a command on every worker host.

    Attributes:
        status: 0, or the exit status of the rank that failed first; 128 + n after signal n.
        ranks: the result of each rank of `switchagg topo check`, in order; empty for other commands.
        traffic: of each interface of a switch.
    """

    status: int
    ranks: list[dict[str, Any]] = field(default_factory=list)
    traffic: Mapping[str, Traffic] = field(default_factory=dict)


class Network:
    """A network that runs, inside `running_network`."""

    def __init__(self, net: Any) -> None:
        self.net = net

    @property
    def controller(self) -> Any:
        """The node of the controller."""
        return self.net.controllers[0]

    @property
    def workers(self) -> list[Any]:
        """The worker hosts, job by job, by rank."""
        return [each for members in self.controller.workers.values() for each in members]

    def interfaces(self) -> list[str]:
        """The switches' interfaces."""
        return [name for switch in self.net.switches for name in switch.interfaces().values()]

    def run(
        self, command: Sequence[str], *, prefix: bool, to_stderr: bool = False, grace: float = 5.0
    ) -> RunResult:
        """Runs a command on every worker host, as its rank, and waits."""
        from mininet_topos import marks

        folder = marks.folder() / "results"
        folder.mkdir(exist_ok=True)
        meter = TrafficMeter(self.interfaces())
        with stop_signals() as signals:
            status = run_ranks(
                [each.command(command) for each in self.workers],
                [_environment(each, folder) for each in self.workers],
                prefix=prefix,
                grace=grace,
                say=_say,
                signals=signals,
                to_stderr=to_stderr,
                bind=False,
            )
        ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        shutil.rmtree(folder)
        ranks.sort(key=lambda each: (each["job"], each["rank"]))
        return RunResult(status, ranks, meter.stop())

    def counters(self) -> dict[str, dict[str, int]]:
        """Returns the current counters of each switch."""
        found: dict[str, dict[str, int]] = self.controller.ask("/v1/stats")["switches"]
        return found

    def links(self) -> list[dict[str, Any]]:
        """Returns each link: its two nodes, the interface of a switch at it, the counters of its faults."""
        from mininet_topos.links import FaultyLink

        found = []
        for link in self.net.links:
            first, second = link.intf1, link.intf2
            # Of two switches the lower one's: its packets in are what came down.
            outer, inner = (first, second) if second.node in self.net.switches else (second, first)
            found.append(
                {
                    "ends": [outer.node.name, inner.node.name],
                    "interface": inner.name,
                    "faults": link.counts() if isinstance(link, FaultyLink) else None,
                }
            )
        return found


@contextlib.contextmanager
def running_network(plan: NetworkSettings, *, verbose: bool = False) -> Iterator[Network]:
    """Builds a network, yields it and removes it.

    Raises:
        UsageError: not root, no Mininet, no such switch, an interface exists, or a killed run left something.
        SwitchError: a switch or the controller does not start.
    """
    prepare()
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.util import buildTopo, customClass

    from mininet_topos import programs
    from mininet_topos.controllers import ControllerFailed, SwitchAggController
    from mininet_topos.hosts import WorkerHost
    from mininet_topos.links import LinkError
    from mininet_topos.switches import SwitchFailed, switches
    from mininet_topos.topologies import topos

    setLogLevel("info" if verbose else "output")
    topology = _named("topology", plan.topology, topos, buildTopo)
    switch = _named("switch", plan.switch, switches, customClass)
    _check_options(plan.switch, switches)
    _free(_names(topology))
    raise_descriptor_limit()  # a host has a pseudo-terminal, a link two sockets
    # Mininet would change limits of the whole computer, for good.
    Mininet.inited = True
    net = None
    with stop_signals_exit():
        try:
            try:
                net = Mininet(topo=None, switch=switch, host=WorkerHost, controller=None, waitConnected=False)
                net.addController("c0", SwitchAggController, words=plan.words, slots=plan.slots)
                net.topo = topology
                net.build()
                net.start()
            except (programs.Missing, ValueError) as error:
                raise UsageError(str(error)) from None
            except (SwitchFailed, ControllerFailed, LinkError) as error:
                raise SwitchError(str(error)) from None
            yield Network(net)
        finally:
            _remove(net)


def prepare() -> None:
    """Raises `UsageError` where no network can be built: not root, no Mininet, remains of another run."""
    if os.geteuid() != 0:
        raise UsageError(
            "a network of namespaces needs root: `sudo` this command, or try it in a user namespace of its "
            "own with `unshare -rnpfm --mount-proc switchagg topo ...`"
        )
    mininet_module.load()
    mininet_module.check_programs(ethtool="ethtool", sysctl="procps")
    from mininet_topos import marks

    left = marks.stale()
    if left:
        raise UsageError(
            "a run that was killed has left something behind: "
            + "; ".join(map(str, left))
            + ". `switchagg topo clean` removes that, and nothing else"
        )


def _named(what: str, text: str, known: Mapping[str, Any], make: Any) -> Any:
    name = text.partition(",")[0]
    if name not in known:
        raise UsageError(f"{what} is {name!r}; accepted: {', '.join(known)}")
    try:
        return make(known, text)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what} {text}: {error}") from None


def _check_options(text: str, known: Mapping[str, Any]) -> None:
    """Raises `UsageError` for an option that this kind of switch lacks: Mininet accepts any."""
    from mininet.util import splitArgs

    name, more, options = splitArgs(text)
    accepted = known[name].options()
    for each in (*more, *options):
        if each not in accepted or each in more:
            raise UsageError(f"switch {name} has no {each!r}; accepted: {', '.join(accepted)}, as name=value")


def _names(topology: Any) -> set[str]:
    """Returns the interfaces that a topology will have in the root namespace."""
    ends = [
        end
        for first, second, link in topology.links(withInfo=True)
        for end in ((first, link["port1"]), (second, link["port2"]))
    ]
    data = {f"{node}-eth{port}" for node, port in ends if topology.isSwitch(node)}
    return data | {f"{host}-mgmt" for host in topology.hosts()}


def _free(names: set[str]) -> None:
    from mininet_topos import marks

    taken = {name: mark for name, mark in marks.interfaces().items() if name in names}
    if not taken:
        return
    name, mark = sorted(taken.items())[0]
    whose = f"of another network of ours, process {mark.split('.')[0]}" if mark else "and is not ours"
    raise UsageError(
        f"interface {name} is there already {whose}. Stop what uses it, or build this network beside it in a "
        "namespace of its own: `unshare -npfm --mount-proc switchagg topo ...`"
    )


def _remove(net: Any) -> None:
    """Removes the network; a second Ctrl-C does not interrupt that."""
    from mininet_topos import marks
    from mininet_topos.hosts import WorkerHost
    from mininet_topos.links import FaultyLink

    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        if net is not None:
            # Stopping half a network fails; what is left then carries the mark.
            with contextlib.suppress(Exception):
                net.stop()
        WorkerHost.forget()
        FaultyLink.forget()
        marks.release()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(host: Any, folder: Path) -> dict[str, str]:
    defaults = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**defaults, **os.environ, **host.environment, RESULT_VARIABLE: str(folder)}


def _say(message: str) -> None:
    print(f"switchagg topo: {message}", file=sys.stderr, flush=True)
