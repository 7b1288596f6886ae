"""Two levels of native switches on real sockets: leaves add for their workers and talk to a root over UDP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest

from switchagg.control.jobs.job import init_packets
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry
from tests.seeds import seed_of_this_run
from tests.switchagg.emulator.plain_workers import PlainWorkers, Words

LEAVES, ROOT_BASE, ROOT_TOKEN = 2, 64, 0x77777777


@dataclass
class Tree:
    root: Switch
    leaves: list[Switch]
    workers: list[PlainWorkers]  # of each leaf

    @property
    def every(self) -> list[tuple[PlainWorkers, int]]:
        return [(each, bit) for each in self.workers for bit in range(len(each.sockets))]


def _initialise(switch: Switch, entry: JobEntry) -> None:
    switch.add_job(entry)
    for packet in init_packets(entry, 0).values():
        assert switch.packet_out(packet) == [packet]


def _grow(stack: ExitStack, count: int, words: int, faults: Faults | None, *, links: bool = True) -> Tree:
    root = stack.enter_context(Switch(faults=faults, links=links))
    leaves = [stack.enter_context(Switch(links=links)) for _ in range(LEAVES)]
    workers = []
    for number, leaf in enumerate(leaves):
        members = stack.enter_context(PlainWorkers(count, words=words, slots=16))
        parent = ParentEntry(*root.address, 0xAA00 + number, ROOT_BASE, ROOT_TOKEN)
        members.entry = replace(members.entry, parent=parent)
        workers.append(members.join(leaf))
    as_workers = tuple(
        WorkerEntry(number, *leaf.address, 0xAA00 + number) for number, leaf in enumerate(leaves)
    )
    first = workers[0].entry
    _initialise(root, JobEntry(first.job, ROOT_BASE, 16, words, ROOT_TOKEN, as_workers))
    return Tree(root, leaves, workers)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def _round(tree: Tree, seqs: range, rng: np.random.Generator, words: int) -> None:
    """One window of contributions, repeated until everybody has every sum."""
    sums: dict[int, Words | None] = dict.fromkeys(seqs)
    sent: dict[tuple[int, int, int], Words | None] = {}
    for leaf, members in enumerate(tree.workers):
        for bit in range(len(members.sockets)):
            for seq in seqs:
                mine = rng.integers(0, 2**32, words, dtype=np.uint32) if rng.random() < 0.8 else None
                sent[leaf, bit, seq] = mine
                before = sums[seq]
                if mine is not None:
                    sums[seq] = mine if before is None else before + mine
                members.send(bit, seq, mine)
    held: dict[tuple[int, int], dict[int, Words | None]] = {
        (leaf, bit): {} for leaf, members in enumerate(tree.workers) for bit in range(len(members.sockets))
    }
    for _ in range(200):
        for (leaf, bit), mine in held.items():
            _take(tree.workers[leaf], bit, mine, sums)
        lacking = [(at, bit, seq) for at, bit, seq in sent if seq not in held[at, bit]]
        if not lacking:
            return
        for leaf, bit, seq in lacking:
            tree.workers[leaf].send(bit, seq, sent[leaf, bit, seq])
    raise AssertionError(f"nobody answers {lacking}")


def _take(
    members: PlainWorkers, bit: int, held: dict[int, Words | None], sums: dict[int, Words | None]
) -> None:
    """Takes in what there is, until all is there or nothing comes for a while; every sum is right."""
    members.sockets[bit].settimeout(0.05)
    while held.keys() < sums.keys():
        try:
            header, result = members.receive(bit)
        except TimeoutError:
            return
        if header.seq not in sums:
            continue
        held[header.seq] = result
        assert (header.reply, header.slot) == (0, members.entry.base + header.seq % 16)
        np.testing.assert_array_equal(result, sums[header.seq])


@pytest.mark.parametrize("words", [16, 364, 2200])
def test_sums_over_two_leaves(stack: ExitStack, words: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    tree = _grow(stack, 3, words, None)
    for start in range(0, 64, 8):
        _round(tree, range(start, start + 8), rng, words)
    root = tree.root.job_counters(1)
    assert root["results"] == 64
    # The root gets one packet a leaf and slot, however many workers there are.
    assert root["accepted"] == 64 * LEAVES
    for leaf in tree.leaves:
        counters = leaf.job_counters(1)
        assert (counters["results"], counters["accepted"]) == (64, 3 * 64)
        assert counters["delivered"] >= 64


def test_sums_while_the_root_loses_packets(stack: ExitStack) -> None:
    """Lost on the way up and on the way down; only repeats of workers make up for it."""
    rng = np.random.default_rng(seed_of_this_run())
    tree = _grow(stack, 2, 32, Faults(loss=0.2, duplicate=0.1, reorder=0.1, seed=seed_of_this_run()))
    for start in range(0, 32, 8):
        _round(tree, range(start, start + 8), rng, 32)
    assert sum(leaf.job_counters(1)["duplicates_answered"] for leaf in tree.leaves) > 0
    assert tree.root.job_counters(1)["results"] == 32


def test_a_result_from_elsewhere_reaches_no_worker(stack: ExitStack) -> None:
    tree = _grow(stack, 1, 16, None)
    members = tree.workers[0]
    forged = bytes.fromhex("12 00 0001 77777777 00000000 0040 0000")
    for address in (tree.leaves[0].address, tree.root.address):
        members.sockets[0].sendto(forged, address)
    _round(tree, range(4), np.random.default_rng(1), 16)
    # Packets beside the sums answer repeats, which a busy computer needs.
    members.sockets[0].settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        while True:
            assert members.receive(0)[0].seq in range(4)
    assert tree.leaves[0].counters()["op"] == 1
