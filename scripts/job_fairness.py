"""Jobs at once through one switch that has more to do than it can: what each gets, and Jain's fairness index.

    python scripts/job_fairness.py [--jobs 32] [--workers 2] [--seconds 10] [--transport udp] [--buffer 4096]

Every job adds tensors of its own for the same time, each rank in a thread; the switch is another process.
Every sum is checked. With --buffer, all sockets of workers and switch get receive buffers of that many bytes
once they are open, far less than the workers' windows count on. Prints collectives by job and Jain's index,
(sum x)^2 / (n sum x^2): 1 where all jobs get the same, 1/n where one gets everything. Exits with 1 if a sum
is wrong or a job got nothing.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import worker_lib
from switchagg.chaos.kernel import udp_sockets
from worker_lib.embedded import start_embedded


def jain(amounts: Sequence[float]) -> float:
    """Returns Jain's fairness index of what each of several got."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--elements", type=int, default=100_000, help="of a tensor (int32)")
    parser.add_argument("--transport", choices=("auto", "shm", "udp"), default="udp")
    parser.add_argument("--buffer", type=int, help="bytes of each receive buffer")
    args = parser.parse_args()
    joined, begin = threading.Barrier(args.jobs * args.workers + 1), threading.Event()
    end = 0.0

    def rank(controller: str, job: int, number: int) -> tuple[int, bool]:
        """Returns how many collectives were done, and whether all sums were right."""
        with worker_lib.connect(
            controller,
            f"job-{job}",
            number,
            args.workers,
            transport=args.transport,
            timeout=60.0,
            join_timeout=120.0,
            deadline=60.0,
            slots=64,
        ) as session:
            joined.wait(300)
            begin.wait(300)
            for done in range(sys.maxsize):
                x = np.full(args.elements, job + number + done, np.int32)
                x[0] = time.monotonic() > end  # ranks see the same sum, and so stop together
                session.allreduce(x)
                first = args.workers * (job + done) + args.workers * (args.workers - 1) // 2
                if not bool((x[1:] == first).all()):
                    return done, False
                if x[0]:
                    return done + 1, True
        raise AssertionError

    with start_embedded(quiet=True) as host, ThreadPoolExecutor(args.jobs * args.workers) as pool:
        ranks = [
            [pool.submit(rank, host.controller, job, number) for number in range(args.workers)]
            for job in range(args.jobs)
        ]
        joined.wait(300)
        if args.buffer is not None:
            for each in (*udp_sockets(os.getpid()), *udp_sockets(host.pid)):
                with each:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, args.buffer)
        end = time.monotonic() + args.seconds
        begin.set()
        found = [[each.result() for each in job] for job in ranks]
    counts = [min(done for done, _ in job) for job in found]
    wrong = [job for job, each in enumerate(found) if not all(right for _, right in each)]
    print(f"collectives by job: {counts}")
    print(f"Jain's index {jain(counts):.3f}, least {min(counts)}, most {max(counts)}")
    for job in wrong:
        print(f"WRONG: a sum of job {job}")
    return int(bool(wrong) or not min(counts))


if __name__ == "__main__":
    sys.exit(main())
