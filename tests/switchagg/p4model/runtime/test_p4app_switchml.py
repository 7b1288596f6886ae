"""SwitchML's own TNA program, unmodified, aggregates in the model under its own controller's entries."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.seeds import seed_of_this_run

from .p4app_switchml import (
    CONTROLLER_PORTS,
    Worker,
    exchange,
    mac,
    numbers,
    open_switchml,
    packet,
    port,
    run,
)

WORKERS = 3


def test_first_burst_and_both_halves_of_a_slot() -> None:
    generator = random.Random(seed_of_this_run())
    switch = open_switchml(WORKERS)
    vectors = numbers(generator, 8, WORKERS, 64)
    for round_ in range(8):
        for worker in generator.sample(range(WORKERS), WORKERS):
            got = exchange(switch, worker, packet(worker, 5, round_ & 1, round_, vectors[round_, worker]))
        assert [to for to, _ in got] == list(range(WORKERS))
        for _, each in got:
            assert (each.slot, each.half, each.number) == (5, round_ & 1, round_)
            assert np.array_equal(each.words, vectors[round_].sum(0, np.uint32))


def test_retransmissions() -> None:
    generator = random.Random(seed_of_this_run())
    switch = open_switchml(WORKERS)
    vectors = numbers(generator, WORKERS, 64)
    frames = [packet(worker, 9, 0, 1, vectors[worker]) for worker in range(WORKERS)]
    # Before the slot is full: dropped, and not added again.
    for worker in (0, 0, 1, 0, 1):
        assert exchange(switch, worker, frames[worker]) == []
    assert [to for to, _ in exchange(switch, 2, frames[2])] == [0, 1, 2]
    # Afterwards: answered, to its sender alone.
    for worker in (1, 0, 2, 1):
        [(to, got)] = exchange(switch, worker, frames[worker])
        assert to == worker
        assert np.array_equal(got.words, vectors.sum(0, np.uint32))
    # A packet of the other half makes room for the worker's next one.
    assert exchange(switch, 0, packet(0, 9, 1, 2, vectors[0])) == []
    assert exchange(switch, 0, packet(0, 9, 0, 3, vectors[0])) == []


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_200_slots_over_links_that_lose(loss: float) -> None:
    generator = random.Random(seed_of_this_run())
    switch = open_switchml(WORKERS)
    vectors = numbers(generator, WORKERS, 3, 200, 64)
    workers = [Worker(rank, vectors[rank]) for rank in range(WORKERS)]
    lost = run(switch, workers, loss, generator)
    assert (lost > 0) == (loss > 0)
    for worker in workers:
        assert np.array_equal(worker.sums, vectors.sum(0, np.uint32))


def test_256_words_in_four_pipes() -> None:
    generator = random.Random(seed_of_this_run())
    switch = open_switchml(WORKERS, folded=True)
    vectors = numbers(generator, WORKERS, 256)
    for worker in range(WORKERS):
        got = exchange(switch, worker, packet(worker, 3, 0, 1, vectors[worker]))
    assert [to for to, _ in got] == [0, 1, 2]
    # The port of the third harvest pass is in pipe 3, where it must be in pipe 2: the first half of
    # pipe 2's words is read nowhere, and that of pipe 3 twice.
    wanted = vectors.sum(0, np.uint32)
    wanted[128:160] = wanted[192:224]
    for _, each in got:
        assert np.array_equal(each.words, wanted)


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_256_words_with_every_harvest_pass_in_its_pipe(loss: float) -> None:
    generator = random.Random(seed_of_this_run())
    switch = open_switchml(WORKERS, folded=True, harvest=CONTROLLER_PORTS | {3: 260})
    vectors = numbers(generator, WORKERS, 4, 20, 256)
    workers = [Worker(rank, vectors[rank]) for rank in range(WORKERS)]
    run(switch, workers, loss, generator)
    for worker in workers:
        assert np.array_equal(worker.sums, vectors.sum(0, np.uint32))
    # Each pipe has added 64 words of every packet.
    for pipe in range(4):
        pair = switch.register("value31.values", pipe).cell(1)
        first, second = vectors.sum(0, np.uint32)[3, 0, 64 * pipe :][[31, 63]]
        assert (pair.first, pair.second) == (first, second)


def test_other_traffic_is_forwarded() -> None:
    switch = open_switchml(WORKERS)
    frame = mac(1).to_bytes(6, "big") + mac(0).to_bytes(6, "big") + b"\x88\xb5" + bytes(46)
    assert switch.process(port(0), frame) == [(port(1), frame)]
    broadcast = b"\xff" * 6 + frame[6:]
    assert switch.process(port(0), broadcast) == [(port(1), broadcast), (port(2), broadcast)]
