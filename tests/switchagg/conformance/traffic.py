"""Random packet sequences: workers that follow the window rule over a bad network, and an adversary.

    workers --packets--> uplink --(lost, duplicated, reordered)--> switch
       ^                                                            |
       +------------------- downlink, as bad as the uplink <--------+

A worker sends again what has no RESULT. Only the switch is missing: the test puts an engine in its place.
Some jobs have a parent, a switch above with this one as its only worker; its RESULTs come over the uplink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from switchagg.rules.slots import Address, JobEntry, Out, ParentEntry, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, decode, encode
from tests.reference.slots import SlotTable

from .scenario import RESULT_TOKEN, Words, first_seqs

Packet = tuple[bytes, Address | None]
LEAF: Address = ("10.0.8.1", 48879)
"""The address by which parents know the switch."""

# Moves of the adversary. The first change nothing, whoever sends them.
HARMLESS = (
    "version",
    "op",
    "flags",
    "job",
    "token",
    "slot",
    "cut",
    "stretch",
    "other length",
    "source",
    "impostor",
    "garbage",
    "controller",
    "unknown init",
    "init elsewhere",
    "init with words",
)
HOSTILE = ("ahead", "stale", "any seq", "other words", "reply", "init", "mutate")


@dataclass
class Worker:
    """One worker of a job. It sends seq q only when it holds the RESULT of q - P/2."""

    entry: WorkerEntry
    job: JobEntry
    ops: list[Op]  # of every seq, counted from the first
    contributions: list[Words | None]
    readers: list[int]  # of every seq: the `reply` of a directed contribution, or 0
    first_seq: int
    results: dict[int, bytes] = field(default_factory=dict)  # by place in the job
    sent: int = 0

    def packet(self, place: int, *, again: bool = False) -> Packet:
        seq = (self.first_seq + place) % 2**32
        reader = self.readers[place]
        flags = (Flag.RETRANSMISSION if again else 0) | (Flag.DIRECTED if reader else 0)
        slot = self.job.base + seq % self.job.slots
        reply = 0 if again else reader
        header = Header(self.ops[place], flags, self.job.job, self.entry.token, seq, slot, reply)
        return encode(header, self.contributions[place]), self.entry.address

    def may_send(self) -> bool:
        before = self.sent - self.job.slots // 2
        return self.sent < len(self.ops) and (before < 0 or before in self.results)

    def outstanding(self) -> list[int]:
        return [place for place in range(self.sent) if place not in self.results]


@dataclass
class Sender:
    """The workers of one job, and the results that they must get."""

    job: JobEntry
    first_seq: int
    workers: list[Worker]

    @classmethod
    def random(cls, rng: Random, base: int, job_id: int) -> Sender:
        count, slots, rounds = rng.randint(1, 4), rng.choice([2, 4, 8]), rng.randint(1, 3)
        entries = tuple(
            WorkerEntry(bit, f"10.0.0.{bit + 1}", 4000 + job_id, rng.randrange(2**32))
            for bit in sorted(rng.sample(range(32), count))
        )
        parent = ParentEntry(
            f"10.0.9.{job_id + 1}",
            48879,
            rng.randrange(2**32),
            slots * rng.randrange(8),
            rng.randrange(2**32),
        )
        job = JobEntry(
            job_id,
            base,
            slots,
            rng.choice([16, 17, 20]),
            RESULT_TOKEN,
            entries,
            parent=parent if rng.random() < 0.4 else None,
        )
        return cls.of(rng, job, rounds)

    @classmethod
    def of(cls, rng: Random, job: JobEntry, rounds: int) -> Sender:
        """A job's workers, with contributions for so many rounds of all its slots."""
        first_seq = rng.choice([0, 2**32 - rng.randint(1, 8), rng.randrange(2**32)])
        ops = [rng.choice([Op.SUM, Op.OR]) for _ in range(job.slots * rounds)]
        # Bit 0 is also the leaf's at the root; numbers of no worker are as good as any.
        named = [1, 33, 0xFFFF, *(worker.bit + 1 for worker in job.workers)]
        directed = rng.choice([0.0, 0.0, 0.5, 1.0])
        readers = [rng.choice(named) if rng.random() < directed else 0 for _ in ops]
        density = rng.choice([0.0, 0.5, 0.9, 1.0])
        source = np.random.default_rng(rng.randrange(2**32))
        workers = [
            Worker(
                entry,
                job,
                ops,
                [
                    source.integers(0, 2**32, job.words, np.uint32) if rng.random() < density else None
                    for _ in ops
                ],
                readers,
                first_seq,
            )
            for entry in job.workers
        ]
        return cls(job, first_seq, workers)

    def inits(self) -> Iterator[Packet]:
        for seq in first_seqs(self.first_seq, self.job.slots):
            slot = self.job.base + seq % self.job.slots
            yield encode(Header(Op.INIT, 0, self.job.job, 0, (seq - self.job.slots) % 2**32, slot)), None

    def root(self) -> SlotTable | None:
        """The job's parent, its slots initialised."""
        parent, job = self.job.parent, self.job
        if parent is None:
            return None
        table = SlotTable(parent.base + job.slots)
        leaf = WorkerEntry(0, *LEAF, parent.token)
        table.add_job(JobEntry(job.job, parent.base, job.slots, job.words, parent.result_token, (leaf,)))
        for seq in first_seqs(self.first_seq, job.slots):
            slot = parent.base + seq % job.slots
            table.receive(encode(Header(Op.INIT, 0, job.job, 0, (seq - job.slots) % 2**32, slot)), None)
        return table

    def expected(self, place: int) -> bytes:
        """The RESULT of one seq, computed without a slot machine."""
        seq = (self.first_seq + place) % 2**32
        header = Header(
            Op.RESULT, 0, self.job.job, self.job.result_token, seq, self.job.base + seq % self.job.slots
        )
        present = [w for worker in self.workers if (w := worker.contributions[place]) is not None]
        if not present:
            return encode(header)
        combine = np.add if self.workers[0].ops[place] is Op.SUM else np.bitwise_or
        return encode(header, combine.reduce(np.stack(present), axis=0, dtype=np.uint32))

    def accepts(self, worker: Worker, place: int, result: bytes) -> bool:
        """True for RESULTs that a worker may get: the sum, or bare where another reads the words."""
        expected = self.expected(place)
        here = worker.entry.bit if self.job.parent is None else 0  # all at a leaf get what the leaf does
        if result == expected or worker.readers[place] in (0, here + 1):
            return result == expected
        header, words = decode(expected)
        return words is not None and result == encode(replace(header, flags=Flag.DIRECTED))

    @property
    def done(self) -> bool:
        return all(len(worker.results) == len(worker.ops) for worker in self.workers)


