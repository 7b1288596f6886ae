"""Makes docs/experiments.md, and what README and docs/compression.md say of it, from docs/results.

python scripts/experiments_page.py report/results.json ...    takes in the experiments of these runs first
python scripts/experiments_page.py --check                    exit status 1 if a page differs from its results
"""

from __future__ import annotations

import json
import shutil
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from switchagg.experiments import catalogue
from switchagg.experiments.claims.race import DENSE, KINDS, kind_of
from switchagg.experiments.report import markdown
from switchagg.report.table import markdown_table

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results" / "experiments.json"
PAGE: Final = ROOT / "docs" / "experiments.md"
README: Final = ROOT / "README.md"
IMAGES: Final = ROOT / "docs" / "images"
MARKS: Final = ("<!-- results -->\n", "<!-- end of results -->\n")
COMPRESSION: Final = ROOT / "docs" / "compression.md"
SHOWN: Final = {
    "density": (1, 1),
    "more-workers": (3, 3),
    "local-work": (2, 2),
    "race": (2, 3),
    "adaptive-level": (1, 2),
    "quantized-top-k": (1, 1),
    "swarm": (2, 2),
    "one-bit-adam": (2, 2),
    "count-sketch": (1, 1),
    "sparse-loco": (1, 1),
}
"""Tables and pictures that the page has of an experiment; of others one and none."""


def take_in(told: dict[str, Any], run: Path) -> dict[str, Any]:
    """Returns results with the experiments of a run in place of former ones; copies their pictures."""
    new = json.loads(run.read_text())
    for name, each in new["experiments"].items():
        if "checks" not in each:
            raise SystemExit(f"{run}: {name} is {each['verdict']}: {each['reason']}")
        tables, pictures = SHOWN.get(name, (1, 0))
        for plot in each["plots"][:pictures]:
            shutil.copyfile(run.parent / f"{name}-{plot['name']}.png", IMAGES / f"{name}-{plot['name']}.png")
        kept = {
            key: each[key]
            for key in ("title", "claim", "source", "verdict", "seconds", "others", "processor")
        }
        kept |= {key: each[key] for key in ("checks", "notes")}
        kept |= {
            "tables": each["tables"][:tables],
            "pictures": [p["name"] for p in each["plots"][:pictures]],
        }
        if name == "race":
            kept["numbers"] = each["numbers"]
        told["experiments"][name] = kept
    known = catalogue.load()
    order = list(known)
    told["experiments"] = {name: told["experiments"][name] for name in order if name in told["experiments"]}
    told |= {key: new[key] for key in ("machine", "quick", "seed")}
    in_all = {name for name in known if known[name].in_all}
    if in_all <= set(new["experiments"]):
        told |= {"names": "all", "seconds": new["seconds"], "processor": new["processor"]}
        told["alone"] = sorted(set(told["experiments"]) - in_all)
    elif set(new["experiments"]) & in_all:  # runs may be of different days
        told |= {"names": "NAME", "alone": []}
        told["seconds"] = sum(each["seconds"] or 0.0 for each in told["experiments"].values())
        each_s = [each.get("processor") for each in told["experiments"].values()]
        told["processor"] = 0.0 if None in each_s else sum(each_s)  # not told where some is not known
    else:
        told["alone"] = sorted(set(told["experiments"]) - in_all) if told.get("names") == "all" else []
    return told


def readme(told: Mapping[str, Any]) -> str:
    """Returns README's sentences."""
    each = told["experiments"].values()
    held = sum(one["verdict"] == "held" for one in each)
    checks = [check["held"] for one in each for check in one["checks"]]
    lines = [
        f"Of {len(each)} experiments {held} hold in all their statements, and {sum(checks)} of {len(checks)} "
        "statements ([docs/experiments.md](docs/experiments.md)).",
    ]
    if "race" in told["experiments"]:
        gains = seconds_to_loss(told)
        links = list(next(iter(gains.values())))
        rows = []
        for model, of in gains.items():
            firsts = {link: min(times, key=lambda way, t=times: t[way]) for link, times in of.items()}  # type: ignore[misc]
            rows.append(
                (model, *(f"{way} ({of[at][DENSE] / of[at][way]:.1f} x)" for at, way in firsts.items()))
            )
        lines += [
            "First to a fixed loss, by model and link, each way at its own best rate, and how many times as "
            "fast as dense float32 (`switchagg experiment race`, 4 workers):",
            "",
            *markdown_table(("model", *links), rows),
        ]
    return "\n".join(lines) + "\n"


