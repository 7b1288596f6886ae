"""Measures a switch between network namespaces with a job of n workers: the driver, then all-reduces.

    python scripts/rack_throughput.py native bmv2 --workers 4 --words 64 --elements 262144
    python scripts/rack_throughput.py p4 --words 16 --elements 4096

native is our own engine; bmv2 is `simple_switch_grpc`, on PATH with `p4c-bm2-ss`; p4 is the P4 model. Several
are measured one after the other. Each worker is a process in a namespace of its own, on a veth pair to the
switch; every sum is checked. All of it shares one computer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))
INSIDE = "RACK_THROUGHPUT_INSIDE"

WORKER = """
import json, os, sys, time
import numpy as np
import worker_lib
elements, rounds, slots, words = map(int, sys.argv[1:])
where = os.environ["WORKER_ADDRESS"]
with worker_lib.connect(address=where, slots=slots, words=words, timeout=120) as session:
    parts = [np.random.default_rng(rank).integers(-2**29, 2**29, elements, dtype=np.int32)
             for rank in range(session.world_size)]
    exact, seconds = True, []
    for turn in range(rounds + 1):
        mine = parts[session.rank].copy()
        session.barrier()
        begin = time.monotonic()
        session.allreduce(mine)
        seconds.append(time.monotonic() - begin)
        exact &= bool((mine == sum(parts)).all())
    stats = session.stats()
    print(json.dumps({"exact": exact, "seconds": seconds[1:], "sent": stats["packets_sent"],
                      "again": stats["retransmissions"]}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="+", choices=("native", "bmv2", "p4"), metavar="ENGINE")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--words", type=int, default=64, help="K (%(default)s)")
    parser.add_argument("--slots", type=int, default=64, help="of the job (%(default)s)")
    parser.add_argument("--elements", type=int, default=65536, help="int32, of each all-reduce (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="all-reduces after the first (%(default)s)")
    args = parser.parse_args()
    if INSIDE not in os.environ:
        alone = ["unshare", "-rnpf", "--mount-proc", "--kill-child"]
        os.environ[INSIDE] = "1"
        os.execvp(alone[0], [*alone, sys.executable, *sys.argv])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *sys.path])
    if len(args.engines) > 1:
        # Each in a namespace of its own: racks have names in common.
        options = [each for each in sys.argv[1:] if each not in args.engines]
        alone = ["unshare", "-rnpf", "--mount-proc", "--kill-child", sys.executable, sys.argv[0]]
        return max(subprocess.call([*alone, each, *options]) for each in args.engines)
    with tempfile.TemporaryDirectory() as folder:
        return _measure(args, args.engines[0], Path(folder))


def _measure(args: argparse.Namespace, engine: str, folder: Path) -> int:
    from switchagg.control.controller import Controller
    from switchagg.control.drivers.p4runtime import P4RuntimeDriver
    from switchagg.control.service import ControlServer
    from tests.switchagg.control.drivers.rack import MGMT_IP, Rack, compiled

    if engine == "bmv2":
        compiled(folder, args.words)
    with Rack(engine, args.workers, folder, words=args.words) as rack:
        begin = time.monotonic()
        driver = P4RuntimeDriver(rack.spec())
        driver.reconcile((), {})
        ready = time.monotonic() - begin
        controller = Controller([driver])
        server = ControlServer(controller, MGMT_IP, 0)
        server.start()
        numbers = [str(args.elements), str(args.rounds), str(args.slots), str(args.words)]
        with rack.workers(server.url, WORKER, *numbers) as processes:
            said = [json.loads(process.communicate()[0] or "{}") for process in processes]
        writes = dict(driver.writes)
        counters = driver.counters()
        server.close()
        controller.close()
        driver.close()
    if not all(each.get("exact") for each in said):
        print(f"wrong, or not done: {said}", file=sys.stderr)
        return 1
    # A round is as long as its slowest worker takes.
    rounds = [max(each) for each in zip(*(one["seconds"] for one in said), strict=True)]
    best, median = min(rounds), sorted(rounds)[len(rounds) // 2]
    size = 4 * args.elements
    packets = args.workers * -(-args.elements // args.words)
    print(f"{engine}, {args.workers} workers, K = {args.words}, {args.slots} slots, {size:,} bytes each")
    print(f"program and tables there after {ready:.2f} s; updates: {writes}")
    for name, seconds in (("best", best), ("median", median)):
        print(
            f"{name} of {len(rounds)}: {seconds:.3f} s, algbw {size / seconds / 1e6:.2f} MB/s, "
            f"{packets / seconds:,.0f} packets/s into the switch"
        )
    again = sum(each["again"] for each in said) / sum(each["sent"] for each in said)
    print(
        f"every sum exact; {again:.1%} of packets were repeats; the switch received {counters['received']:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
