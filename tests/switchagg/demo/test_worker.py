"""n workers over an exact all-reduce and one process on the whole batch learn the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from switchagg.demo import messages, worker
from switchagg.demo.outcome import combine
from switchagg.demo.settings import Settings
from tests.switchagg.demo.thread_session import Hub, ThreadSession

SETTINGS = Settings(
    workers=3,
    steps=30,
    rows=400,
    dimension=8,
    context=3,
    hidden=16,
    vocabulary=50,
    batch=16,
    digests=3,
    dense_steps=2,
)
TRAINING = 4000


def make_tokens() -> np.ndarray:
    """Text with something to learn: a word mostly decides the next one."""
    generator = np.random.default_rng(8)
    tokens = np.zeros(5000, dtype=np.int32)
    for index in range(1, len(tokens)):
        tokens[index] = (
            (tokens[index - 1] * 7 + 3) % 61 if generator.random() < 0.9 else generator.integers(61)
        )
    return tokens


def train_with_threads(settings: Settings) -> tuple[list[np.ndarray], list[list[messages.Message]]]:
    hub = Hub(settings.workers)
    told: list[list[messages.Message]] = [[] for _ in range(settings.workers)]
    flats: list[np.ndarray] = [np.empty(0)] * settings.workers
    tokens = make_tokens()

    def one(rank: int) -> None:
        flats[rank] = worker.train(ThreadSession(hub, rank), settings, tokens, TRAINING, told[rank].append)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(settings.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    return flats, told


def test_workers_and_one_process_have_the_same_curve_and_weights() -> None:
    flats, told = train_with_threads(SETTINGS)
    single: list[messages.Message] = []
    expected = worker.train_alone(SETTINGS, make_tokens(), TRAINING, single.append)
    assert all(np.array_equal(flat, flats[0]) for flat in flats)
    assert flats[0] == pytest.approx(expected, abs=2e-4)

    steps = [[message for message in rank if isinstance(message, messages.Step)] for rank in told]
    curve = [combine(together).loss for together in zip(*steps, strict=True)]
    alone = [message.loss for message in single if isinstance(message, messages.Step)]
    assert len(curve) == SETTINGS.steps
    assert curve == pytest.approx(alone, abs=1e-4)
    assert curve[0] == pytest.approx(np.log(SETTINGS.vocabulary), abs=0.3)
    assert curve[-1] < curve[0] - 0.3


def test_workers_tell_digests_comparisons_and_a_sample() -> None:
    _, told = train_with_threads(SETTINGS)
    for rank, heard in enumerate(told):
        digests = [message for message in heard if isinstance(message, messages.Digest)]
        assert [message.step for message in digests] == [10, 20, 30]
        assert len({message.sha256 for message in digests}) == 3
        comparisons = [message for message in heard if isinstance(message, messages.Comparison)]
        assert len(comparisons) == 2
        assert all(comparison.equal for comparison in comparisons)
        samples = [message for message in heard if isinstance(message, messages.Sample)]
        assert len(samples) == (rank == 0)
    assert [[m for m in heard if isinstance(m, messages.Digest)][-1].sha256 for heard in told[1:]] == [
        [m for m in told[0] if isinstance(m, messages.Digest)][-1].sha256
    ] * 2
    assert all(messages.decode(messages.encode(message)) == message for message in told[0])


def test_shuffling_a_batch_changes_rounding_only() -> None:
    curves = []
    for shuffled in (False, True):
        told: list[messages.Message] = []
        worker.train_alone(SETTINGS, make_tokens(), TRAINING, told.append, shuffled=shuffled)
        curves.append([message.loss for message in told if isinstance(message, messages.Step)])
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    assert curves[0] != curves[1]


def test_usage_is_the_growth_of_the_counters() -> None:
    session = ThreadSession(Hub(1), 0)
    before = session.stats()
    session.allreduce(np.ones(3))
    usage = messages.usage(before, session.stats())
    assert usage.bytes_sent == 100
    assert usage.seconds["wire"] == 0.5
    assert usage.seconds["decode"] == 0.0
