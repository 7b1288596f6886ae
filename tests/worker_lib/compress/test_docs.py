"""The recommendations of docs/compression.md can be made, and its table has every method."""

from __future__ import annotations

import re
from pathlib import Path

from worker_lib import compress

PAGE = (Path(__file__).parents[3] / "docs" / "compression.md").read_text()


def test_what_is_recommended_can_be_made() -> None:
    section = " ".join(PAGE.split("## Which should I use")[1].split("## How to use it")[0].split())
    made = []
    for expression in re.findall(r"`([A-Z][A-Za-z0-9]+\([^`]*\))`", section):
        if expression.split("(")[0] in compress.__all__:
            names = {name: getattr(compress, name) for name in compress.__all__}
            made.append(eval(expression.replace("...", "unit"), {**names, "unit": 0.5}))
    assert len(made) >= 8
    assert all(isinstance(c, compress.Compressor) for c in made)


def test_the_table_has_every_method() -> None:
    table = PAGE.split("## The methods")[1].split("## What they cost")[0]
    for name in compress.__all__:
        kind = getattr(compress, name)
        if (
            isinstance(kind, type)
            and issubclass(kind, compress.Compressor)
            and kind is not compress.Compressor
        ):
            assert f"| `{name}(" in table, name
