"""Scenarios in networks of `switchagg topo`, each run by `rack.in_namespace` in a namespace of its own.

    python -m tests.mininet_topos.scenarios NAME [ARGUMENT ...]

Prints the observations as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from switchagg.topo.network import Network, NetworkSettings, RunResult, running_network
from switchagg.topo.traffic import read_counts
from tests.mininet_topos.forging_host import forged
from tests.waiting import eventually

SLOTS = 16
CHECK = [sys.executable, "-m", "switchagg.cli.main", "topo", "check"]


def snapshot() -> dict[str, Any]:
    """Returns the interfaces, processes, namespaces and temporary files that this namespace sees."""
    links = json.loads(subprocess.run(["ip", "-j", "address"], check=True, capture_output=True).stdout)
    processes = {each for each in os.listdir("/proc") if each.isdigit() and _runs(each)}
    namespaces = set()
    for each in processes:
        for kind in ("net", "mnt"):
            try:
                namespaces.add(os.readlink(f"/proc/{each}/ns/{kind}"))
            except OSError:
                continue  # `ip` itself
    return {
        "interfaces": sorted(
            (each["ifname"], sorted(one["local"] for one in each["addr_info"])) for each in links
        ),
        "processes": sorted(each for each in processes if _runs(each)),
        "namespaces": sorted(namespaces),
        "files": sorted(os.listdir("/tmp")),
    }


def left(before: dict[str, Any]) -> list[Any]:
    """Returns what was there before and what is there now, once they are the same or a minute is over."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: snapshot() == before, 60)
    return [before, snapshot()]


def _runs(pid: str) -> bool:
    """Returns True for a process that is no zombie: orphans become this process's children."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def checked(run: RunResult) -> dict[str, Any]:
    """Returns a summary of a run of the check."""
    return {
        "status": run.status,
        "sums": [[each["exact"], each["sums"]] for each in run.ranks],
        "alike": len({each["crc"] for each in run.ranks}) == 1,
        "errors": [each["error"] for each in run.ranks if each["error"]],
    }


def checked_jobs(run: RunResult) -> list[bool]:
    """Returns for each job whether all ranks have the same exact sums."""
    return [
        len({(each["crc"], each["exact"], each["sums"]) for each in members}) == 1
        and members[0]["exact"] == members[0]["sums"] > 5
        for job in ("a", "b")
        for members in [[each for each in run.ranks if each["job"] == job]]
    ]


def check(network: Network, elements: int, rounds: int = 1) -> RunResult:
    """Runs the check on every worker host."""
    return network.run([*CHECK, "--elements", str(elements), "--rounds", str(rounds)], prefix=False)


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    """Runs a function in a thread."""
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def until_passed(interface: str, frames: int) -> None:
    """Returns when so many more frames have come in at an interface."""
    before = read_counts()[interface].packets_in
    while read_counts()[interface].packets_in - before < frames:
        time.sleep(0.005)


def rack(engine: str, elements: str) -> dict[str, Any]:
    """A rack without loss, with 2 % loss, and with a link that fails for a while during an all-reduce."""
    found: dict[str, Any] = {}
    size = int(elements)
    before = snapshot()
    with running_network(NetworkSettings("rack,workers=2,seed=1", engine)) as network:
        found["clean"] = checked(check(network, 2_000))
        for link in network.net.links:
            link.set(loss=0.02, seed=1)
        lossy = check(network, 2_000)
        found["lossy"] = checked(lossy)
        found["lost"] = sum(way["lost"] for link in network.net.links for way in link.counts().values())
        for link in network.net.links:
            link.set()

        def flap() -> None:
            until_passed("s1-eth1", 600)
            network.net.configLinkStatus("s1", "h1", "down")
            found["passed"] = [read_counts()["s1-eth1"].packets_in]
            time.sleep(0.7)
            found["passed"].append(read_counts()["s1-eth1"].packets_in)
            network.net.configLinkStatus("s1", "h1", "up")

        beside = meanwhile(flap)
        found["flapped"] = checked(check(network, size, 0))
        beside.join()
        found["passed"].append(read_counts()["s1-eth1"].packets_in)
    found["left"] = left(before)
    return found


INTRUDER = [sys.executable, "-m", "tests.mininet_topos.forging_host"]


def intrude(
    network: Network,
    host: str,
    interface: str,
    seed: int,
    ready: threading.Event,
    done: threading.Event,
    found: dict[str, Any],
) -> None:
    """Sends forged packets from a host, made from all frames of a switch's interface, until done."""
    random = np.random.default_rng(seed)
    node = network.net.get(host)
    words = ["mnexec", "-a", str(node.pid), *INTRUDER, f"{host}-eth0"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as out,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap,
    ):
        assert out.stdin is not None
        assert out.stdout is not None
        tap.bind((interface, 0))
        tap.settimeout(0.1)
        out.stdout.readline()
        ready.set()
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                frame, source = tap.recvfrom(1 << 16)
                which = "results" if source[2] == socket.PACKET_OUTGOING else "contributions"
                for each in forged(frame, SLOTS, random):
                    out.stdin.write(each.hex() + "\n")
                    found[which] = found.get(which, 0) + 1
                out.stdin.flush()
        out.stdin.close()


