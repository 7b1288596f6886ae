"""Jobs at once, and TCP flows, over one link that is the bottleneck: shares, and Jain's fairness index.

    sudo python -m scripts.link_fairness --jobs 2,4,8 --tcp 0,2 [--congestion dedicated,shared] [--workers 2]
                                         [--rate 100] [--queue 10] [--mark none,3] [--seconds 15]

    workers, TCP senders  (a network namespace)  --veth, rate-limited each way-->  switch, TCP receivers
    or with --mark                               --veth-->  bridge  --veth-->

Every job adds tensors for the same time; every sum is checked. A token bucket (tbf) at both ends limits the
link to --rate Mbit/s with a queue of --queue ms, which drops at its end. With --mark the link's ends are a
bridge's, `switchagg switch --rate` in a namespace of its own. Its queues are as long; with a number they mark
packets (ECN) that find so many ms in them. TCP flows ask for ECN too. The first third of the time does not
count. A job's amount is what one rank sent for collectives that are done, times its ranks; a flow's is what
arrived. Jain's index is (sum x)^2 / (n sum x^2): 1 where all get the same, 1/n where one gets everything.
Beside flows it is given of all, where a job counts as one, and of senders, where each of its ranks does.
Exits with 1 if a sum is wrong.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import worker_lib
from scripts.job_fairness import jain
from worker_lib.transport import checked_congestion

WORKERS_AT, SWITCH_AT = "10.0.0.1", "10.0.0.2"
ELEMENTS = 1 << 18


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default="2,4,8", help="a list")
    parser.add_argument("--tcp", default="0,2", help="flows beside them, a list")
    parser.add_argument("--workers", type=int, default=2, help="of each job")
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s each way")
    parser.add_argument("--queue", type=float, default=10, help="milliseconds")
    parser.add_argument("--mark", help="milliseconds in the queue of a bridge, or none; a list")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--congestion", default="dedicated,shared", help="of the jobs, a list")
    parser.add_argument("--tcp-congestion", default="cubic", help="TCP's congestion control")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        return {"switch": _switch_side, "workers": _workers_side}[args.side](args)
    status = 0
    marks = [""] if args.mark is None else args.mark.split(",")
    for jobs in map(int, args.jobs.split(",")):
        for flows in map(int, args.tcp.split(",")):
            for congestion in args.congestion.split(","):
                for mark in marks:
                    status |= _run(args, jobs, flows, checked_congestion(congestion), mark)
    return status


def _run(args: argparse.Namespace, jobs: int, flows: int, congestion: str, mark: str) -> int:
    link = _bridge(args.rate, args.queue, mark) if mark else _link(args.rate, args.queue)
    with link as (near, far), ExitStack() as stack:
        far_end = _side(stack, args, far, "switch")
        assert far_end.stdout is not None
        there = json.loads(far_end.stdout.readline())
        there |= {"jobs": jobs, "flows": flows, "congestion": congestion}
        near_end = _side(stack, args, near, "workers")
        for end in (far_end, near_end):
            assert end.stdin is not None
            end.stdin.write(json.dumps(there) + "\n")
            end.stdin.flush()
        assert near_end.stdout is not None
        said = json.loads(near_end.stdout.readline() or "{}")
        if not said:
            return 1
        assert far_end.stdin is not None
        far_end.stdin.write("end\n")  # the receivers' turn to say what has arrived
        far_end.stdin.flush()
        arrived = json.loads(far_end.stdout.readline())
    seconds = said["seconds"]
    of_jobs = [8e-6 * each / seconds for each in said["jobs"]]
    of_flows = [8e-6 * each / seconds for each in arrived]
    marked = f", mark {mark}" if mark else ""
    text = f"{congestion}{marked}, {jobs} jobs: {_list(of_jobs)} Mbit/s, Jain's index {jain(of_jobs):.3f}"
    if flows:
        senders = [each / args.workers for each in of_jobs for _ in range(args.workers)] + of_flows
        text += f"; {flows} flows: {_list(of_flows)} Mbit/s, index of all {jain(of_jobs + of_flows):.3f}, "
        text += f"of senders {jain(senders):.3f}"
    print(
        f"{text}; link {sum(of_jobs) + sum(of_flows):.0f} of {args.rate:.0f}; "
        f"sent again {100 * said['again']:.1f} % of packets; {100 * said['marked']:.1f} % of RESULTs marked; "
        f"{said['wrong']} wrong sums",
        flush=True,
    )
    return 1 if said["wrong"] else 0


def _list(amounts: Sequence[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in sorted(amounts))


@contextmanager
def _link(rate: float, queue: float) -> Iterator[tuple[int, int]]:
    """Two namespaces with a limited veth pair; the processes that hold them."""
    with ExitStack() as stack:
        pids = [namespace(stack) for _ in range(2)]
        line = f"link add fair0 type veth peer name fair1 netns {pids[1]}"
        in_namespace(pids[0], "ip", *line.split())
        for number, (pid, address) in enumerate(zip(pids, (WORKERS_AT, SWITCH_AT), strict=True)):
            name = f"fair{number}"
            in_namespace(pid, "ip", "address", "add", f"{address}/24", "dev", name)
            in_namespace(pid, "ip", "link", "set", name, "up")
            limit = f"root tbf rate {rate}mbit burst 70k latency {queue}ms"
            in_namespace(pid, "tc", "qdisc", "add", "dev", name, *limit.split())
        yield pids[0], pids[1]


@contextmanager
def _bridge(rate: float, queue: float, mark: str) -> Iterator[tuple[int, int]]:
    """Two namespaces on a bridge whose ports have a limit; the processes that hold them."""
    with ExitStack() as stack:
        pids = [namespace(stack) for _ in range(3)]
        for number, (pid, address) in enumerate(zip(pids, (WORKERS_AT, SWITCH_AT), strict=False)):
            line = f"link add fair{number} type veth peer name port{number} netns {pids[2]}"
            in_namespace(pid, "ip", *line.split())
            in_namespace(pid, "ip", "address", "add", f"{address}/24", "dev", f"fair{number}")
            in_namespace(pid, "ip", "link", "set", f"fair{number}", "up")
            in_namespace(pids[2], "ip", "link", "set", f"port{number}", "up")
            if mark != "none":
                in_namespace(pid, "sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        bits, each = f"{rate}Mbit", rate * 1e6 / 8e3  # bytes of a millisecond
        options = ["--rate", bits, "--queue", str(round(queue * each))]
        options += [] if mark == "none" else ["--mark", str(round(float(mark) * each))]
        options += [word for number in range(2) for word in ("--interface", f"{number}=port{number}")]
        command = ["nsenter", "-t", str(pids[2]), "-n", sys.executable, "-m", "switchagg.cli.main", "switch"]
        bridge = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        stack.callback(end_process, bridge)
        assert bridge.stdout is not None
        bridge.stdout.readline()
        yield pids[0], pids[1]


def namespace(stack: ExitStack) -> int:
    """Makes a network namespace; returns a process that holds it until the stack ends."""
    ready = "ip link set lo up && echo && exec sleep infinity"
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", ready], stdout=subprocess.PIPE)
    stack.callback(end_process, holder)
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder.pid


def in_namespace(pid: int, *words: str) -> None:
    """Runs a command in a process's network namespace."""
    subprocess.run(["nsenter", "-t", str(pid), "-n", *words], check=True)


