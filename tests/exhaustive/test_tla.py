"""TLC finds nothing wrong with docs/protocol.tla, and a mistake in any of its rules. Skipped without TLC."""

from __future__ import annotations

import pytest

from tests.exhaustive.tla import (
    BOTH,
    FAILOVER,
    LEAVES,
    MISTAKES,
    SPECIFICATION,
    TWO,
    VIOLATIONS,
    check,
    find_tlc,
)

needs_tlc = pytest.mark.skipif(find_tlc() is None, reason="TLC is not here (tlc on PATH, or TLA2TOOLS)")


@needs_tlc
@pytest.mark.parametrize(
    "model", [TWO, LEAVES, FAILOVER, BOTH], ids=["one-switch", "leaves", "failover", "rank-and-switch"]
)
def test_the_specification_has_its_properties(model):
    found = check(find_tlc(), model)
    assert found.status == 0, found.output
    assert found.states > 1000


@needs_tlc
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_specification_is_found(name):
    found = check(find_tlc(), *MISTAKES[name])
    assert found.status in VIOLATIONS, found.output
    print(found.output)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_change_of_the_specification(name):
    _, right, wrong = MISTAKES[name]
    assert SPECIFICATION.read_text().count(right) == 1
    assert right != wrong


def test_the_configuration_beside_the_specification_is_the_model_of_two_workers():
    beside = SPECIFICATION.with_suffix(".cfg").read_text()
    assert beside == TWO.config()