def attacked(network: Network, host: str, elements: int, seed: int) -> dict[str, Any]:
    """Runs a job while a host forges. Returns its result, and whether a forged contribution was accepted."""
    ready, done = threading.Event(), threading.Event()
    sent: dict[str, int] = {}

    def refused() -> int:
        counters = network.counters()["s1"]
        return int(counters["job"] + counters["source"] + counters["token"])

    before = refused()
    beside = meanwhile(partial(intrude, network, host, "s1-eth1", seed, ready, done, sent))
    assert ready.wait(60)
    try:
        came = checked(check(network, elements, 2))
    finally:
        done.set()
        beside.join()
    let_in = refused() - before < sent.get("contributions", 0)
    return {"sent": sent, "let_in": let_in, "counters": network.counters()["s1"], **came}


def intruder(engine: str, elements: str, seed: str) -> dict[str, Any]:
    """Two workers and two other hosts, which ping and stream to each other; then one of them forges."""
    found: dict[str, Any] = {}
    with running_network(NetworkSettings("rack,workers=2,others=2", engine, slots=SLOTS)) as network:

        def talk() -> None:
            until_passed("s1-eth1", 50)
            found["ping"] = network.net.get("h3").cmd("ping -q -c 5 -i 0.2 10.0.0.4")
            if shutil.which("iperf3"):
                server = network.net.get("h4").popen("iperf3 -s -1")

                def streamed() -> bool:  # False while the server does not listen yet
                    said = json.loads(network.net.get("h3").cmd("iperf3 -J -t 1 -c 10.0.0.4"))
                    found["iperf3"] = said["end"].get("sum_received", {}).get("bytes", 0)
                    return "error" not in said

                eventually(streamed)
                server.wait()

        beside = meanwhile(talk)
        found["talking"] = checked(check(network, int(elements), 2))
        beside.join()
        # Packets forged at a worker may come too late for its job, so there are several attempts.
        for host, attempts in (("h3", 1), ("h1", 5)):
            for _ in range(attempts):
                found[host] = attacked(network, host, int(elements), int(seed))
                if found[host]["let_in"]:
                    break
    return found


def tree(engine: str, leaves: str, workers: str, elements: str, *faulty: str) -> dict[str, Any]:
    """Leaves with workers under a root: traffic of their links and counters of the switches; then loss."""
    before = snapshot()
    found: dict[str, Any] = {}
    with running_network(
        NetworkSettings(f"two_level,leaves={leaves},workers={workers}{',seed=1' if faulty else ''}", engine)
    ) as network:
        came = check(network, int(elements), 1)
        links = {"-".join(each["ends"]): came.traffic[each["interface"]].total for each in network.links()}
        found["clean"] = checked(came)
        found["switches"] = network.counters()
        found["up"] = {name: total.bytes_in for name, total in links.items()}
        for loss in faulty:
            for link in network.net.links:
                link.set(loss=float(loss), seed=1)
            found["lossy"] = checked(check(network, int(elements)))
            found["lost"] = sum(way["lost"] for link in network.net.links for way in link.counts().values())
    return {**found, "left": left(before)}


def others() -> dict[str, Any]:
    """Two jobs at one switch; a rack with a slow link and one that loses."""
    with running_network(NetworkSettings("shared", "native")) as network:
        came = check(network, 3_000)
        found: dict[str, Any] = {"jobs": [each["job"] for each in came.ranks], "shared": checked_jobs(came)}
    with running_network(NetworkSettings("asymmetric,workers=3,rate=5", "native")) as network:
        came = check(network, 50_000)
        found["asymmetric"] = checked(came)
        links = {each["ends"][0]: each for each in network.links()}
        found["lost"] = {
            name: sum(way["lost"] for way in each["faults"].values())
            for name, each in links.items()
            if each["faults"]
        }
        slow = came.traffic["s1-eth1"]
        found["mbits"] = 8e-6 * slow.total.bytes_in / slow.seconds
        found["seconds"] = slow.seconds
    return found


