"""The files of our P4 programs, in a checkout and in an installed package.

`v1model` and `tna` name them wherever a command takes a P4 source: ``switchagg p4 check v1model``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAMES: Final = {"v1model": "switchagg_v1model.p4", "tna": "switchagg_tna.p4"}
_INSTALLED: Final = Path(__file__).with_name("p4")
FOLDER: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "p4"


def source_path(text: str | Path) -> Path:
    """Returns the path of one of our programs for its name, and any other path as it is."""
    name = NAMES.get(str(text))
    return Path(text) if name is None else FOLDER / name
