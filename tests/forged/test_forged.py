"""Forged packets from another process change nothing and are counted, each kind."""

from __future__ import annotations

import pytest

from tests.forged.run import run
from tests.forged.sender import KINDS
from tests.seeds import seed_of_this_run


def test_forged_packets_change_nothing_and_are_counted() -> None:
    try:
        found = list(run(500, [*KINDS], seed_of_this_run(), windows=1, share=0.2, elements=20_000))
    except PermissionError as error:
        pytest.skip(str(error))
    assert [each.kind for each in found] == [*KINDS]
    assert all(each.counted for each in found)
