"""Forges packets of each kind while a job runs, and prints what became of them; also `make forged`."""

from __future__ import annotations

import argparse
import sys

from tests.forged.run import costs, interval, run
from tests.forged.sender import KINDS
from tests.seeds import seed_of_this_run


def main() -> int:
    """Returns 1 if a job kept less than 80 % of its pace, for what the switch and the ranks do."""
    parser = argparse.ArgumentParser(prog="python -m tests.forged", description=__doc__)
    parser.add_argument("--packets", type=int, default=1_000_000, help="of each kind (%(default)s)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="one of them; all by default")
    parser.add_argument("--share", type=float, default=0.1, help="of the job's packets (%(default)s)")
    parser.add_argument("--windows", type=int, default=20, help="by turns without and with (%(default)s)")
    parser.add_argument("--elements", type=int, default=200_000, help="of a tensor, int32 (%(default)s)")
    parser.add_argument(
        "--costs", action="store_true", help="processor time a packet, while the job stands still"
    )
    args = parser.parse_args()
    seed = seed_of_this_run()
    if args.costs:
        print(
            "microseconds a packet: of the job, ranks and switch; of others, sender and switch to a port that"
        )
        print("nobody reads, then to the switch")
        for kind, took in costs(args.packets, args.kind or [*KINDS], seed, 5000.0):
            print(f"| {kind} | {' | '.join(f'{each:.1f}' for each in took)} |", flush=True)
        return 0
    print(
        "| kind | sent | counted | lost by the kernel | pace, of the undisturbed "
        "| the same, to a port that nobody reads | pace beside that |"
    )
    print("| --- " * 7 + "|")
    slow = False
    for each in run(
        args.packets, args.kind or [*KINDS], seed,
        windows=args.windows, share=args.share, elements=args.elements,
    ):  # fmt: skip
        paces = [interval(ratios) for ratios in (each.ratios, each.unread, each.beside_unread)]
        slow |= paces[-1][0] < 0.8
        shown = " | ".join(f"{middle:.2f} [{low:.2f}, {high:.2f}]" for middle, low, high in paces)
        print(f"| {each.kind} | {each.sent:,} | {each.counted:,} | {each.lost:,} | {shown} |", flush=True)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