def _side(stack: ExitStack, args: argparse.Namespace, pid: int, side: str) -> subprocess.Popen[str]:
    options = [f"--{name}={getattr(args, name)}" for name in ("workers", "slots", "seconds")]
    options.append(f"--tcp-congestion={args.tcp_congestion}")
    command = ["nsenter", "-t", str(pid), "-n", sys.executable, "-m", "scripts.link_fairness", *options]
    end = subprocess.Popen(
        [*command, "--side", side],
        cwd=Path(__file__).parents[1],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    stack.callback(end_process, end)
    return end


def end_process(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ends a process that this one has started."""
    process.kill()
    process.communicate()


def _switch_side(args: argparse.Namespace) -> int:
    from switchagg.control.embedded import EmbeddedController

    with EmbeddedController(SWITCH_AT) as host, socket.create_server((SWITCH_AT, 0)) as listener:
        print(json.dumps({"url": host.url, "port": listener.getsockname()[1]}), flush=True)
        flows = json.loads(sys.stdin.readline())["flows"]
        receivers = [_Receiver(listener, args.seconds) for _ in range(flows)]
        sys.stdin.readline()
        print(json.dumps([each.amount() for each in receivers]), flush=True)
    return 0


class _Receiver(threading.Thread):
    """Takes what one flow brings; counts the last two thirds."""

    def __init__(self, listener: socket.socket, seconds: float) -> None:
        super().__init__(daemon=True)
        self._listener, self._seconds, self._bytes = listener, seconds, 0
        self.start()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        begun, end = time.monotonic() + self._seconds / 3, time.monotonic() + self._seconds
        while data := connection.recv(1 << 16):
            if begun <= time.monotonic() < end:
                self._bytes += len(data)

    def amount(self) -> int:
        self.join(10)
        return self._bytes


def _workers_side(args: argparse.Namespace) -> int:
    there = json.loads(sys.stdin.readline())
    jobs, flows = there["jobs"], there["flows"]
    ranks = jobs * args.workers
    ready = threading.Barrier(ranks + flows)
    end = [0.0]

    def start() -> float:
        if ready.wait() == 0:  # one of all
            end[0] = time.monotonic() + args.seconds
        ready.wait()
        return end[0] - args.seconds * 2 / 3

    def rank(number: int) -> tuple[float, int, int, int, int, int]:
        job, own = divmod(number, args.workers)
        x = np.empty(ELEMENTS, np.int32)
        expected = args.workers * (args.workers + 1) // 2
        counted = wrong = 0
        with worker_lib.connect(
            there["url"], f"job-{job}", own, args.workers, address=WORKERS_AT, transport="udp",
            slots=args.slots, words=352, timeout=120, congestion=there["congestion"],
        ) as session:  # fmt: skip
            begun = start()
            over = False
            while not over:
                x[:] = own + 1
                x[-1] = time.monotonic() >= end[0]  # all ranks end with the same collective
                session.allreduce(x)
                over = bool(x[-1])
                wrong += int((x[:-1] != expected).sum())
                counted += x.nbytes if begun <= time.monotonic() < end[0] else 0
            stats = session.stats()
        sent, again = stats["packets_sent"], stats["retransmissions"]
        return counted, wrong, sent, again, stats["results_marked"], sent - again

    def flow() -> None:
        with socket.socket() as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, args.tcp_congestion.encode())
            start()
            sender.connect((SWITCH_AT, there["port"]))
            while time.monotonic() < end[0]:
                sender.sendall(bytes(1 << 16))

    with ThreadPoolExecutor(ranks + flows) as pool:
        senders = [pool.submit(flow) for _ in range(flows)]
        found = [each.result() for each in [pool.submit(rank, number) for number in range(ranks)]]
        for each in senders:
            each.result()
    amounts = [
        sum(counted for counted, *_ in found[job * args.workers : (job + 1) * args.workers])
        for job in range(jobs)
    ]
    sent, again, marked, results = (sum(each[k] for each in found) for k in range(2, 6))
    print(
        json.dumps(
            {
                "seconds": args.seconds * 2 / 3,
                "jobs": amounts,
                "again": again / max(sent, 1),
                "marked": marked / max(results, 1),
                "wrong": sum(each[1] for each in found),
            }
        ),
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
