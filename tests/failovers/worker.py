"""One worker of `tests.failovers`: takes a call as a line of JSON, and writes one with the result's hash.

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
        begun = time.monotonic()
        if call.pop("scattered", False):
            result = session.reduce_scatter(tensor[: part * int(workers)], **call)
        else:
            session.allreduce(tensor, **call)
        seconds = time.monotonic() - begun
        print(json.dumps({"sha256": hashlib.sha256(result).hexdigest(), "seconds": seconds}), flush=True)
