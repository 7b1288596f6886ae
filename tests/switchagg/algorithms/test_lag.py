"""LAG: workers whose gradients hardly change say nothing, and x* is reached all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import lag
from switchagg.algorithms.base import Array, mean_gradient
from switchagg.algorithms.lag import Lag
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

from .problems_for_tests import WORKERS, distances, shares, solve


def test_it_follows_the_rule_and_a_lazy_worker_sends_no_words(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run())
    gamma = 0.5 / float(np.mean([p.smoothness for p in problems]))
    # In one process, word by word as the paper has it.
    at, sent, moves, expected = np.zeros(24), [np.zeros(24)] * WORKERS, [0.0] * 3, []
    for step in range(40):
        total = np.zeros(24)
        who = []
        for i, p in enumerate(problems):
            gradient = p.gradient(at)
            if step == 0 or np.square(gradient - sent[i]).sum() > 0.2 / gamma**2 * sum(moves[-3:]):
                sent[i] = gradient
                who.append(i)
            total += sent[i] / WORKERS
        expected.append(who)
        moves.append(float(np.square(gamma * total).sum()))
        at = at - gamma * total

    def call(session: Session) -> tuple[Array, list[bool], list[int]]:
        me = Lag(problems[session.rank], session, step=gamma, window=3, xi=0.2)
        sends, words = [], []
        for _ in range(40):
            before = session.stats()["packets_data"]
            sends.append(me.step() > 0)
            words.append(session.stats()["packets_data"] - before)
        assert sum(sends) == me.sendings
        return me.x, sends, words

    found = together(host.url, WORKERS, call, words=64)
    assert [[r for r in range(WORKERS) if found[r][1][s]] for s in range(40)] == expected
    assert 0 < sum(map(len, expected)) < 40 * WORKERS  # some were lazy
    assert all(each[0].tobytes() == found[0][0].tobytes() for each in found)
    assert np.allclose(found[0][0], at, atol=1e-12)
    for _, sends, words in found:
        lazy = [w for w, s in zip(words, sends, strict=True) if not s]
        busy = [w for w, s in zip(words, sends, strict=True) if s]
        assert not lazy or max(lazy) < min(busy)  # the header's packet, and no more


def test_it_reaches_the_optimum(host: EmbeddedController) -> None:
    problems, x = shares(seed_of_this_run())
    log = solve(host, lag.run, problems, x, steps=600)
    assert distances(log)[-1] < 1e-6
    assert np.linalg.norm(mean_gradient(problems, x)) < 1e-8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"xi": -1.0}, "xi is -1.0; accepted: 0 and up"),
        ({"window": 0}, "window is 0"),
        ({"bits": 8}, "bits is 8"),
        ({"step": 1e9}, r"step is 1000000000.0; accepted: greater than 0, at most [\d.]+ \(2 / L\)"),
    ],
)
def test_what_is_refused(host: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            lag.run(problems[session.rank], session, steps=1, **arguments)
        session.barrier()

    together(host.url, WORKERS, call)
