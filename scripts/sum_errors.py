"""Errors of float32 sums beside gloo's: `switchagg run -n 4 -- python scripts/sum_errors.py` prints a table.

Units in the last place are those of the exact sum, and shares are of the sum over ranks of abs(x).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import worker_lib

ELEMENTS = 1 << 20


def data(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One rank's tensors, by the name of their distribution."""
    n = ELEMENTS
    return {
        "normal": rng.standard_normal(n),
        "Student's t, 3 degrees": rng.standard_t(3, n),
        "log-normal, sigma 5": rng.lognormal(0, 5, n) * rng.choice([-1, 1], n),
        "any exponent": np.ldexp(rng.standard_normal(n), rng.integers(-120, 120, n)),
    }


def main() -> None:
    with worker_lib.connect() as session, tempfile.TemporaryDirectory() as here:
        folder = np.zeros(200, np.uint8)
        name = here.encode()
        folder[: len(name)] = np.frombuffer(name, np.uint8)
        session.broadcast(folder)
        store = dist.FileStore(str(Path(bytes(folder).rstrip(b"\0").decode()) / "store"), session.world_size)
        dist.init_process_group("gloo", store=store, rank=session.rank, world_size=session.world_size)
        if session.rank == 0:
            print("| data | sum | median ulp | 99.9 % | worst | worst share |")
            print("| --- " * 6 + "|")
        for kind, values in data(np.random.default_rng(session.rank)).items():
            x = values.astype(np.float32)
            magnitudes = torch.from_numpy(np.abs(x).astype(np.float64))
            dist.all_reduce(magnitudes)
            exact = session.allreduce(x.copy(), accuracy="exact")
            ring = torch.from_numpy(x.copy())
            dist.all_reduce(ring)
            sums = {
                "default": session.allreduce(x.copy()),
                "32-bit lanes": session.allreduce(x.copy(), bits=32),
                "gloo": ring.numpy(),
            }
            if session.rank:
                continue
            for name, found in sums.items():
                error = np.abs(found.astype(np.float64) - exact)
                ulps = error / np.spacing(np.abs(exact)).astype(np.float64)
                median, most, worst = np.quantile(ulps, [0.5, 0.999, 1.0])
                share = (error / magnitudes.numpy()).max()
                power = f"2^{np.log2(share):.1f}" if share else "0"
                print(f"| {kind} | {name} | {median:.3g} | {most:.3g} | {worst:.3g} | {power} |")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
