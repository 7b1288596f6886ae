"""Makes the tables of all-reduce on one computer in README.md and docs/performance.md, from docs/results.

python -m scripts.performance_page FILE ...    takes in files of `switchagg bench allreduce --json FILE`
python -m scripts.performance_page --check     exit status 1 if a page differs from the results

The commands, for a computer that does nothing else, after `switchagg bench peers --install all`:

    peers=gloo,openmpi-shm,openmpi-tcp,mpich,intelmpi,oneccl
    switchagg bench allreduce --workers 4 --size 4K,64K,1M,8M,16M,64M --density 1 --bits default,32,8 \\
        --compare $peers --repeat 9 --json sizes.json
    switchagg bench allreduce --workers 2,8,16 --size 16M --density 1 --bits default,32,8 \\
        --compare $peers --repeat 9 --json workers.json
    switchagg bench allreduce --workers 4 --size 64M --density 0.01 --bits default,32,8 \\
        --compare $peers --repeat 9 --json sparse.json
    python -m scripts.performance_page sizes.json workers.json sparse.json

A row is of one run: a later one on the same computer replaces it as a whole. Its best peer is the one with
the least median time. Rows of two computers are in no table together; README has those of the last one that
was taken in.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from scripts.experiments_page import README, ROOT, between, write
from switchagg.bench.grid import format_size
from switchagg.report.format import NONE, significant
from switchagg.report.table import markdown_table

RESULTS: Final = ROOT / "docs" / "results" / "allreduce.json"
PAGE: Final = ROOT / "docs" / "performance.md"
MARKS: Final = ("<!-- all-reduce -->\n", "<!-- end of all-reduce -->\n")
OURS: Final = {
    "default": ("slots", "default"),
    "`bits=32`": ("slots", 32),
    "`bits=8`": ("slots", 8),
    "`bits=32`, UDP": ("udp", 32),
}
"""Columns of switchagg: transport and bits."""
_OF_A_ROW: Final = ("density", "workers", "bytes")
_KEPT: Final = ("system", "transport", "bits", "p50", "p99", "cpu")
_MACHINE: Final = ("cpu", "cores", "kernel")

Row = dict[str, Any]
Told = list[dict[str, Any]]
"""Of each computer its "machine" and its "rows"; first the one whose run was taken in last."""


def take_in(told: Told, run: Path) -> Told:
    """Returns results with the rows of a run in place of that computer's former ones.

    Raises SystemExit where the run has failures, wrong sums, or nothing that the tables show.
    """
    new = json.loads(run.read_text())
    for each in new["failed"]:
        raise SystemExit(f"{run}: {each['system']} failed: {each['error']}")
    rows: dict[tuple[Any, ...], Row] = {}
    for each in new["runs"]:
        if each["exact"] is False:
            raise SystemExit(f"{run}: {each['system']} gave wrong sums")
        if each["dtype"] != "float32" or each["loss"] or each["system"] == "udp-floor":
            continue
        key = tuple(each[name] for name in _OF_A_ROW)
        row = rows.setdefault(key, {**dict(zip(_OF_A_ROW, key, strict=True)), "runs": []})
        seconds = {"p50": each["seconds"]["call_p50"], "p99": each["seconds"]["call_p99"]}
        kept = each | seconds | {"cpu": each["cpu_seconds"]}
        row["runs"].append({name: kept[name] for name in _KEPT})
    if not rows:
        raise SystemExit(f"{run}: no sums of float32 without losses")
    machine = {name: new["machine"][name] for name in _MACHINE}
    others = [each for each in told if each["machine"] != machine]
    former = [row for each in told if each["machine"] == machine for row in each["rows"]]
    rows = {tuple(row[name] for name in _OF_A_ROW): row for row in former} | rows
    ordered = sorted(rows.values(), key=lambda row: (-row["density"], row["bytes"], row["workers"]))
    return [{"machine": machine, "rows": ordered}, *others]


def best_peer(row: Row) -> Row | None:
    """The run of another system with the least median time; None where the row has none."""
    others = (each for each in row["runs"] if each["system"] != "switchagg")
    return min(others, key=lambda each: each["p50"], default=None)


def _ours(row: Row, transport: str, bits: object) -> Row | None:
    way = ("switchagg", transport, bits)
    return next(
        (each for each in row["runs"] if (each["system"], each["transport"], each["bits"]) == way), None
    )


def _times(run: Row | None) -> str:
    return NONE if run is None else " / ".join(significant(1e3 * run[name]) for name in ("p50", "p99"))


def _name(row: Row) -> str:
    sparse = "" if row["density"] == 1 else f", {100 * row['density']:g} % of blocks"
    return f"{format_size(row['bytes'])}B, {row['workers']} workers{sparse}"


def _table(rows: Iterable[Row], columns: Mapping[str, tuple[str, object]]) -> list[str]:
    cells = []
    for row in rows:
        peer, mine = best_peer(row), _ours(row, *OURS["`bits=32`"])
        named = NONE if peer is None else f"{peer['system']}: {_times(peer)}"
        times = NONE if peer is None or mine is None else significant(peer["p50"] / mine["p50"], 2)
        cells.append((_name(row), *(_times(_ours(row, *way)) for way in columns.values()), named, times))
    return markdown_table(("tensor", *columns, "best peer", "its time by that of `bits=32`"), cells)


def readme(computer: Mapping[str, Any]) -> str:
    """Returns README's table: 4 workers, all sizes."""
    columns = {name: way for name, way in OURS.items() if name != "`bits=8`"}
    rows = [row for row in computer["rows"] if row["workers"] == 4]
    return "\n".join(
        [
            f"Median / 99th percentile of one all-reduce of float32 in ms, all on {_name_of(computer)}, "
            f"beside the fastest of {', '.join(_peers(computer))} in that row:",
            "",
            *_table(rows, columns),
            "",
            "([docs/performance.md](docs/performance.md#all-reduce-on-one-computer) has all systems and "
            "computers, and `scripts/performance_page.py` the commands.)",
            "",
        ]
    )


