"""Ranks of jobs with shared slots are killed and stopped: no sum is wrong, and nothing hangs."""

from __future__ import annotations

import random

from tests.seeds import seed_of_this_run
from tests.shared_slots.run import episodes


def test_survivors_go_on_with_right_sums() -> None:
    done = list(episodes(random.Random(seed_of_this_run()), 24))
    assert sum(episode.moments for episode in done) >= 24
    for episode in done:
        assert not episode.complaint, episode
        assert episode.calls >= 5
