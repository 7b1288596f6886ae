"""What happens in networks of `switchagg topo`. Run by `rack.in_namespace`, in a namespace of its own.

    python -m tests.mininet_topos.plays NAME [ARGUMENT ...]

Prints one JSON object: what was seen.
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

from switchagg.topo.network import Lab, Plan, Run, standing
from switchagg.topo.traffic import look
from tests.mininet_topos.intruder import forged
from tests.waiting import eventually

SLOTS = 16
CHECK = [sys.executable, "-m", "switchagg.cli.main", "topo", "check"]


def snapshot() -> dict[str, Any]:
    """All that a network is made of, of this computer as this namespace sees it."""
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


def _runs(pid: str) -> bool:
    """Whether a process is there, and not dead and waiting for its parent: orphans become this one's."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def checked(run: Run) -> dict[str, Any]:
    """What a run of the check comes to."""
    return {
        "status": run.status,
        "sums": [[each["exact"], each["sums"]] for each in run.ranks],
        "alike": len({each["crc"] for each in run.ranks}) == 1,
        "errors": [each["error"] for each in run.ranks if each["error"]],
    }


def checked_jobs(run: Run) -> list[bool]:
    """Of each job, whether every rank has the same, and that exactly."""
    return [
        len({(each["crc"], each["exact"], each["sums"]) for each in members}) == 1
        and members[0]["exact"] == members[0]["sums"] > 5
        for job in ("a", "b")
        for members in [[each for each in run.ranks if each["job"] == job]]
    ]


def check(lab: Lab, elements: int, rounds: int = 1) -> Run:
    """Runs the check on every worker host."""
    return lab.run([*CHECK, "--elements", str(elements), "--rounds", str(rounds)], prefix=False)


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    """Starts something beside."""
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def until_passed(interface: str, frames: int) -> None:
    """Returns when as many more frames have come in at an interface."""
    before = look()[interface].packets_in
    while look()[interface].packets_in - before < frames:
        time.sleep(0.005)


def rack(engine: str, elements: str) -> dict[str, Any]:
    """Exact without loss and with 2 %; a link goes down and comes back in the middle of an all-reduce."""
    found: dict[str, Any] = {}
    size = int(elements)
    before = snapshot()
    with standing(Plan("rack,workers=2,seed=1", engine)) as lab:
        found["clean"] = checked(check(lab, 2_000))
        for link in lab.net.links:
            link.set(loss=0.02, seed=1)
        lossy = check(lab, 2_000)
        found["lossy"] = checked(lossy)
        found["lost"] = sum(way["lost"] for link in lab.net.links for way in link.counts().values())
        for link in lab.net.links:
            link.set()

        def flap() -> None:
            until_passed("s1-eth1", 600)
            lab.net.configLinkStatus("s1", "h1", "down")
            found["passed"] = [look()["s1-eth1"].packets_in]
            time.sleep(0.7)
            found["passed"].append(look()["s1-eth1"].packets_in)
            lab.net.configLinkStatus("s1", "h1", "up")

        beside = meanwhile(flap)
        found["flapped"] = checked(check(lab, size, 0))
        beside.join()
        found["passed"].append(look()["s1-eth1"].packets_in)
    found["left"] = [before, snapshot()]
    return found


INTRUDER = [sys.executable, "-m", "tests.mininet_topos.intruder"]


def intrude(
    lab: Lab, host: str, interface: str, seed: int, done: threading.Event, found: dict[str, Any]
) -> None:
    """Sends from a host what fits in with all that passes a switch's interface, both ways, until done."""
    random = np.random.default_rng(seed)
    node = lab.net.get(host)
    words = ["mnexec", "-a", str(node.pid), *INTRUDER, f"{host}-eth0"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as out,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap,
    ):
        assert out.stdin is not None
        tap.bind((interface, 0))
        tap.settimeout(0.1)
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                frame, source = tap.recvfrom(1 << 16)
                which = "results" if source[2] == socket.PACKET_OUTGOING else "contributions"
                for each in forged(frame, SLOTS, random):
                    out.stdin.write(each.hex() + "\n")
                    found[which] = found.get(which, 0) + 1
                out.stdin.flush()
        out.stdin.close()


def attacked(lab: Lab, host: str, elements: int, seed: int) -> dict[str, Any]:
    """A job while a host forges: what came of it, and whether a forged contribution was not refused."""
    done = threading.Event()
    sent: dict[str, int] = {}

    def refused() -> int:
        counters = lab.counters()["s1"]
        return int(counters["job"] + counters["source"] + counters["token"])

    before = refused()
    beside = meanwhile(partial(intrude, lab, host, "s1-eth1", seed, done, sent))
    try:
        came = checked(check(lab, elements, 2))
    finally:
        done.set()
        beside.join()
    let_in = refused() - before < sent.get("contributions", 0)
    return {"sent": sent, "let_in": let_in, "counters": lab.counters()["s1"], **came}


