"""Puts the results of a run of `switchagg experiment all` into docs/experiments.md.

python scripts/experiments_page.py report/results.json
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Final

from switchagg.experiments.report import markdown

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "experiments.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"


def main() -> None:
    """Replaces what stands between the marks."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    told = json.loads(parser.parse_args().results.read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + markdown(told) + "\n" + END + after)


if __name__ == "__main__":
    main()
