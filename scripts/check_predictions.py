"""Holds `switchagg predict` against ten measured all-reduces through links of a limited rate.

    python scripts/check_predictions.py

Prints each with its ratio; the exit status is 1 where one is more than 25 % off. The links are the switch's
(--rate), whose round trip is short beside the times here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from switchagg.cli.predict import predictions
from switchagg.emulator.rates import Rate

CASES = [
    # workers, bytes, density, overlap, bits, rate
    (2, 4 << 20, 1.0, "all", 32, "100Mbit"),
    (4, 4 << 20, 1.0, "all", 32, "100Mbit"),
    (4, 4 << 20, 1.0, "all", 32, "50Mbit"),
    (4, 4 << 20, 1.0, "all", 16, "50Mbit"),
    (4, 4 << 20, 1.0, "all", 8, "50Mbit"),
    (4, 16 << 20, 0.1, "all", 32, "50Mbit"),
    (4, 16 << 20, 0.1, "random", 32, "50Mbit"),
    (2, 16 << 20, 0.02, "random", 32, "20Mbit"),
    (8, 2 << 20, 1.0, "all", 32, "50Mbit"),
    (4, 1 << 20, 1.0, "all", 32, "20Mbit"),
]


def _measured(case: tuple[int, int, float, str, int, str]) -> float:
    workers, size, density, overlap, bits, rate = case
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        line = [
            sys.executable, "-m", "switchagg.cli.main", "bench", "allreduce", "--workers", str(workers),
            "--size", str(size), "--density", str(density), "--overlap", overlap, "--bits", str(bits),
            "--rate", rate, "--transport", "udp", "--words", "352", "--compare", "none",
            "--repeat", "3", "--warmup", "1", "--json", str(file),
        ]  # fmt: skip
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads(file.read_text())["runs"][0]
        return float(result["seconds"]["median"])


def main() -> int:
    worst = 0.0
    for case in CASES:
        workers, size, density, overlap, bits, rate = case
        expected = predictions(
            elements=size // 4,
            element_bytes=4,
            density=density,
            overlap=overlap,
            workers=workers,
            rate=Rate.parse(rate).bits_per_second,
            round_trip=1e-3,
            bits=bits,
        )[0].seconds
        ratio = _measured(case) / expected
        worst = max(worst, abs(ratio - 1))
        print(f"{case}: expected {expected:.3f} s, measured / expected {ratio:.3f}", flush=True)
    print(f"at most {worst:.0%} off")
    return worst > 0.25


if __name__ == "__main__":
    sys.exit(main())
