"""Hosts: `wire`, a conventional one without offloads, and `worker`, on which a rank of a job may run.

    worker h1      h1-eth0 ── data ── a switch
                   mgmt ────────────── h1-mgmt, in the root namespace, where the controller is

A switch here gets frames as the kernel has them, so the kernel must not leave segmentation and checksums to a
network card. Each worker has a link of its own to the controller: a bad data link delays no join or
heartbeat, and ranks keep the controller while a switch restarts.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

from mininet.node import Host

from mininet_topos import marks

OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro", "tx-udp-segmentation")
# RFC 2544's addresses for tests of network devices, which this computer's networks hardly use.
CONTROLLER = "198.18.255.254"
_MANAGEMENT = "198.18.{}.{}"
DEFAULT_MTU = 1500


class WireHost(Host):
    """A conventional host, without offloads and without IPv6, which would send packets by itself.

    Args:
        mtu: of its data links, 68 to 65535.
    """

    def __init__(self, name: str, **params: Any) -> None:
        marks.own()
        super().__init__(name, **params)

    def config(self, mtu: int = DEFAULT_MTU, **params: Any) -> dict[str, Any]:
        """Configures the interfaces; called by Mininet when all links exist."""
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
        job: the job of its rank; ranks are in the order of the hosts' names.
        mtu: of its data link.

    Attributes:
        environment: of its rank, once a controller runs.
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
        """Restarts the addresses of management links, after a network is removed."""
        WorkerHost._number = 0

    def enter(self, environment: dict[str, str]) -> None:
        """Sets the environment of the rank, for this host's shell and for `command`."""
        self.environment = dict(environment)
        self.cmd("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items()))

    def command(self, words: list[str]) -> list[str]:
        """Returns the command line that runs `words` on this host, from the root namespace."""
        return ["mnexec", "-a", str(self.pid), *words]

    def terminate(self) -> None:
        """Ends the host."""
        if self._outside is not None:
            # The kernel removes a namespace's interfaces late, and the name may be needed at once.
            _ip("link", "delete", self._outside, check=False)
            self._outside = None
        super().terminate()


def mac_of(ip: str) -> str:
    """Returns the MAC of a switch or host of ours, which contains its IPv4 address."""
    return "02:00:" + ":".join(f"{int(each):02x}" for each in ip.split("."))


def quiet(interface: str) -> None:
    """Switches IPv6 off on an interface of the root namespace."""
    path = Path("/proc/sys/net/ipv6/conf", interface, "disable_ipv6")
    if path.exists():
        path.write_text("1")


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


hosts = {"wire": WireHost, "worker": WorkerHost}
