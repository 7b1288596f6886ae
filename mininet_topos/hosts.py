"""Hosts: `wire`, whose frames are as they would be on a cable, and `worker`, on which a rank of a job may
run.

    worker h1      h1-eth0 ── data ── a switch
                   mgmt ────────────── h1-mgmt, in the root namespace, where the controller is

A switch here takes frames as the kernel has them, so segmentation and checksums must not be left to a
network card that is not there. Workers reach the controller by a link of their own each: a lost or slow
data link delays no join and no heartbeat, and the switch may be restarted without the ranks losing the
controller.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

from mininet.node import Host

from mininet_topos import marks

OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro", "tx-udp-segmentation")
# RFC 2544's addresses for tests of network devices: on no network that this computer is likely to be part of.
CONTROLLER = "198.18.255.254"
_MANAGEMENT = "198.18.{}.{}"
DEFAULT_MTU = 1500


class WireHost(Host):
    """A conventional host: no offloads, no IPv6, so that nothing is on its links but what somebody sends.

    Args:
        mtu: of its data links, 68 to 65535.
    """

    def __init__(self, name: str, **params: Any) -> None:
        marks.own()
        super().__init__(name, **params)

    def config(self, mtu: int = DEFAULT_MTU, **params: Any) -> dict[str, Any]:
        """Sets the interfaces up; Mininet calls it when all links are there."""
        self.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        said: dict[str, Any] = super().config(**params)
        for each in self.intfList():
            # Some kernels fix some offloads.
            self.cmd(f"ethtool -K {each} {' '.join(f'{one} off' for one in OFFLOADS)} >/dev/null 2>&1")
            self.cmd(f"ip link set dev {each} mtu {mtu}")
        return said


class WorkerHost(WireHost):
    """A host of workers.

    Args:
        job: the job that its rank belongs to; ranks follow the hosts' names.
        mtu: of its data link.

    Attributes:
        job: likewise.
        environment: what a rank here finds, once a controller runs.
    """

    _number = 0

    def __init__(self, name: str, job: str = "default", **params: Any) -> None:
        super().__init__(name, **params)
        self.job = job
        self.environment: dict[str, str] = {}
        self._outside: str | None = None

    def config(self, mtu: int = DEFAULT_MTU, **params: Any) -> dict[str, Any]:
        """Adds the link to the controller."""
        said = super().config(mtu, **params)
        WorkerHost._number += 1
        own = _MANAGEMENT.format(*divmod(WorkerHost._number, 256))
        name = f"{self.name}-mgmt"
        _ip("link", "add", name, "type", "veth", "peer", "name", "mgmt", "netns", str(self.pid))
        self._outside = name
        marks.claim(name)
        quiet(name)
        _ip("address", "add", CONTROLLER, "peer", own, "dev", name)
        _ip("link", "set", name, "up")
        self.cmd(f"ip address add {own} peer {CONTROLLER} dev mgmt && ip link set mgmt up")
        return said

    @classmethod
    def forget(cls) -> None:
        """Addresses of management links begin anew; for when a network is gone."""
        WorkerHost._number = 0

    def enter(self, environment: dict[str, str]) -> None:
        """Gives the shell of this host, and what `command` starts, the environment of its rank."""
        self.environment = dict(environment)
        self.cmd("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items()))

    def command(self, words: list[str]) -> list[str]:
        """The command line that runs `words` on this host, from the root namespace."""
        return ["mnexec", "-a", str(self.pid), *words]

    def terminate(self) -> None:
        """Ends the host."""
        if self._outside is not None:
            # The kernel takes its time to end a namespace, and the name may be wanted again at once.
            _ip("link", "delete", self._outside, check=False)
            self._outside = None
        super().terminate()


def mac_of(ip: str) -> str:
    """A MAC that holds an IPv4 address, as our switches have it and our topologies' hosts."""
    return "02:00:" + ":".join(f"{int(each):02x}" for each in ip.split("."))


def quiet(interface: str) -> None:
    """Switches IPv6 off on an interface of the root namespace."""
    path = Path("/proc/sys/net/ipv6/conf", interface, "disable_ipv6")
    if path.exists():
        path.write_text("1")


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


hosts = {"wire": WireHost, "worker": WorkerHost}
