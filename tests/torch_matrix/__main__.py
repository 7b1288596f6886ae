"""Runs the cases on gloo and on switchagg, and prints the matrix. Status 1: gloo has what switchagg lacks.

python -m tests.torch_matrix                            all of them; make torch-matrix does the same
python -m tests.torch_matrix --only FSDP2 --verbose     those with FSDP2 in their names, with tracebacks
python -m tests.torch_matrix --write docs/pytorch.md    replaces the table of that page
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.seeds import seed_of_this_run
from tests.torch_matrix.cases import CASES
from tests.torch_matrix.runner import BACKENDS, Outcome, compare, load_cases, run_case

BEGIN, END = "<!-- matrix: python -m tests.torch_matrix -->\n", "<!-- end of the matrix -->\n"


def row(name: str, gloo: Outcome, ours: Outcome) -> str:
    """A line of the table."""
    if ours.missing:
        return f"| {name} | | | not installed: {', '.join(ours.missing)} |"
    note = ours.error or (f"gloo: {gloo.error}" if gloo.error else "")
    cells = ["yes" if each.passed else "no" for each in (gloo, ours)]
    return f"| {name} | {cells[0]} | {cells[1]} | {' '.join(note.split())[:160].replace('|', '/')} |"


def head(device: str) -> str:
    """The first lines of the table."""
    import torch

    where = "" if device == "cpu" else f", {device} tensors"
    return f"| torch {torch.__version__}{where} | gloo | switchagg | note |\n| --- | --- | --- | --- |"


def page_with(page: str, table: str) -> str:
    """Returns a page with this table between its markers.

    Raises ValueError if it has no markers.
    """
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}{table}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="cases with this in their names")
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table of this page")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of models and data")
    parser.add_argument("--at-once", type=int, default=1, help="cases (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="errors with their tracebacks")
    args = parser.parse_args()
    load_cases()
    names = [name for name in CASES if not args.only or any(part in name for part in args.only)]
    if not names:
        parser.error(f"--only {' '.join(args.only)}: no such case; --list prints all")
    if args.list:
        print("\n".join(names))
        return 0
    if args.write is not None:
        page_with(args.write.read_text(), "")
    seed = seed_of_this_run()
    lines, lacking = [head(args.device)], []
    print(lines[0], flush=True)

    def both(name: str) -> tuple[str, Outcome, Outcome]:
        gloo, ours = (run_case(name, backend, seed, args.device) for backend in BACKENDS)
        return name, gloo, ours

    for name, gloo, ours in ThreadPoolExecutor(args.at_once).map(both, names):
        if gloo.passed and ours.passed:
            ours.error = compare(name, ours, gloo)
        if gloo.passed and not ours.passed:
            lacking.append(name)
        lines.append(row(name, gloo, ours))
        print(lines[-1], flush=True)
        if args.verbose:
            for backend, outcome in zip(BACKENDS, (gloo, ours), strict=True):
                said = "" if outcome.passed else f"{outcome.error}\n{outcome.detail}"
                print(f"{backend}: {outcome.seconds:.1f} s {said}", file=sys.stderr)
    if args.write is not None:
        args.write.write_text(page_with(args.write.read_text(), "\n".join(lines)))
    for name in lacking:
        print(f"gloo has it, switchagg does not: {name}", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
