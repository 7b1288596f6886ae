"""Searches all configurations, and for each mistake; prints the tables of docs/verification.md."""

from __future__ import annotations

from tests.exhaustive.mistakes import MISTAKES
from tests.exhaustive.one_switch import OneSwitch
from tests.exhaustive.search import Wrong, search
from tests.exhaustive.tree import Tree

SYSTEMS = [
    ("2 workers, P = 2", 12, lambda packets: OneSwitch(2, 2, packets)),
    ("2 workers, P = 4", 12, lambda packets: OneSwitch(2, 4, packets)),
    ("2 workers, P = 8", 24, lambda packets: OneSwitch(2, 8, packets)),
    ("3 workers, P = 2", 12, lambda packets: OneSwitch(3, 2, packets)),
    ("3 workers, P = 4", 12, lambda packets: OneSwitch(3, 4, packets)),
    ("4 workers, P = 4", 12, lambda packets: OneSwitch(4, 4, packets)),
    ("leaves of 1 and 1, P = 2", 6, lambda packets: Tree((1, 1), 2, packets)),
    ("leaves of 2 and 1, P = 2", 6, lambda packets: Tree((2, 1), 2, packets)),
    ("leaves of 2 and 2, P = 2", 6, lambda packets: Tree((2, 2), 2, packets)),
    ("leaves of 1, 1 and 1, P = 2", 6, lambda packets: Tree((1, 1, 1), 2, packets)),
    ("leaves of 1 and 1, P = 4", 12, lambda packets: Tree((1, 1), 4, packets)),
    ("leaves of 2 and 1, P = 4", 12, lambda packets: Tree((2, 1), 4, packets)),
]


def main() -> None:
    """Searches and prints."""
    print("| system | packets | states | steps | depth | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, packets, make in SYSTEMS:
        found = search(make(packets))
        counts = f"{found.states:,} | {found.steps:,} | {found.depth}"
        print(f"| {name} | {packets} | {counts} | {found.seconds:.1f} |", flush=True)
    print("\n| mistake | found after |\n| --- | --- |")
    for name, make_mistaken in MISTAKES.items():
        try:
            search(make_mistaken())
        except Wrong as wrong:
            print(f"| {name} | {len(str(wrong).splitlines()) - 1} steps |", flush=True)
        else:
            raise SystemExit(f"{name} was not found")


if __name__ == "__main__":
    main()
