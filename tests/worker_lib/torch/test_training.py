"""The examples' models, trained beside gloo: `make training` in short."""

from __future__ import annotations

from typing import Final

import pytest

from tests.training.compare import MODELS, Trained, compare
from tests.training.report import gap, table
from tests.training.verdict import complaints
from tests.worker_lib.torch.worlds import run

STEPS = 4
SOME: Final = ("gloo", "float64", "default", "exact", "16-ef", "8")


@pytest.mark.parametrize("model", list(MODELS))
def test_same_bits_on_all_ranks_and_gloos_losses(model: str) -> None:
    if model == "classifier":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed ('switchagg[examples]')")
    found = run(4, compare, model, STEPS, SOME, backend="gloo", timeout=120.0, limit=250.0)
    assert all(each == found[0] for each in found)  # losses are averages, the same everywhere
    trained = found[0]
    assert set(trained) == set(SOME)
    assert complaints(trained) == []
    assert trained["exact"].losses == trained["float64"].losses
    for system, bound in (("16-ef", 0.01), ("8", 0.5)):
        assert gap(trained[system], trained["gloo"]).largest < bound, table(model, trained)


def test_the_verdict_finds_what_is_wrong() -> None:
    gloo, near, far = (Trained((1.0, x), ()) for x in (0.5, 0.5 + 1e-6, 0.51))
    assert complaints({"gloo": gloo, "float64": near, "default": near}) == []
    assert complaints({"gloo": gloo, "float64": near, "default": far}) != []
    assert complaints({"gloo": gloo, "float64": far, "default": far}) == []  # rounding alone does as much
    apart = {"gloo": gloo, "float64": near, "default": near, "8": Trained((1.0, 0.5), (2,))}
    assert complaints(apart) == ["8: ranks differ after step 2"]
    assert "NO, 1 steps" in table("model", apart)
