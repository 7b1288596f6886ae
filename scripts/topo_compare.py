"""Compares several kinds of switch on the same rack: packets a second, and their ratio.

    sudo python scripts/topo_compare.py native bmv2 --workers 4 --words 64 --elements 65536

Kinds as `switchagg topo --switch` has them. All of it shares one computer, and every sum is checked.
K is the same for all, so that packets are of one size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import Any


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("switches", nargs="+", help="native, p4, bmv2")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--words", type=int, default=64, help="K (%(default)s)")
    parser.add_argument("--slots", type=int, default=64, help="of the job (%(default)s)")
    parser.add_argument("--elements", type=int, default=65536, help="int32, of each all-reduce (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed all-reduces (%(default)s)")
    args = parser.parse_args()
    rates = {}
    for kind in args.switches:
        job = _measured(kind, args)
        if job is None:
            return 1
        useful = args.workers * -(-args.elements // args.words)
        rates[kind] = useful / job["best"]
        print(
            f"{kind}: {args.workers} workers, K = {args.words}, {args.slots} slots, {job['bytes']:,} bytes: "
            f"best {1e3 * job['best']:.1f} ms, algbw {job['algbw'] / 1e6:.2f} MB/s, "
            f"{rates[kind]:,.0f} packets/s into the switch, without repeats: {job['again_share']:.1%}",
            flush=True,
        )
    fastest = max(rates, key=lambda kind: rates[kind])
    for kind, rate in rates.items():
        if kind != fastest:
            print(f"{fastest} / {kind}: {rates[fastest] / rate:,.1f}")
    return 0


def _measured(kind: str, args: Namespace) -> dict[str, Any] | None:
    words = "" if kind.startswith("native") else f",words={args.words}"
    sizes = ["--words", args.words, "--slots", args.slots]
    line = ["topo", "rack", "--workers", args.workers, "--switch", kind + words, *sizes]
    line += ["--elements", args.elements, "--rounds", args.rounds, "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "switchagg.cli.main", *map(str, line)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        return None
    job: dict[str, Any] = json.loads(ran.stdout)["jobs"]["default"]
    return job


if __name__ == "__main__":
    sys.exit(main())