def page(told: Told) -> str:
    """Returns docs/performance.md's tables, for each computer: ours beside the best peer, and all peers."""
    lines = [
        "## All-reduce on one computer",
        "",
        "Median / 99th percentile of single calls in ms, of float32; switchagg through slots that the "
        "workers share, or over UDP. Above 1 in the last column: switchagg is faster. "
        "(`python -m scripts.performance_page --help` has the commands.)",
        "",
    ]
    for computer in told:
        peers = _peers(computer)
        cells = []
        for row in computer["rows"]:
            by_name = {each["system"]: each for each in row["runs"]}
            cells.append((_name(row), *(_times(by_name.get(name)) for name in peers)))
        lines += [
            f"On {_name_of(computer)}:",
            "",
            *_table(computer["rows"], OURS),
            "",
            "The other systems of the same runs:",
            "",
            *markdown_table(("tensor", *peers), cells),
            "",
        ]
    return "\n".join(lines)


def _peers(computer: Mapping[str, Any]) -> list[str]:
    systems = dict.fromkeys(each["system"] for row in computer["rows"] for each in row["runs"])
    return [name for name in systems if name != "switchagg"]


def _name_of(computer: Mapping[str, Any]) -> str:
    cpu, cores, kernel = (computer["machine"][name] for name in _MACHINE)
    return f"{cores} cores ({cpu}, Linux {kernel.partition('-')[0]})"


def main() -> None:
    """Takes in runs, and writes or checks both pages."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    told: Told = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for run in args.runs:
        told = take_in(told, run)
    if not told:
        raise SystemExit(f"there is no {RESULTS.relative_to(ROOT)} yet: name files of runs")
    if args.runs:
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    made = {
        where: between(where, text, MARKS) for where, text in ((PAGE, page(told)), (README, readme(told[0])))
    }
    write(made, RESULTS, "python -m scripts.performance_page", check=args.check)


if __name__ == "__main__":
    main()
