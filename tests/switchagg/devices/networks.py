"""Networks of veth pairs for tests of AF_XDP and DPDK. AF_XDP needs root outside of user namespaces."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from typing import Any, Final

from tests.switchagg.control.drivers.rack import REPOSITORY, Host

ALONE: Final = ("-npf", "--mount-proc", "--kill-child")
MAC: Final = 0x020000000001
"""Of the far end of a `pair`."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@functools.cache
def why_no_xdp() -> str:
    """Returns why AF_XDP cannot be tested here; empty if it can."""
    if os.geteuid() != 0 or not all(shutil.which(each) for each in ("unshare", "nsenter", "ip", "ethtool")):
        return "AF_XDP needs root, unshare, nsenter, ip and ethtool"
    probe = (
        "import socket; socket.socket(44, socket.SOCK_RAW).close(); import subprocess; "
        "subprocess.run('ip link add a0 type veth peer name b0; "
        "ip address add 10.0.0.1/24 dev a0; ip link set a0 up', shell=True, check=True)\n"
        "from worker_lib import _native; _native.Socket(0x0A000001, 0, 65536, True).use_xdp()"
    )
    done = subprocess.run(
        ["unshare", *ALONE, sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    return "" if done.returncode == 0 else f"no AF_XDP here: {done.stderr.strip().splitlines()[-1:]}"


def alone(module: str, *arguments: str, timeout: float = 280, namespace: tuple[str, ...] = ALONE) -> Any:
    """Runs a module of the tests in namespaces of its own; the JSON of its last line."""
    return _last_line(["unshare", *namespace], module, arguments, timeout)


def process(module: str, *arguments: str, timeout: float = 280) -> Any:
    """Runs a module of the tests in a process of its own; the JSON of its last line."""
    return _last_line([], module, arguments, timeout)


def _last_line(before: list[str], module: str, arguments: tuple[str, ...], timeout: float) -> Any:
    run = subprocess.run(
        [*before, sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, check=False, timeout=timeout, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    return json.loads(run.stdout.splitlines()[-1])


def pair(address: str = "10.0.0.254/24", mtu: int = 1500, queues: int = 1) -> None:
    """Makes interface "near" with an address, and "far", whose frames the test sends and reads itself."""
    ip("link", "set", "lo", "up")
    each = ("mtu", str(mtu), "numtxqueues", str(queues), "numrxqueues", str(queues))
    ip("link", "add", "near", *each, "type", "veth", "peer", "name", "far", *each)
    for name in ("near", "far"):
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as file:
            file.write("1")
    ip("address", "add", address, "dev", "near")
    for name in ("near", "far"):
        ip("link", "set", name, "up")
    ip("link", "set", "far", "arp", "off")
    ip("route", "add", "default", "dev", "near")
    mac = ":".join(f"{byte:02x}" for byte in MAC.to_bytes(6, "big"))
    hosts = [f"10.0.{subnet}.{number}" for subnet in (0, 8, 9) for number in range(1, 33)]
    lines = "".join(f"neighbour replace {host} lladdr {mac} dev near\n" for host in hosts)
    # The far end answers no ARP request.
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def far_socket() -> socket.socket:
    """Returns a packet socket of the far end that sees what comes from the near one only."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    made.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    made.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    made.bind(("far", 0))
    return made


def near_mac() -> int:
    shown = subprocess.run(["ip", "-j", "link", "show", "near"], capture_output=True, check=True).stdout
    return int(json.loads(shown)[0]["address"].replace(":", ""), 16)


class Rack:
    """Hosts on two bridges: 10.0.0.n for data, 10.9.0.n for the controller. The last one has the switch."""

    def __init__(self, hosts: int) -> None:
        ip("link", "set", "lo", "up")
        for bridge in ("bridge0", "bridge1"):
            ip("link", "add", bridge, "type", "bridge")
            ip("link", "set", bridge, "up")
        self.hosts = [Host(number) for number in range(1, hosts + 1)]
        for host in self.hosts:
            ip("link", "set", f"sw{host.number}", "master", "bridge1")
        self._switch: subprocess.Popen[str] | None = None

    def start_switch(self, *options: str) -> dict[str, Any]:
        """Starts `switchagg host` on the last host, in place of an earlier one; returns what it announces."""
        self._stop_switch()
        host = self.hosts[-1]
        line = [sys.executable, "-m", "switchagg.cli.main", "host", "--host", host.address]
        line += ["--controller-host", f"10.9.0.{host.number}", "--ignore-stdin", *options]
        self._switch = host.start(*line, stdout=subprocess.PIPE)
        assert self._switch.stdout is not None
        announced: dict[str, Any] = json.loads(self._switch.stdout.readline())
        return announced

    def run_workers(
        self, url: str, transports: list[str], *, job: str, timeout: float = 240
    ) -> list[dict[str, Any]]:
        """Runs `device_worker` on the first hosts with these transports; what each of them says."""
        processes = []
        for rank, transport in enumerate(transports):
            environment = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": str(len(transports)), "SWITCHAGG_CONTROLLER": url,
                "SWITCHAGG_ADDRESS": self.hosts[rank].address, "SWITCHAGG_TRANSPORT": transport,
                "SWITCHAGG_JOB": job, "OPENBLAS_NUM_THREADS": "1",
            }  # fmt: skip
            line = [sys.executable, "-m", "tests.switchagg.devices.device_worker"]
            processes.append(self.hosts[rank].start(*line, stdout=subprocess.PIPE, env=environment))
        said = []
        for process in processes:
            out, _ = process.communicate(timeout=timeout)
            assert process.returncode == 0, out
            said.append(json.loads(out.splitlines()[-1]))
        return said

    def _stop_switch(self) -> None:
        if self._switch is not None:
            self._switch.terminate()
            self._switch.communicate()

    def close(self) -> None:
        self._stop_switch()
        for host in self.hosts:
            host.close()
