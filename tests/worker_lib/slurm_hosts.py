"""Runs a command where Slurm has two hosts: namespaces on a bridge, with names of their own.

    node1 --veth-+-bridge-+-veth-- node2        10.0.0.1, 10.0.0.2

python -m tests.worker_lib.slurm_hosts FOLDER {network,loopback} COMMAND ...; a process of `in_namespace`.
Names of hosts are addresses of the network; with ``loopback``, a host's own is 127.0.1.1, as Debian has it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.worker_lib import fake_slurm

REPOSITORY = Path(__file__).parents[2]
# Processes too, so that none outlives the first of them.
_ALONE = ("-rnpf", "--mount-proc", "--kill-child")


@functools.cache
def has_namespaces() -> bool:
    """True if an unprivileged namespace can have hosts here."""
    if not all(shutil.which(each) for each in ("unshare", "nsenter", "ip", "mount")):
        return False
    line = (
        "ip link add wire0 type veth peer name wire1 && ip link add bridge0 type bridge && unshare -num true"
    )
    probe = subprocess.run(["unshare", *_ALONE, "sh", "-c", line], capture_output=True, check=False)
    return probe.returncode == 0


def in_namespace(
    folder: Path, own_name: str, *command: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a command on the two hosts' network, in a folder.

    Args:
        own_name: ``network`` or ``loopback``, where a host finds itself.
    """
    return subprocess.run(
        [
            "unshare",
            *_ALONE,
            sys.executable,
            "-m",
            "tests.worker_lib.slurm_hosts",
            folder,
            own_name,
            *command,
        ],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _host(number: int, folder: Path, own_name: str) -> int:
    """Makes a host; returns the process that keeps it."""
    pid = subprocess.Popen(["unshare", "-num", "sleep", "infinity"]).pid
    own = os.readlink("/proc/self/ns/mnt")
    while os.readlink(f"/proc/{pid}/ns/mnt") == own:
        time.sleep(0.002)
    names = folder / f"hosts{number}"
    addresses = {f"node{each}": f"10.0.0.{each}" for each in (1, 2)} | {"localhost": "127.0.0.1"}
    if own_name == "loopback":
        addresses[f"node{number}"] = "127.0.1.1"
    names.write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))
    _run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "link", "set", f"port{number}", "master", "bridge0", "up")
    for line in (
        f"hostname node{number}",
        f"mount --bind {names} /etc/hosts",
        f"ip address add 10.0.0.{number}/24 dev eth0",
        "ip link set eth0 up",
        "ip link set lo up",
    ):
        _run("nsenter", "-t", str(pid), "-n", "-u", "-m", *line.split())
    return pid


def main(folder: Path, own_name: str, *command: str) -> int:
    """Returns the command's exit status."""
    _run("ip", "link", "add", "bridge0", "type", "bridge")
    _run("ip", "link", "set", "bridge0", "up")
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    modules = {"python": "", "torchrun": "-m torch.distributed.run", "switchagg": "-m switchagg.cli.main"}
    for name, module in modules.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (commands / name).chmod(0o755)
    holders = tuple(_host(number, folder, own_name) for number in (1, 2))
    environment = os.environ | fake_slurm.install(commands, holders)
    return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
