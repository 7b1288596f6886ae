"""A rack in network namespaces: hosts behind one switch, and a network beside it for the controller.

    host 1 --data-- 1 -+- switch (bmv2's simple_switch_grpc, the P4 model, or the native engine)
    host 2 --data-- 2 -'    |  P4Runtime, loopback
      |      |              |
      `-mgmt-+--bridge--  this process: driver, controller

It runs where it may make interfaces: a process of `in_namespace`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from switchagg.p4runtime.client.spec import P4RuntimeSpec, from_table

REPOSITORY = Path(__file__).parents[4]
SWITCH_IP = "10.0.0.254"
MGMT_IP = "10.9.0.254"
CPU_PORT = 510

# Processes too, so that none outlives the first of them.
ALONE = ("-rnpf", "--mount-proc", "--kill-child")


@functools.cache
def has_namespaces() -> bool:
    """True if an unprivileged namespace can have veth pairs and a bridge here."""
    if not all(shutil.which(each) for each in ("unshare", "nsenter", "ip", "ethtool")):
        return False
    line = "ip link add wire0 type veth peer name wire1 && ip link add bridge0 type bridge"
    probe = subprocess.run(["unshare", *ALONE, "sh", "-c", line], capture_output=True, check=False)
    return probe.returncode == 0


def in_namespace(module: str, *arguments: str, timeout: float = 280) -> Any:
    """Runs a module of the tests in a namespace of its own; the JSON of its last line."""
    run = subprocess.run(
        ["unshare", *ALONE, sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-6000:]
    return json.loads(run.stdout.splitlines()[-1])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Host:
    """A host of the rack: a namespace, kept by a process that sleeps."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"10.0.0.{number}"
        self.mac = f"02:00:00:00:00:{number:02x}"
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == own:
            time.sleep(0.002)
        pid = str(self._holder.pid)
        _ip("link", "add", f"sw{number}", "type", "veth", "peer", "name", "data", "netns", pid)
        _ip("link", "add", f"mg{number}", "type", "veth", "peer", "name", "mgmt", "netns", pid)
        _ip("link", "set", f"mg{number}", "master", "bridge0", "up")
        _ip("link", "set", f"sw{number}", "up")
        self.run("ip", "link", "set", "data", "address", self.mac)
        # The switch takes frames as they are on a wire: no larger ones, no checksum left out.
        offloads = ("tx", "sg", "tso", "gso", "gro", "tx-udp-segmentation")
        self.run("ethtool", "-K", "data", *(word for each in offloads for word in (each, "off")))
        for name, address in (("data", f"{self.address}/24"), ("mgmt", f"10.9.0.{number}/24")):
            self.run("ip", "address", "add", address, "dev", name)
        for name in ("lo", "data", "mgmt"):
            self.run("ip", "link", "set", name, "up")

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a process on this host."""
        line = ["nsenter", "-t", str(self._holder.pid), "-n", *command]
        return subprocess.Popen(line, text=True, **options)

    def run(self, *command: str) -> None:
        """Runs a command on this host."""
        with self.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            _, problem = process.communicate()
        # Some kernels fix some offloads.
        if process.returncode and command[0] != "ethtool":
            raise RuntimeError(f"{' '.join(command)}: {problem}")

    def close(self) -> None:
        """Ends the host; its interfaces go with it."""
        self._holder.kill()
        self._holder.wait()


class Rack:
    """Hosts 1 to n on ports 1 to n of a switch, from construction on.

    Args:
        engine: ``p4``, ``bmv2`` or ``native``.
        folder: what `compiled` made; where logs may lie.
    """

    def __init__(self, engine: str, hosts: int, folder: Path, *, words: int = 16) -> None:
        self.engine, self.words = engine, words
        self._program = REPOSITORY / "p4" / "switchagg_v1model.p4"
        self._folder = folder
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "bridge0", "type", "bridge")
        _ip("address", "add", f"{MGMT_IP}/24", "dev", "bridge0")
        _ip("link", "set", "bridge0", "up")
        self.hosts = [Host(number) for number in range(1, hosts + 1)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.server = f"127.0.0.1:{probe.getsockname()[1]}"
        self._switch: subprocess.Popen[bytes] | None = None
        self.start_switch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_switch()
        for host in self.hosts:
            host.close()

    def start_switch(self) -> None:
        """Starts the switch with nothing in its tables; bmv2 without a program."""
        interfaces = [word for host in self.hosts for word in ("-i", f"{host.number}@sw{host.number}")]
        if self.engine == "bmv2":
            command = ["simple_switch_grpc", "--no-p4", *interfaces]
            command += ["--", "--grpc-server-addr", self.server, "--cpu-port", str(CPU_PORT)]
        else:
            command = [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", self.engine]
            command += [*interfaces, "--p4runtime", self.server]
            if self.engine == "p4":
                command += ["--program", str(self._program), "-D", f"AGG_WORDS={self.words}"]
        self._switch = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        host, port = self.server.split(":")
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            assert self._switch.poll() is None, "the switch did not start"
            assert time.monotonic() < end, "the switch does not answer"
            time.sleep(0.02)

    def kill_switch(self, number: int = signal.SIGKILL) -> None:
        """Ends the switch, whatever it is at."""
        if self._switch is not None:
            self._switch.send_signal(number)
            self._switch.wait()

    def table(self, **more: Any) -> dict[str, Any]:
        """The switch's configuration."""
        stations = [f"{host.address},{host.mac},{host.number}" for host in self.hosts]
        table: dict[str, Any] = {
            "url": f"p4runtime://{self.server}",
            "address": SWITCH_IP,
            "stations": stations,
        }
        if self.engine == "bmv2":
            table |= {
                "p4info": str(self._folder / "switchagg_v1model.p4info.txtpb"),
                "config": str(self._folder / "switchagg_v1model.json"),
            }
        return table | more

    def spec(self, **more: Any) -> P4RuntimeSpec:
        """The same, read."""
        return from_table("rack1", self.table(**more))

    @contextlib.contextmanager
    def workers(self, url: str, script: str, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
        """A Python process on each host, with the environment of its rank."""
        processes = []
        for rank, host in enumerate(self.hosts):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.hosts)),
                "SWITCHAGG_CONTROLLER": url,
                "WORKER_ADDRESS": host.address,
                "OPENBLAS_NUM_THREADS": "1",
                "SWITCHAGG_DEADLINE": "60",  # for which a job waits for its switch
            }
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
            processes.append(host.start(sys.executable, "-c", script, *arguments, **pipes))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def compiled(folder: Path, words: int = 16) -> None:
    """Compiles the program for bmv2 into a folder."""
    subprocess.run(
        ["make", "-s", "-C", str(REPOSITORY / "p4"), "bmv2", f"BUILD={folder}", f"WORDS={words}"], check=True
    )
