"""Makes docs/experiments.md, and README's sentences on experiments, from the results in docs/results.

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
from switchagg.experiments.report import markdown
from switchagg.report.table import markdown_table

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results" / "experiments.json"
PAGE: Final = ROOT / "docs" / "experiments.md"
README: Final = ROOT / "README.md"
IMAGES: Final = ROOT / "docs" / "images"
MARKS: Final = ("<!-- results -->\n", "<!-- end of results -->\n")
PICTURES: Final = {
    "race": 2
}  # experiments whose first tables and pictures the page has, besides one table each


def take_in(told: dict[str, Any], run: Path) -> dict[str, Any]:
    """Returns results with the experiments of a run in place of former ones; copies their pictures."""
    new = json.loads(run.read_text())
    for name, each in new["experiments"].items():
        if "checks" not in each:
            raise SystemExit(f"{run}: {name} is {each['verdict']}: {each['reason']}")
        count = PICTURES.get(name, 0)
        for plot in each["plots"][:count]:
            shutil.copyfile(run.parent / f"{name}-{plot['name']}.png", IMAGES / f"{name}-{plot['name']}.png")
        kept = {key: each[key] for key in ("title", "claim", "source", "verdict", "seconds", "others")}
        kept |= {key: each[key] for key in ("checks", "notes")}
        kept |= {
            "tables": each["tables"][: max(1, count)],
            "pictures": [p["name"] for p in each["plots"][:count]],
        }
        if name == "race":
            kept["numbers"] = each["numbers"]
        told["experiments"][name] = kept
    order = list(catalogue.load())
    told["experiments"] = {name: told["experiments"][name] for name in order if name in told["experiments"]}
    told |= {key: new[key] for key in ("machine", "quick", "seed")}
    told["names"] = "NAME"  # runs may be of different days
    told["seconds"] = sum(each["seconds"] or 0.0 for each in told["experiments"].values())
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
    race = told["experiments"].get("race")
    if race is not None:
        best, steps, times = (race["numbers"][key] for key in ("best", "steps", "times"))
        rows = []
        for model, of in best.items():
            cells = []
            for link, way in of.items():
                seconds = {
                    name: sum(steps[model]["ways"][name]["steps"]) / len(steps[model]["ways"][name]["steps"])
                    * times[model][link][name]["seconds"]
                    for name in (way, "dense, 32 bit")
                }  # fmt: skip
                gain = seconds["dense, 32 bit"] / seconds[way]
                cells.append(f"{way} ({gain:.1f} x)")
            rows.append((model, *cells))
        links = next(iter(best.values()))
        lines += [
            "First to a fixed loss, by model and link, each way at its own best rate, and how many times as "
            "fast as dense float32 (`switchagg experiment race`, 4 workers):",
            "",
            *markdown_table(("model", *links), rows),
        ]
    return "\n".join(lines) + "\n"


def between(page: Path, text: str) -> str:
    """Returns a page with another text between its marks."""
    before, begin, rest = page.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise SystemExit(f"{page} lacks {MARKS[0].strip()} or {MARKS[1].strip()}")
    return before + begin + "\n" + text + "\n" + end + after


def main() -> None:
    """Takes in runs, and writes or checks both pages."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    told: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"experiments": {}}
    for run in args.runs:
        told = take_in(told, run)
    if args.runs:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    for page, text in ((PAGE, markdown(told)), (README, readme(told))):
        made = between(page, text)
        if args.check and made != page.read_text():
            raise SystemExit(f"{page} differs from {RESULTS}: run scripts/experiments_page.py")
        page.write_text(made)


if __name__ == "__main__":
    main()