def intruder(engine: str, elements: str, seed: str) -> dict[str, Any]:
    """Two workers and two other hosts: these ping and send each other a stream, and one forges all it can."""
    found: dict[str, Any] = {}
    with standing(Plan("rack,workers=2,others=2", engine, slots=SLOTS)) as lab:

        def talk() -> None:
            until_passed("s1-eth1", 50)
            found["ping"] = lab.net.get("h3").cmd("ping -q -c 5 -i 0.2 10.0.0.4")
            if shutil.which("iperf3"):
                server = lab.net.get("h4").popen("iperf3 -s -1")
                time.sleep(0.3)
                said = lab.net.get("h3").cmd("iperf3 -J -t 1 -c 10.0.0.4")
                found["iperf3"] = json.loads(said)["end"]["sum_received"]["bytes"]
                server.wait()

        beside = meanwhile(talk)
        found["talking"] = checked(check(lab, int(elements), 2))
        beside.join()
        # Where forged packets should be let in, what comes too late for its job does not count.
        for host, attempts in (("h3", 1), ("h1", 5)):
            for _ in range(attempts):
                found[host] = attacked(lab, host, int(elements), int(seed))
                if found[host]["let_in"]:
                    break
    return found


def tree(engine: str, leaves: str, workers: str, elements: str, *faulty: str) -> dict[str, Any]:
    """Leaves with workers under a root: what passes their links and the switches take; then with loss."""
    before = snapshot()
    found: dict[str, Any] = {}
    with standing(
        Plan(f"two_level,leaves={leaves},workers={workers}{',seed=1' if faulty else ''}", engine)
    ) as lab:
        came = check(lab, int(elements), 1)
        links = {"-".join(each["ends"]): came.traffic[each["interface"]].total for each in lab.links()}
        found["clean"] = checked(came)
        found["switches"] = lab.counters()
        found["up"] = {name: total.bytes_in for name, total in links.items()}
        for loss in faulty:
            for link in lab.net.links:
                link.set(loss=float(loss), seed=1)
            found["lossy"] = checked(check(lab, int(elements)))
            found["lost"] = sum(way["lost"] for link in lab.net.links for way in link.counts().values())
    return {**found, "left": [before, snapshot()]}


def others() -> dict[str, Any]:
    """Two jobs at one switch; a rack with a slow link and one that loses."""
    with standing(Plan("shared", "native")) as lab:
        came = check(lab, 3_000)
        found: dict[str, Any] = {"jobs": [each["job"] for each in came.ranks], "shared": checked_jobs(came)}
    with standing(Plan("asymmetric,workers=3,rate=5", "native")) as lab:
        came = check(lab, 50_000)
        found["asymmetric"] = checked(came)
        links = {each["ends"][0]: each for each in lab.links()}
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
    """A rack of two, and nothing but sums."""
    before = snapshot()
    with standing(Plan("rack,workers=2", engine)) as lab:
        found = checked(check(lab, 4_000))
    return {**found, "left": [before, snapshot()]}


def mn(engine: str) -> dict[str, Any]:
    """What somebody types into Mininet."""
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
        input="\n".join([*lines, "exit\n"]), capture_output=True, text=True, check=False, timeout=90,
        # It runs in the system's Python, which does without what this one has.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    return {"status": ran.returncode, "said": ran.stdout + ran.stderr, "left": [before, snapshot()]}


TOPO = [sys.executable, "-m", "switchagg.cli.main", "topo"]


def _said(*words: str) -> list[Any]:
    """What the command does: its status, and what it says."""
    ran = subprocess.run([*TOPO, *words], capture_output=True, text=True, check=False)
    return [ran.returncode, (ran.stdout + ran.stderr).strip()]


def _standing(*words: str) -> subprocess.Popen[bytes]:
    """A network on whose hosts a command runs that does not end by itself."""
    process = subprocess.Popen(
        [*TOPO, "rack", "--workers", "2", *words, "--", "sh", "-c", "sleep 1234; true"]
    )
    eventually(lambda: len(_find("sleep\0001234")) == 2 or process.poll() is not None, 90)
    assert process.poll() is None, "the network has ended by itself"
    return process


def _find(words: str) -> list[int]:
    """Processes with these words in their command line, which is read as the kernel has it."""
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit() and _runs(each):
            with contextlib.suppress(OSError):
                if words.encode() in Path("/proc", each, "cmdline").read_bytes():
                    found.append(int(each))
    return found


def ended(engine: str, *signals: str) -> dict[str, Any]:
    """Networks that are sent these signals, and that are killed, alone and with their guardian."""
    found: dict[str, Any] = {}
    before = snapshot()

    def gone() -> list[Any]:
        with contextlib.suppress(AssertionError):
            eventually(lambda: snapshot() == before, 20)
        return [before, snapshot()]

    for number in map(signal.Signals.__getitem__, signals):
        process = _standing("--switch", engine)
        process.send_signal(number)
        found[number.name] = [process.wait(60), gone()]
    process = _standing("--switch", engine)
    process.kill()
    process.wait()
    found["SIGKILL"] = gone()

    # Others' things, with names as ours have.
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
    found["bystanders"] = [bystander.poll(), bool(_find("sleep\0001235")), "s7-eth1" in look()]
    bystander.kill()
    bystander.wait()
    subprocess.run(["ip", "link", "delete", "s7-eth1"], check=True)
    found["after"] = gone()

    subprocess.run(["ip", "link", "add", "s1-eth2", "type", "bridge"], check=True)
    found["taken"] = _said("rack", "--switch", engine)
    found["kept"] = "s1-eth2" in look()
    return found


def empty_tmp() -> None:
    """Gives this namespace a /tmp of its own; where this project lies in /tmp, it is there as before."""
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
