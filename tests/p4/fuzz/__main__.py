"""Fuzzes the devices that run the P4 programs, and prints what differs from the native slot table as a test.

    python -m tests.p4.fuzz [--packets 100000] [--seed 7]

The v1model program in the P4 model gets `--packets`, the TNA program a fifth of them; four fifths of each at
K = 64, a tenth at 16 and at 40. The seed that is printed repeats a run.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.p4.conftest import DEVICES

from .open_device import open_device
from .run import Report, fuzz
from .steps import as_test

SHARES = {64: 0.8, 16: 0.1, 40: 0.1}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.p4.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--packets", type=int, default=100_000, help="for v1model; TNA gets a fifth of them")
    parser.add_argument("--seed", default=None, help="of an earlier run")
    parser.add_argument("--device", choices=DEVICES, action="append", help="only this one; may be repeated")
    args = parser.parse_args()
    seed = args.seed or str(secrets.randbelow(2**32))
    print(f"seed {seed}", flush=True)
    failed = False
    pipe = Random(seed).randrange(4)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.device or DEVICES[:2]:
            packets = args.packets // 5 if name == "model-tna" else args.packets
            here = pipe if name == "model-tna" else 0
            for words, share in SHARES.items():
                with open_device(name, words, Path(folder), pipe=here) as dut:
                    report = fuzz(dut, int(packets * share), f"{seed}/{name}/{words}")
                shown = f", pipe={here}" if here else ""
                call = f"open_device({name!r}, {words}, tmp_path{shown})"
                failed |= _tell(f"{name}{shown}, K = {words}", call, seed, report)
    return int(failed)


def _tell(name: str, call: str, seed: str, report: Report) -> bool:
    """Prints a report; returns whether it tells of a failure."""
    rate = report.packets / report.seconds
    print(
        f"{name}: {report.packets} packets, {report.following} of them by the window rule, "
        f"{report.hits['counter: accepted']} accepted, {report.hits['counter: results']} rounds completed, "
        f"{rate:.0f} packets/s: " + ("no difference" if report.found is None else "DIFFERS"),
        flush=True,
    )
    if report.found is not None:
        print(f"\n{report.found.what}\n")
        print(as_test(call, report.found.steps, report.found.what, seed))
        return True
    if report.missed:
        print("never taken: " + "; ".join(report.missed))
    if report.following * 2 < report.packets:
        print("less than half of the packets are of senders that follow the window rule")
        return True
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
