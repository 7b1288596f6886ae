"""One job over 1, 2 and 4 switches: the time of an all-reduce, with links of the same rate, or one slower.

    sudo python -m scripts.stripes [--stripes 1,2,4] [--workers 4] [--rate 1000] [--slow 1] [--mib 16]
                                           [--calls 15] [--queue 20]

    worker  --veth--+                      +--veth--  switch
    worker  --veth--+--  a router that is  +--veth--  switch
    ...             +--  not limited     --+          ...

Every worker has a network namespace of its own; the switches have an interface each, in one. A token bucket
(tbf) at both ends limits each veth pair to --rate Mbit/s. There is a job for each number of switches, and
they take turns, call by call. The link of the last switch has --slow times the rate. The controller knows
nothing of rates. Times are of the first call, and of the second half of all, with the weights at the end. The
floor is what the frames of an all-reduce take on the link that has most to carry: a worker's, or a switch's
that gets as large a part of the packets as it has of all rates. With --slow there is one for equal parts too.
Every sum is checked; exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

import worker_lib
from scripts.link_fairness import end_process, in_namespace, namespace
from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.service import ControlServer
from switchagg.emulator.switch import Switch
from switchagg.rules.switch import DEFAULT_MEMORY

WORDS, HEADERS = 352, 16 + 28 + 14  # of a packet: SwitchAgg's, IP's and UDP's, Ethernet's
PORT = 8080


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stripes", default="1,2,4", help="a list")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s each way, of every link")
    parser.add_argument("--slow", type=float, default=1, help="part of it that the last switch's link has")
    parser.add_argument("--queue", type=float, default=20, help="milliseconds")
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--mib", type=float, default=16, help="of the tensor, float32")
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    counts = [int(each) for each in args.stripes.split(",")]
    if args.side is not None:
        return _switches(max(counts)) if args.side == "switches" else _worker(args, counts, int(args.side))
    with ExitStack() as stack:
        router, switches = namespace(stack), namespace(stack)
        in_namespace(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        rates = [args.rate] * (max(counts) - 1) + [args.rate * args.slow]
        for number, rate in enumerate(rates, 1):
            address = _link(args, rate, router, switches, f"switch{number}", f"10.{number}.0")
            # Answers go out of the interface that has the switch's address.
            in_namespace(switches, *f"ip rule add from {address} table {number}".split())
            way = f"ip route add default via 10.{number}.0.1 table {number}"
            in_namespace(switches, *way.split())
        _started(stack, switches, [*sys.argv[1:], "--side", "switches"])
        workers = []
        for rank in range(args.workers):
            home = namespace(stack)
            _link(args, args.rate, router, home, f"worker{rank}", f"10.100.{rank}")
            in_namespace(home, *f"ip route add default via 10.100.{rank}.1".split())
            workers.append(_started(stack, home, [*sys.argv[1:], "--side", str(rank)]))
        said = [json.loads(worker.stdout.readline() or "null") for worker in workers if worker.stdout]
    if None in said:
        return 1
    packets = -(-round(args.mib * (1 << 18)) // WORDS)
    bits = 8e-3 * packets * (4 * WORDS + HEADERS)  # of one worker, in thousands
    for number, stripes in enumerate(counts):
        first, *times = (max(each["times"][number][call] for each in said) for call in range(args.calls))
        times = sorted(times[args.calls // 2 - 1 :])
        used = rates[:stripes]
        floor, alike = (
            max(bits / args.rate, args.workers * bits / rate) for rate in (sum(used), stripes * min(used))
        )
        print(
            f"{stripes} switches: {1e3 * first:.0f} ms at first, then {1e3 * median(times):.0f} (least "
            f"{1e3 * times[0]:.0f}, most {1e3 * times[-1]:.0f}) with weights {said[0]['weights'][number]}; "
            f"floor {floor:.0f}" + (f", with equal weights {alike:.0f}" if args.slow != 1 else ""),
            flush=True,
        )
    return 0


def _link(args: argparse.Namespace, rate: float, router: int, pid: int, name: str, net: str) -> str:
    """Links a namespace to the router's; returns its address."""
    line = f"link add {name} type veth peer name {name} netns {pid}"
    in_namespace(router, "ip", *line.split())
    for end, last in ((router, 1), (pid, 2)):
        in_namespace(end, "ip", "address", "add", f"{net}.{last}/24", "dev", name)
        in_namespace(end, "ip", "link", "set", name, "up")
        limit = f"root tbf rate {rate}mbit burst 70k latency {args.queue}ms"
        in_namespace(end, "tc", "qdisc", "add", "dev", name, *limit.split())
    return f"{net}.2"


def _started(stack: ExitStack, pid: int, words: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["nsenter", "-t", str(pid), "-n", sys.executable, "-m", "scripts.stripes", *words],
        cwd=Path(__file__).parents[1],
        text=True,
        stdout=subprocess.PIPE,
    )
    stack.callback(end_process, process)
    if words[-1] == "switches":
        assert process.stdout is not None
        process.stdout.readline()
    return process


def _switches(count: int) -> int:
    with ExitStack() as stack:
        drivers = []
        for number in range(1, count + 1):
            switch = stack.enter_context(Switch(f"10.{number}.0.2", 0, capacity=4096))
            drivers.append(EmbeddedDriver(switch, 4096, DEFAULT_MEMORY, name=f"switch{number}"))
        server = ControlServer(Controller(drivers), "10.1.0.2", PORT)
        stack.callback(server.close)
        server.start()
        print("ready", flush=True)
        signal.pause()
    return 0


def _worker(args: argparse.Namespace, counts: list[int], rank: int) -> int:
    where = f"http://10.1.0.2:{PORT}"
    x = np.full(round(args.mib * (1 << 18)), rank + 1, np.float32)
    total = args.workers * (args.workers + 1) // 2
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(
                worker_lib.connect(
                    where, f"of {stripes}", rank, args.workers, address=f"10.100.{rank}.2", words=WORDS,
                    slots=args.slots, stripes=stripes, transport="udp", timeout=120.0,
                )
            )
            for stripes in counts
        ]  # fmt: skip
        times: list[list[float]] = [[] for _ in counts]
        for _ in range(args.calls):
            for session, mine in zip(sessions, times, strict=True):
                x[:] = rank + 1
                session.barrier()
                begun = time.monotonic()
                session.allreduce(x, bits=32, blocks="dense")
                mine.append(time.monotonic() - begun)
                if not (x == total).all():
                    return 1
        weights = [session.stats()["weights"] for session in sessions]
    print(json.dumps({"times": times, "weights": weights}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
