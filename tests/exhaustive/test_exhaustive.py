"""Every schedule of small jobs is right, and a mistake in any rule is found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.exhaustive import failover
from tests.exhaustive.change_mistakes import CHANGE_MISTAKES, SPARE
from tests.exhaustive.failover import Failover
from tests.exhaustive.failover_mistakes import FAILOVER_MISTAKES
from tests.exhaustive.membership import Bounds, Membership
from tests.exhaustive.mistakes import MISTAKES
from tests.exhaustive.one_switch import OneSwitch
from tests.exhaustive.search import Wrong, search
from tests.exhaustive.tree import Tree


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """States are millions of tuples without cycles, so the collector would only cost time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: OneSwitch(2, 2, 6), id="2-workers-2-slots"),
        pytest.param(lambda: OneSwitch(2, 4, 12), id="2-workers-4-slots"),
        pytest.param(lambda: OneSwitch(3, 2, 6), id="3-workers-2-slots"),
        pytest.param(lambda: Tree((1, 1), 2, 6), id="tree-of-1+1"),
        pytest.param(lambda: Tree((2, 1), 2, 6), id="tree-of-2+1"),
        pytest.param(lambda: Membership(2, Bounds(1, 1, 1, 1)), id="2-workers-lost-left-and-back"),
        pytest.param(lambda: Membership(3, Bounds(losses=1)), id="3-workers-1-lost"),
        pytest.param(lambda: Failover(2, 2, 4, failover.Bounds(deaths=1)), id="a-switch-dies"),
        pytest.param(
            lambda: Failover(2, 2, 4, failover.Bounds(deaths=1, returns=1), switches=1),
            id="the-only-switch-dies-and-returns",
        ),
        *(pytest.param(make, id=name, marks=pytest.mark.long) for name, make in SPARE.items()),
    ],
)
def test_every_schedule_ends_with_the_right_sums(make):
    found = search(make())
    print(found)
    assert found.states > 50


_MISTAKES = {**MISTAKES, **CHANGE_MISTAKES, **FAILOVER_MISTAKES}


# Each takes two seconds and more.
_SLOW = {
    "change-leave-counts-in-the-next-generation", "failover-held-results-of-the-last-switch-alone",
    "change-pause-before-the-collective", "change-event-of-a-former-generation-taken",
    "change-opened-with-a-lost-rank", "change-removed-before-all-are-done",
    "change-progress-asked-again-begins-a-change", "change-lacking-results-not-fetched",
    "change-proceed-asked-again-refused", "failover-early-event-forgotten",
    "failover-sequence-numbers-of-packet-0", "failover-held-results-forgotten",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in _SLOW else []) for name in _MISTAKES]
)
def test_a_mistake_is_found(name):
    with pytest.raises(Wrong) as caught:
        search(_MISTAKES[name]())
    print(caught.value)