def seconds_to_loss(told: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns mean seconds to the loss by model, link and way, of the ways that reach it with every seed."""
    steps, times = (told["experiments"]["race"]["numbers"][key] for key in ("steps", "times"))
    return {
        model: {
            link: {
                way: sum(each["steps"]) / len(each["steps"]) * of[way]["seconds"]
                for way, each in steps[model]["ways"].items()
                if each["steps"] and None not in each["steps"]
            }
            for link, of in links.items()
        }
        for model, links in times.items()
    }


def advice(told: Mapping[str, Any]) -> str:
    """Returns docs/compression.md's tables: the best way of each kind, then every way, by model and link."""
    rows: list[tuple[str, ...]] = []
    gains = seconds_to_loss(told)
    for model, links in gains.items():
        for link, times in links.items():
            cells = []
            for kind in KINDS:
                ways = [way for way in times if kind_of(way) == kind]
                best = min(ways, key=lambda way, t=times: t[way], default=None)  # type: ignore[misc]
                cells.append("-" if best is None else f"{best}: {times[DENSE] / times[best]:.1f} x")
            rows.append((model, link, *cells))
    lines = markdown_table(("gradients", "links", *(f"best of {kind}" for kind in KINDS)), rows)
    for model, links in gains.items():
        ways = told["experiments"]["race"]["numbers"]["steps"][model]["ways"]
        mean = {
            way: sum(each["steps"]) / len(each["steps"])
            if each["steps"] and None not in each["steps"]
            else None
            for way, each in ways.items()
        }
        rows = []
        for way, each in ways.items():
            steps = mean[way]
            if steps is None:
                rows.append((way, "-", "did not arrive", *("-" for _ in links)))
                continue
            rate, least = each["rate"] / ways[DENSE]["rate"], mean[DENSE]
            assert least is not None
            speeds = (f"{times[DENSE] / times[way]:.1f}" for times in links.values())
            rows.append((way, f"{rate:g}", f"{steps / least:.2f}", *speeds))
        lines += [
            "",
            f"Every way, {model} gradients: its best rate and its steps as multiples of those of exact sums, "
            "then how many times as fast as dense float32 it reached the loss:",
            "",
            *markdown_table(("way", "rate", "steps", *links), rows),
        ]
    return "\n".join(lines) + "\n"


def between(page: Path, text: str, marks: tuple[str, str] = MARKS) -> str:
    """Returns a page with another text between its marks."""
    before, begin, rest = page.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise SystemExit(f"{page} lacks {marks[0].strip()} or {marks[1].strip()}")
    return before + begin + "\n" + text + "\n" + end + after


def write(made: Mapping[Path, str], results: Path, script: str, *, check: bool) -> None:
    """Writes pages. `check`: exits with an error where one would change, and names its script."""
    for page, text in made.items():
        if check and text != page.read_text():
            raise SystemExit(f"{page} differs from {results}: run {script}")
        page.write_text(text)


def main() -> None:
    """Takes in runs, and writes or checks all pages."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    told: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"experiments": {}}
    for run in args.runs:
        told = take_in(told, run)
    for name, known in catalogue.load().items():  # a citation is put right without a new run
        if name in told["experiments"]:
            told["experiments"][name]["source"] = known.source
    if args.runs:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    pages = {PAGE: markdown(told), README: readme(told), COMPRESSION: advice(told)}
    made = {page: between(page, text) for page, text in pages.items()}
    write(made, RESULTS, "scripts/experiments_page.py", check=args.check)


if __name__ == "__main__":
    main()
