"""Sends a job's packets to an engine and spells out what should come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from switchagg.rules.slots import JobEntry, Out, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, encode

from .engines import Engine

Words = npt.NDArray[np.uint32]
RESULT_TOKEN = 0xFEEDF00D


def words(*values: int, count: int = 16) -> Words:
    """Returns `count` words that repeat `values`."""
    return np.resize(np.array(values, np.uint32), count)


def workers(count: int) -> tuple[WorkerEntry, ...]:
    """Worker i: bit i, 10.0.0.(i+1), port 4000 + i, token 0xA0000000 + i."""
    return tuple(WorkerEntry(i, f"10.0.0.{i + 1}", 4000 + i, 0xA0000000 + i) for i in range(count))


def first_seqs(first_seq: int, slots: int) -> list[int]:
    """Returns the first sequence number of each slot of a job that starts at `first_seq`."""
    seqs = [(first_seq + i) % 2**32 for i in range(slots)]
    return sorted(seqs, key=lambda seq: seq % slots)


class Job:
    """A job on an engine: id 7, 4 slots from slot 8, 16 words; its slots initialised."""

    def __init__(
        self,
        engine: Engine,
        count: int = 2,
        *,
        job: int = 7,
        base: int = 8,
        slots: int = 4,
        size: int = 16,
        first_seq: int = 0,
        initialise: bool = True,
        touch: bool = True,
    ) -> None:
        self.engine = engine
        self.entry = JobEntry(job, base, slots, size, RESULT_TOKEN, workers(count), touch)
        engine.add_job(self.entry)
        for seq in first_seqs(first_seq, slots) if initialise else ():
            init = self.init(seq - slots)
            assert engine.receive(init, None) == [(None, init)]

    def header(self, worker: int, seq: int, op: Op = Op.SUM, flags: int = 0, reply: int = 0) -> Header:
        entry = self.entry
        slot = entry.base + seq % entry.slots
        return Header(op, flags, entry.job, entry.workers[worker].token, seq % 2**32, slot, reply)

    def init(self, seq: int) -> bytes:
        return encode(replace(self.header(0, seq, Op.INIT), token=0))

    def send(
        self,
        worker: int,
        seq: int,
        payload: Words | None = None,
        op: Op = Op.SUM,
        *,
        again: bool = False,
        reply: int = 0,
        directed: bool = False,
        ecn: int = 0,
    ) -> list[Out]:
        """Sends a worker's contribution, or without payload its SKIP, and returns what comes back."""
        flags = ecn | (Flag.RETRANSMISSION if again else 0) | (Flag.DIRECTED if directed else 0)
        packet = encode(self.header(worker, seq, op, flags, reply), payload)
        return self.engine.receive(packet, self.entry.workers[worker].address)

    def unicast(
        self, worker: int, *, seq: int, slot: int, payload: Words | None, reply: int = 0, ecn: int = 0
    ) -> list[Out]:
        """The RESULT, to one worker."""
        header = Header(Op.RESULT, ecn, self.entry.job, RESULT_TOKEN, seq, slot, reply)
        return [(self.entry.workers[worker].address, encode(header, payload))]

    def multicast(self, *, seq: int, slot: int, payload: Words | None, ecn: int = 0) -> list[Out]:
        """The RESULT, to every worker in bit order."""
        everyone: Sequence[int] = range(len(self.entry.workers))
        return [
            out
            for worker in everyone
            for out in self.unicast(worker, seq=seq, slot=slot, payload=payload, ecn=ecn)
        ]

    def directed(self, reader: int, *, seq: int, slot: int, payload: Words, ecn: int = 0) -> list[Out]:
        """The RESULT, to every worker in bit order: with words to `reader`, bare to the others."""
        bare = Header(Op.RESULT, Flag.DIRECTED | ecn, self.entry.job, RESULT_TOKEN, seq, slot)
        return [
            self.unicast(worker, seq=seq, slot=slot, payload=payload, ecn=ecn)[0]
            if worker == reader
            else (entry.address, encode(bare))
            for worker, entry in enumerate(self.entry.workers)
        ]

    def state(self) -> list[tuple[int, int, bool, list[int] | None]]:
        """Returns the state of all of the job's slots."""
        states = [self.engine.slot(self.entry.base + i) for i in range(self.entry.slots)]
        return [(s.seq, s.seen, s.filled, None if s.words is None else s.words.tolist()) for s in states]