class Adversary:
    """Makes packets out of those that were seen.

    Args:
        hostile: whether it is also an admitted worker that breaks the window rule, and a controller that
            initialises slots in the middle of a job.
        ecn: whether its packets may have the flags CE and ECT.
    """

    def __init__(self, rng: Random, senders: list[Sender], *, hostile: bool, ecn: bool) -> None:
        self._rng = rng
        self._senders = senders
        self._tricks = (*HARMLESS, *HOSTILE) if hostile else HARMLESS
        self._ecn = ecn
        self.used: Counter[str] = Counter()

    def packet(self, seen: list[Packet]) -> Packet:
        trick = self._rng.choice(self._tricks)
        self.used[trick] += 1
        return self._make(trick, *self._rng.choice(seen))

    def _make(self, trick: str, payload: bytes, source: Address | None) -> Packet:
        rng = self._rng
        changed = bytearray(payload)
        header, words = decode(payload)
        job = rng.choice(self._senders).job
        init = Header(Op.INIT, 0, job.job, 0, rng.randrange(2**32), 0)
        init = replace(init, slot=job.base + init.seq % job.slots)
        match trick:
            case "version":
                changed[0] = rng.choice([0, *range(2, 16)]) << 4 | changed[0] & 15
            case "op":
                changed[0] = 0x10 | rng.randrange(2, 16)
            case "flags":
                changed[1] ^= Flag.PAYLOAD
            case "job":
                changed[2:4] = rng.choice([1000, 0xFFFF]).to_bytes(2, "big")
            case "token":
                changed[4 + rng.randrange(4)] ^= 1 << rng.randrange(8)
            case "slot":
                wrong = 1 << rng.randrange(16)
                if header.op is Op.RESULT:  # a RESULT's need only be one of the job's
                    wrong = self._job(header).slots << rng.randrange(8)
                changed[12:14] = (header.slot ^ wrong).to_bytes(2, "big")
            case "cut":
                del changed[rng.randrange(len(changed)) :]
                if len(changed) == 16:
                    changed[1] |= Flag.PAYLOAD
            case "stretch":
                changed += bytes(rng.randint(1, 8))
            case "other length":
                count = rng.choice([*range(16, 66), 128, 129, 500, 1000, 2000])
                if count != self._job(header).words:
                    header = replace(header, job=rng.choice([header.job, header.job, 1000]))
                    return encode(header, np.full(count, 7, np.uint32)), source
            case "source":
                return payload, (
                    f"10.0.{rng.randrange(1, 4)}.{rng.randrange(1, 256)}",
                    rng.randrange(1, 65536),
                )
            case "impostor":
                sender = rng.choice(self._senders)
                if sender.job.parent is not None and header.op is not Op.RESULT and rng.random() < 0.2:
                    return payload, sender.job.parent.address
                return payload, rng.choice(sender.workers).entry.address
            case "garbage":
                return bytes([0x60]) + rng.randbytes(rng.randrange(100)), source
            case "controller":
                return payload, None
            case "unknown init":
                return encode(replace(init, job=1000)), None
            case "init elsewhere":
                return encode(replace(init, slot=(init.slot + 1) % 2**16)), None
            case "init with words":
                return encode(init, np.zeros(job.words, np.uint32)), None
            case "init":
                return encode(init), None
            case "ahead":
                jump = self._job(header).slots
                return encode(replace(header, seq=(header.seq + jump) % 2**32), words), source
            case "stale":
                jump = self._job(header).slots * rng.choice([-2, -1, 2, 3])
                return encode(replace(header, seq=(header.seq + jump) % 2**32), words), source
            case "any seq":
                seq = rng.randrange(2**32)
                slots = self._job(header)
                return encode(replace(header, seq=seq, slot=slots.base + seq % slots.slots), words), source
            case "reply":
                return encode(replace(header, reply=rng.randrange(1, 2**16)), words), source
            case "other words":
                other = None if words is not None else np.full(self._job(header).words, 3, np.uint32)
                return encode(replace(header, op=rng.choice([Op.SUM, Op.OR])), other), source
            case "mutate":
                for _ in range(rng.randint(1, 3)):
                    changed[rng.randrange(min(len(changed), 16))] ^= 1 << rng.randrange(8)
                if not self._ecn:
                    changed[1] &= ~(Flag.CE | Flag.ECT)
        return bytes(changed), source

    def _job(self, header: Header) -> JobEntry:
        return next(sender.job for sender in self._senders if sender.job.job == header.job)


