"""One worker of `tests.failovers`: takes a call as a line of JSON, and writes one with the result's hash.

A call of "pieces" is that many asynchronous ones, of a part of the tensor each.

usage: python -m tests.failovers.worker CONTROLLER JOB RANK WORKERS ELEMENTS TRANSPORT ADDRESS
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import numpy as np

import worker_lib

controller, job, rank, workers, elements, transport, address = sys.argv[1:]
data = np.random.default_rng(int(rank)).standard_normal(int(elements)).astype(np.float32)
tensor = np.empty_like(data)
with worker_lib.connect(
    controller, job, int(rank), int(workers), timeout=120.0, transport=transport, address=address
) as session:
    print(json.dumps({"joined": session.rank}), flush=True)
    for line in sys.stdin:
        tensor[:] = data
        call = json.loads(line)
        result, part = tensor, len(tensor) // int(workers)
        pieces = np.array_split(tensor, call.pop("pieces", 1))
        begun = time.monotonic()
        if call.pop("scattered", False):
            result = session.reduce_scatter(tensor[: part * int(workers)], **call)
        elif len(pieces) == 1:
            session.allreduce(tensor, **call)
        else:
            for work in [session.allreduce(piece, async_op=True, **call) for piece in pieces]:
                work.wait()
        seconds = time.monotonic() - begun
        print(json.dumps({"sha256": hashlib.sha256(result).hexdigest(), "seconds": seconds}), flush=True)
