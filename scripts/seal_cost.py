"""Cost of checked and of sealed sums beside plain ones, which alternate in one run, and of the cipher alone.

    python scripts/seal_cost.py --workers 4 --pairs 40 --transport shm

A rank has a session of each kind, all on one switch. Prints, for each case, the median milliseconds of a
plain call and of its ranks' processor time, then for checked and sealed sums the medians of the paired
ratios, each with its 95 % interval (from order statistics): of time, and of the ranks' processor time. The
cipher's floor is three AES-256 keystreams a rank, by libcrypto; as a ratio it is added to the plain call.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import worker_lib
from switchagg.control.embedded import EmbeddedController

LARGE = 1 << 24  # elements: 64 MB
CASES: dict[str, dict[str, Any]] = {
    "64 MB, 32 bits": {"bits": 32},
    "64 MB, 16 bits": {"bits": 16},
    "64 MB, 8 bits": {"bits": 8},
    "64 MB, exact": {"accuracy": "exact"},
    "64 MB, 32 bits, no plan": {"bits": 32, "blocks": "dense"},
    "64 MB, 1 % of blocks": {"bits": 32, "density": 0.01, "calls": 2},
    "4 KB": {"bits": 32, "elements": 1 << 10, "calls": 100},
}
KINDS = ("plain", "checked", "sealed")


def call(session: worker_lib.Session, x: np.ndarray, out: np.ndarray, case: dict[str, Any]) -> None:
    how = {name: case[name] for name in ("bits", "accuracy", "blocks") if name in case}
    for _ in range(case.get("calls", 1)):
        session.allreduce(x, out=out, **how)


def measure(pipe: Connection, url: str, rank: int, options: argparse.Namespace, secret: str) -> None:
    """Runs one rank's calls; sends (turns, kinds, 2) seconds a case: of a call, and of the processor."""
    names = options.cases
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(
                worker_lib.connect(
                    url, kind, rank, options.workers, transport=options.transport, timeout=120,
                    check=kind == "checked", seal=secret if kind == "sealed" else False,
                )
            )
            for kind in KINDS
        ]  # fmt: skip
        for name in names:
            case = CASES[name]
            x = np.random.default_rng(rank).standard_normal(case.get("elements", LARGE)).astype(np.float32)
            kept = np.random.default_rng(1).random(x.size // 64) < case.get("density", 1.0)
            x.reshape(-1, 64)[~kept] = 0
            out, calls = np.empty_like(x), case.get("calls", 1)
            times = np.zeros((options.pairs + 1, len(KINDS), 2))
            for turn in range(options.pairs + 1):
                for kind in [(turn + i) % len(KINDS) for i in range(len(KINDS))]:
                    sessions[kind].barrier()
                    begun, used = time.perf_counter(), time.process_time()
                    call(sessions[kind], x, out, case)
                    used = time.process_time() - used
                    times[turn, kind] = (time.perf_counter() - begun) / calls, used / calls
            pipe.send(times[1:])


def keystream_seconds(size: int) -> float:
    """Returns the processor's seconds for so many bytes of keystream, by libcrypto."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    for function in ("EVP_CIPHER_CTX_new", "EVP_aes_256_ctr"):
        getattr(crypto, function).restype = ctypes.c_void_p
    context = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new())
    crypto.EVP_EncryptInit_ex(context, ctypes.c_void_p(crypto.EVP_aes_256_ctr()), None, bytes(32), bytes(16))
    source, to, made = bytes(1 << 17), ctypes.create_string_buffer(1 << 17), ctypes.c_int()
    begun = time.process_time()
    for _ in range(1000):
        crypto.EVP_EncryptUpdate(context, to, ctypes.byref(made), source, len(source))
    return (time.process_time() - begun) / 1000 * size / len(source)


def interval(values: np.ndarray) -> str:
    """The median with its 95 % interval, from order statistics."""
    ordered, spread = sorted(values), 0.98 * len(values) ** 0.5
    low = max(0, round(len(values) / 2 - spread) - 1)
    return f"{statistics.median(ordered):.2f} [{ordered[low]:.2f}, {ordered[-1 - low]:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--transport", default="shm", choices=("shm", "udp"))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    options = parser.parse_args()
    rate = keystream_seconds(1 << 30) / (1 << 30)  # a byte; before ranks compete for the cores
    with tempfile.NamedTemporaryFile() as secret, EmbeddedController() as host:
        secret.write(os.urandom(32))
        secret.flush()
        pipes, ranks = [], []
        for rank in range(options.workers):
            ours, theirs = multiprocessing.Pipe()
            ranks.append(
                multiprocessing.Process(target=measure, args=(theirs, host.url, rank, options, secret.name))
            )
            ranks[-1].start()
            pipes.append(ours)
        for name in options.cases:
            times = np.array([pipe.recv() for pipe in pipes])  # rank, turn, kind, (seconds, processor)
            wall, used = times[..., 0].max(0), times[..., 1].sum(0)
            case = CASES[name]
            size = case.get("elements", LARGE) * case.get("density", 1) * case.get("bits", 64) / 8
            floor = options.workers * 3 * size * rate
            print(
                f"{name}: {statistics.median(wall[:, 0]) * 1e3:.2f} ms, "
                f"processor {np.median(used[:, 0]) * 1e3:.2f} ms"
            )
            for kind in (1, 2):
                print(
                    f"  {KINDS[kind]}: time {interval(wall[:, kind] / wall[:, 0])}, "
                    f"processor {interval(used[:, kind] / used[:, 0])}"
                )
            print(f"  three keystreams: processor {1 + floor / np.median(used[:, 0]):.2f}", flush=True)
        for each in ranks:
            each.join()


if __name__ == "__main__":
    main()
