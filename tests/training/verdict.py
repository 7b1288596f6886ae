"""The conditions that a comparison must meet."""

from __future__ import annotations

from typing import Final

from tests.training.compare import Trained
from tests.training.report import gap

ROUNDING: Final = 1e-5  # of a loss, over hundreds of steps
TIMES: Final = 5  # or so many times what the rounding of gloo's own sums does, if that is more


def complaints(trained: dict[str, Trained]) -> list[str]:
    """Says what is wrong; empty where all is well."""
    wrong = [
        f"{system}: ranks differ after step {each.differ[0]}"
        for system, each in trained.items()
        if each.differ and system not in ("gloo", "float64")
    ]
    noise = gap(trained["float64"], trained["gloo"]).largest
    allowed = max(ROUNDING, TIMES * noise)
    for system in ("default", "exact", "32"):
        if system in trained and not (wide := gap(trained[system], trained["gloo"]).largest) <= allowed:
            wrong.append(f"{system}: a loss is {wide:.2e} from gloo's; {allowed:.2e} is allowed")
    return wrong
