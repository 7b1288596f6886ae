"""Every case of the matrix on switchagg (`make test-long`), and the judgement and table of the matrix."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")

import torch

from tests.seeds import seed_of_this_run
from tests.torch_matrix.__main__ import BEGIN, END, page_with, row
from tests.torch_matrix.cases import CASES
from tests.torch_matrix.runner import Outcome, apart, compare, load_cases, run_case

load_cases()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_feature_works_through_the_switch(name: str) -> None:
    seed = seed_of_this_run()
    outcome = run_case(name, "switchagg", seed)
    if outcome.missing:
        pytest.skip(f"not installed: {', '.join(outcome.missing)}")
    if outcome.error and (gloo := run_case(name, "gloo", seed)).error:
        pytest.skip(f"gloo does not have it either: {gloo.error}")
    assert not outcome.error, f"{outcome.error}\n{outcome.detail}"


def test_a_case_that_runs_and_ones_that_fail() -> None:
    assert run_case("object collectives", "gloo", 1).passed
    said = run_case("split_group", "gloo", 1)
    assert said.error.startswith("RuntimeError: ")
    assert not said.passed
    assert "split_group(split_ranks" in said.detail


def test_ranks_that_differ_and_backends_that_differ() -> None:
    name = "all_reduce: SUM, MAX, MIN, PRODUCT, asynchronous, float and integer"
    x = torch.ones(3)
    assert apart({0: [x], 1: [x.clone()]}) == ""
    assert apart({0: [x], 1: [x + 1e-7]}) == "rank 1 has another tensor 0 than rank 0"
    assert compare(name, Outcome({0: [x]}), Outcome({0: [x + 1e-7]})) == ""
    assert compare(name, Outcome({0: [x]}), Outcome({0: [x + 1e-3]})).startswith("not gloo's result: ")


def test_rows_and_the_page() -> None:
    passed, failed = Outcome(), Outcome(error="ValueError: a | b\n c")
    assert row("x", passed, passed) == "| x | yes | yes |  |"
    assert row("x", passed, failed) == "| x | yes | no | ValueError: a / b c |"
    assert row("x", failed, passed) == "| x | no | yes | gloo: ValueError: a / b c |"
    missing = Outcome(missing=("lightning",))
    assert row("x", missing, missing) == "| x | | | not installed: lightning |"
    assert page_with(f"a\n{BEGIN}old\n{END}b\n", "new") == f"a\n{BEGIN}new\n{END}b\n"
    with pytest.raises(ValueError, match="has no lines"):
        page_with("a page", "new")