def pair(engine: str) -> dict[str, Any]:
    """A rack of two workers, and only sums."""
    before = snapshot()
    with running_network(NetworkSettings("rack,workers=2", engine)) as network:
        found = checked(check(network, 4_000))
    return {**found, "left": left(before)}


def mn(engine: str) -> dict[str, Any]:
    """Commands of a user in Mininet's shell."""
    lines = [
        "nodes",
        "h2 printenv RANK WORLD_SIZE SWITCHAGG_ADDRESS SWITCHAGG_SWITCH",
        "workers switchagg topo check --elements 1000 --rounds 1",
        "link s1 h1 down",
        "link s1 h1 up",
        "workers sh -c 'exit $RANK'",
        "workers",
    ]
    before = snapshot()
    ran = subprocess.run(
        ["mn", "--custom", "mininet_topos/custom.py", "--topo", "rack,2", "--switch", engine],
        input="\n".join([*lines, "exit\n"]), capture_output=True, text=True, check=False, timeout=240,
        # It runs in the system's Python, which must not see this one's packages.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    return {"status": ran.returncode, "said": ran.stdout + ran.stderr, "left": left(before)}


TOPO = [sys.executable, "-m", "switchagg.cli.main", "topo"]


def _said(*words: str) -> list[Any]:
    """Runs `switchagg topo`. Returns its status and its output."""
    ran = subprocess.run([*TOPO, *words], capture_output=True, text=True, check=False)
    return [ran.returncode, (ran.stdout + ran.stderr).strip()]


def _standing(*words: str) -> subprocess.Popen[bytes]:
    """Starts a network on whose hosts a command runs that does not end by itself."""
    process = subprocess.Popen(
        [*TOPO, "rack", "--workers", "2", *words, "--", "sh", "-c", "sleep 1234; true"]
    )
    eventually(lambda: len(_find("sleep\0001234")) == 2 or process.poll() is not None)
    assert process.poll() is None, "the network has ended by itself"
    return process


def _find(words: str) -> list[int]:
    """Returns the processes with these words in their command line, NUL between arguments."""
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit() and _runs(each):
            with contextlib.suppress(OSError):
                if words.encode() in Path("/proc", each, "cmdline").read_bytes():
                    found.append(int(each))
    return found


def ended(engine: str, *signals: str) -> dict[str, Any]:
    """Networks that get these signals, and that are killed, alone and with their guardian."""
    found: dict[str, Any] = {}
    before = snapshot()

    for number in map(signal.Signals.__getitem__, signals):
        process = _standing("--switch", engine)
        process.send_signal(number)
        found[number.name] = [process.wait(120), left(before)]
    process = _standing("--switch", engine)
    process.kill()
    process.wait()
    found["SIGKILL"] = left(before)

    # An interface and a process of others, with names like ours.
    subprocess.run(["ip", "link", "add", "s7-eth1", "type", "bridge"], check=True)
    bystander = subprocess.Popen(["sleep", "1235"])
    process = _standing("--switch", engine)
    (guardian,) = _find("marks.py")
    os.kill(guardian, signal.SIGKILL)
    process.kill()
    process.wait()
    found["refused"] = _said("rack", "--switch", engine)
    found["cleaned"] = _said("clean")
    found["again"] = _said("clean")
    found["bystanders"] = [bystander.poll(), bool(_find("sleep\0001235")), "s7-eth1" in read_counts()]
    bystander.kill()
    bystander.wait()
    subprocess.run(["ip", "link", "delete", "s7-eth1"], check=True)
    found["after"] = left(before)

    subprocess.run(["ip", "link", "add", "s1-eth2", "type", "bridge"], check=True)
    found["taken"] = _said("rack", "--switch", engine)
    found["kept"] = "s1-eth2" in read_counts()
    return found


def empty_tmp() -> None:
    """Gives this namespace a /tmp of its own, with this project in it if it lies in /tmp."""
    project = Path(__file__).parents[2]
    inside = project.is_relative_to("/tmp")
    before = os.open(project, os.O_PATH)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/tmp"], check=True)
    if inside:
        project.mkdir(parents=True)
        source = f"/proc/{os.getpid()}/fd/{before}"
        subprocess.run(["mount", "--no-canonicalize", "--bind", source, str(project)], check=True)
        os.chdir(project)
    os.close(before)


if __name__ == "__main__":
    empty_tmp()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