class Traffic:
    """Packets for the switch: `packets()` yields them, `answer()` takes what the switch sent.

    Args:
        senders: the jobs; by default one or two small ones. Whoever drives the switch may take jobs out and
            put others in while packets flow: what was sent for those that left may still be repeated.
        ecn: whether packets may have the flags CE and ECT.
    """

    def __init__(
        self, rng: Random, *, hostile: bool, senders: Sequence[Sender] = (), ecn: bool = True
    ) -> None:
        self._rng = rng
        self._hostile = hostile
        self._marks = hostile and ecn
        self.senders = list(senders)
        if not senders:
            job_ids = rng.sample(range(16), rng.randint(1, 2))
            self.senders = [Sender.random(rng, 16 * i, job_id) for i, job_id in enumerate(job_ids)]
        self._known = list(self.senders)
        self._roots = {id(sender): sender.root() for sender in self.senders}
        self.adversary = Adversary(rng, self._known, hostile=hostile, ecn=ecn)
        self._noise = rng.choice([0.0, 0.1, 0.3])
        self._loss = rng.choice([0.0, 0.1, 0.4])
        self._reorder = rng.choice([1, 3, 100])
        self._uplink: list[Packet] = []
        self._downlink: list[tuple[Worker, bytes]] = []
        self._seen: list[Packet] = []
        self.following = 0  # packets from workers that follow the rule
        self.adversarial = 0
        self.answers = 0  # RESULTs of parents that name a worker

    @property
    def _workers(self) -> list[Worker]:
        return [worker for sender in self.senders for worker in sender.workers]

    def join(self, sender: Sender) -> None:
        """Another job begins."""
        self.senders.append(sender)
        self._known.append(sender)
        self._roots[id(sender)] = sender.root()

    def leave(self, sender: Sender) -> None:
        """A job ends, its packets still on their way."""
        self.senders.remove(sender)
        self._downlink = [
            (worker, payload) for worker, payload in self._downlink if worker.job is not sender.job
        ]

    def packets(self, limit: int) -> Iterator[Packet]:
        """Yields what arrives at the switch, until every worker is done or `limit` packets have arrived."""
        rng = self._rng
        seen = self._seen
        while self.following + self.adversarial < limit and not all(sender.done for sender in self.senders):
            if seen and rng.random() < self._noise:
                self.adversarial += 1
                yield self.adversary.packet(seen)
                continue
            self._downlink = [down for down in self._downlink if not self._arrives(down)]
            self._let_workers_send()
            if not self._uplink:
                continue
            packet = self._uplink[rng.randrange(min(len(self._uplink), self._reorder))]
            if rng.random() >= 0.1:  # else it will arrive again
                self._uplink.remove(packet)
            if rng.random() >= self._loss:
                if self._marks and rng.random() < 0.2:
                    payload, source = packet
                    packet = bytes([payload[0], payload[1] | rng.choice([8, 16, 24])]) + payload[2:], source
                seen.append(packet)
                self.following += 1
                yield packet

    def answer(self, outs: list[Out]) -> None:
        """Puts what the switch sent to workers on their downlink, or loses it; a parent answers at once."""
        for destination, payload in outs:
            job = decode(payload)[0].job
            for sender in self.senders:
                parent, root = sender.job.parent, self._roots[id(sender)]
                if parent is None or root is None or (parent.address, sender.job.job) != (destination, job):
                    continue
                if self._rng.random() >= self._loss:
                    answers = [(answer, parent.address) for _, answer in root.receive(payload, LEAF)]
                    self.answers += sum(decode(answer)[0].reply > 0 for answer, _ in answers)
                    self._uplink += answers
            for worker in self._workers:
                if (worker.entry.address, worker.job.job) == (
                    destination,
                    job,
                ) and self._rng.random() >= self._loss:
                    self._downlink.append((worker, payload))

    def _arrives(self, down: tuple[Worker, bytes]) -> bool:
        if self._rng.random() < 0.5:
            return False
        worker, payload = down
        place = (decode(payload)[0].seq - worker.first_seq) % 2**32
        if self._hostile and place >= worker.sent:
            return True  # of a packet that the adversary sent in the worker's name
        assert place < worker.sent, "a RESULT of what was never sent"
        # An answer to a second copy of a directed contribution echoes its reply.
        assert self._hostile or decode(payload)[0].reply in (0, worker.readers[place])
        payload = payload[:14] + bytes(2) + payload[16:]
        known = worker.results.setdefault(place, payload)
        bare = any(decode(each)[0].flags == Flag.DIRECTED for each in (known, payload))
        assert self._hostile or bare or known == payload, "two RESULTs of one seq differ"
        return True

    def _let_workers_send(self) -> None:
        worker = self._rng.choice(self._workers)
        if worker.may_send():
            self._uplink.append(worker.packet(worker.sent))
            worker.sent += 1
        elif (outstanding := worker.outstanding()) and self._rng.random() < 0.3:
            self._uplink.append(worker.packet(self._rng.choice(outstanding), again=True))
