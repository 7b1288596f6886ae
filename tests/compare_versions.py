"""All-reduces of two checkouts in turn: ratios of their times, pair by pair.

    python -m tests.compare_versions OTHER_CHECKOUT [--pairs 40] [--workers 4]

OTHER_CHECKOUT has a `.venv` of its own (`make install` there). Each side runs its own switch and ranks, all
idle but for the side whose turn it is, and who begins alternates. Prints for each case the median time of
both sides and the median of the paired ratios, this checkout's over the other's, with its 95 % interval (from
order statistics).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CASES = {
    "dense 64 MB": {"elements": 1 << 24, "density": 1.0, "calls": 1},
    "1 % of blocks, 64 MB": {"elements": 1 << 24, "density": 0.01, "calls": 2},
    "4 KB": {"elements": 1 << 10, "density": 1.0, "calls": 100},
}
RANK = """
import json, sys, time
import numpy as np
import worker_lib
rank, world, url = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
session = worker_lib.connect(url, "compare", rank, world)
tensors = {}
for line in sys.stdin:
    case = json.loads(line)
    key = (case["elements"], case["density"])
    if key not in tensors:
        source = np.random.default_rng(7).random(case["elements"], np.float32) - np.float32(0.5)
        kept = np.random.default_rng(8).random(case["elements"] // 64) < case["density"]
        source.reshape(-1, 64)[~kept] = 0
        tensors[key] = source, np.empty_like(source)
    source, out = tensors[key]
    session.barrier()
    began = time.perf_counter()
    for _ in range(case["calls"]):
        session.allreduce(source, out=out)
    print((time.perf_counter() - began) / case["calls"], flush=True)
"""


class Side:
    """The switch and the ranks of one checkout."""

    def __init__(self, checkout: Path, workers: int) -> None:
        python = checkout / ".venv/bin/python"
        self.host = self._start(python, checkout, "-m", "switchagg.cli.main", "host")
        url = json.loads(self._line(self.host))["controller"]
        self.ranks = [
            self._start(python, checkout, "-c", RANK, str(rank), str(workers), url) for rank in range(workers)
        ]

    @staticmethod
    def _start(python: Path, checkout: Path, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(python), *args], cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise SystemExit(f"{process.args} ended early")
        return line

    def measure(self, case: dict[str, Any]) -> float:
        """Returns the seconds of one call at the slowest rank."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(case) + "\n")
            rank.stdin.flush()
        return max(float(self._line(rank)) for rank in self.ranks)

    def close(self) -> None:
        """Ends the ranks, then the switch."""
        for process in (*self.ranks, self.host):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, from order statistics."""
    ordered, spread = sorted(values), 0.98 * len(values) ** 0.5
    low = max(0, round(len(values) / 2 - spread) - 1)
    return ordered[low], ordered[len(values) - 1 - low]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    ours, theirs = Side(HERE, args.workers), Side(args.other.resolve(), args.workers)
    try:
        for name, case in CASES.items():
            for side in (ours, theirs):
                side.measure(case)
            pairs = []
            for turn in range(args.pairs):
                order = (ours, theirs) if turn % 2 else (theirs, ours)
                times = {side: side.measure(case) for side in order}
                pairs.append((times[ours], times[theirs]))
            low, high = interval(ratios := [a / b for a, b in pairs])
            print(
                f"{name}: {statistics.median(a for a, _ in pairs) * 1e3:.3f} ms here, "
                f"{statistics.median(b for _, b in pairs) * 1e3:.3f} ms there, "
                f"ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}], {args.pairs} pairs",
                flush=True,
            )
    finally:
        ours.close()
        theirs.close()


if __name__ == "__main__":
    sys.exit(main())
