"""Random table contents and the packets that meet them.

Jobs come and go, next to each other in the slots, on the same stations, some with ids, tokens and bases at
the ends of their ranges, some below another switch. Their workers follow the window rule over a bad network,
and an adversary interferes (`tests.switchagg.conformance.traffic`). On top of that some packets come in at
another port than their source's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

from switchagg.p4program.program import JobPlace, Parent, Station, Target
from switchagg.rules.slots import JobEntry, Out, ParentEntry, WorkerEntry
from switchagg.wire.header import HEADER_BYTES
from tests.p4.engine import mac_of
from tests.switchagg.conformance.traffic import Sender, Traffic

from . import bystanders
from .replay import ports_of
from .steps import Admit, Connect, Cross, Remove, Send, Step

_JOB_IDS: Final = (0, 1, 2, 0xFF, 0x100, 0x8000, 0xFFFE, 0xFFFF)
_UDP_PORTS: Final = (1, 4000, 4001, 48879, 0xFFFF)
_TOKENS: Final = (0, 1, 0x80000000, 0xFFFFFFFF)
_HOSTS: Final = 40
_JOBS: Final = 6
_CONTRIBUTIONS: Final = 600
"""Of a job, at most: with more, one job would be most of a run."""


class Drawer:
    """Draws steps, and takes in what the switch answers.

    Args:
        target: of the device.
    """

    def __init__(self, rng: Random, target: Target) -> None:
        self._rng = rng
        self._target = target
        self._ports = ports_of(target)
        # The last port is for those who are no workers.
        places = rng.sample(self._ports[:-1], _HOSTS)
        self._hosts = {f"10.0.0.{i + 1}": port for i, port in enumerate(places)}
        self._connected: list[str] = []
        self._jobs: dict[int, Admit] = {}
        self._traffic: Traffic | None = None
        self.following = 0
        self.hits: Counter[str] = Counter()

    def episode(self, limit: int) -> Iterator[Step]:
        """Yields the steps of a few jobs' lives, `limit` packets at most. At its end all jobs are removed."""
        rng = self._rng
        hostile = rng.random() < 0.5
        if not self._connected:
            self._connected = [host for host in self._hosts if rng.random() < 0.7]
            for host in self._connected:
                yield Connect(mac_of(host), self._hosts[host])
        senders: list[Sender] = []
        for _ in range(rng.randint(1, 4)):
            senders.append(self._sender(hostile=hostile))
            yield self._jobs[senders[-1].job.job]
        churn = rng.choice([0.0, 0.01, 0.05])
        traffic = self._traffic = Traffic(rng, hostile=hostile, senders=senders)
        for drawn, source in traffic.packets(limit):
            payload = drawn
            port = 0
            if source is not None:
                port = self._hosts.get(source[0], self._ports[-1])
                if rng.random() < 0.02:
                    port = rng.choice([each for each in self._ports if each != port])
                    self.hits["another port"] += source[0] in self._hosts
                    self.following -= 1
                if hostile and rng.random() < 0.1:
                    payload = _with_reply(payload, rng.randrange(1, 1 << 16))
            yield Send(payload, source, port)
            if rng.random() < 0.1:
                frame = bystanders.draw(rng, list(self._hosts), payload)
                yield Cross(frame, rng.choice(self._ports))
            if rng.random() < churn:
                yield from self._change(traffic, hostile=hostile)
        self.following += traffic.following
        self.hits.update(f"trick: {trick}" for trick in traffic.adversary.used.elements())
        self._traffic = None
        for job in list(self._jobs):
            del self._jobs[job]
            yield Remove(job)

    def answer(self, outs: list[Out]) -> None:
        """Takes what the switch sent in reply to the last step."""
        if self._traffic is not None:
            self._traffic.answer([out for out in outs if out[0] is not None])

    def _change(self, traffic: Traffic, *, hostile: bool) -> Iterator[Step]:
        if self._rng.random() < 0.5:
            sender = self._rng.choice(traffic.senders)
            traffic.leave(sender)
            del self._jobs[sender.job.job]
            self.hits["a job leaves"] += 1
            yield Remove(sender.job.job)
        if not traffic.senders or (len(traffic.senders) < _JOBS and self._rng.random() < 0.5):
            sender = self._sender(hostile=hostile)
            traffic.join(sender)
            self.hits["a job joins"] += 1
            yield self._jobs[sender.job.job]

    def _sender(self, *, hostile: bool) -> Sender:
        rng = self._rng
        job_id = rng.choice([job for job in (*_JOB_IDS, rng.randrange(1 << 16)) if job not in self._jobs])
        count = rng.choice([1, 1, 2, 2, 3, 3, 4, 6, 8, 32])
        slots = rng.choice([2, 2, 4, 4, 8, 16, 64])
        while count * slots > _CONTRIBUTIONS // 2:
            slots //= 2
        rounds = rng.randint(2, max(2, min(6, _CONTRIBUTIONS // (count * slots))))
        token = rng.choice(_TOKENS)
        addresses = [(ip, port) for ip in self._hosts for port in rng.sample(_UDP_PORTS, 2)]
        workers = tuple(
            # An adversary that knows one token and is admitted anyway may have it as another's.
            WorkerEntry(bit, *address, token if hostile and rng.random() < 0.3 else rng.randrange(2**32))
            for bit, address in zip(rng.sample(range(32), count), rng.sample(addresses, count), strict=True)
        )
        above = None
        if rng.random() < 0.3:
            known = {worker.address for worker in workers}
            address = rng.choice([each for each in addresses if each not in known])
            base = slots * rng.choice([0, rng.randrange(2**16 // slots), 2**16 // slots - 1])
            above = ParentEntry(*address, rng.choice([token, 1]), base, rng.choice([token, 2]))
        job = JobEntry(
            job_id,
            self._base(slots),
            slots,
            self._target.words,
            rng.choice([token, rng.randrange(2**32)]),
            workers,
            parent=above,
        )
        stations = {worker.bit: Station(self._hosts[worker.ip], mac_of(worker.ip)) for worker in workers}
        used = {admitted.place.index for admitted in self._jobs.values()}
        indices = (0, 1, 254, 255, *rng.sample(range(256), 8))
        index = rng.choice([each for each in indices if each not in used])
        sender = Sender.of(rng, job, rounds)
        parent = None
        if above is not None:
            station = Station(self._hosts[above.ip], mac_of(above.ip))
            parent = Parent(station, above.ip, above.token, above.base, above.result_token, above.port)
        self._jobs[job_id] = Admit(job, JobPlace(index, stations, parent), sender.first_seq)
        return sender

    def _base(self, slots: int) -> int:
        """A free range, often next to another's."""
        taken = [(each.job.base, each.job.base + each.job.slots) for each in self._jobs.values()]
        free = [
            base
            for base in range(0, self._target.slots - slots + 1, slots)
            if all(base + slots <= begin or end <= base for begin, end in taken)
        ]
        near = [base for base in free if any(base == end or base + slots == begin for begin, end in taken)]
        return self._rng.choice(self._rng.choice([near or free, free, free[:1], free[-1:]]))


def _with_reply(payload: bytes, reply: int) -> bytes:
    return payload[:14] + reply.to_bytes(2, "big") + payload[16:] if len(payload) >= HEADER_BYTES else payload
