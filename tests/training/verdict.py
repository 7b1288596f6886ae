"""The conditions that a comparison must meet."""

from __future__ import annotations

from typing import Final

from tests.training.compare import Trained
from tests.training.report import gap

# Of a loss, over hundreds of steps, by system. In 32-bit lanes 65,536 neighbours share a scale, and Adam
# divides small gradients by their own size.
ROUNDING: Final = {"default": 1e-5, "exact": 1e-5, "32": 1e-3}
TIMES: Final = 5  # or so many times what the rounding of gloo's own sums does, if that is more


def complaints(trained: dict[str, Trained]) -> list[str]:
    """Says what is wrong; empty where all is well."""
    wrong = [
        f"{system}: ranks differ after step {each.differ[0]}"
        for system, each in trained.items()
        if each.differ and system not in ("gloo", "float64")
    ]
    noise = gap(trained["float64"], trained["gloo"]).largest
    for system, least in ROUNDING.items():
        allowed = max(least, TIMES * noise)
        if system in trained and not (wide := gap(trained[system], trained["gloo"]).largest) <= allowed:
            wrong.append(f"{system}: a loss is {wide:.2e} from gloo's; {allowed:.2e} is allowed")
    return wrong
