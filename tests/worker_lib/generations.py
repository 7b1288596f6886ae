"""Engines on a switch without a controller: who is in the job, and when that changes, is the test's to say.

with Cluster(workers=3) as cluster:
    cluster.engines[0].submit(...)
    cluster.fence(2); cluster.change((0, 1))
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import random
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from switchagg.control.jobs.job import init_packets
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, WorkerEntry
from worker_lib import _native
from worker_lib.calls import shape_fingerprint
from worker_lib.plan import DType, Kind, ReduceOp
from worker_lib.transport import BoundSocket, bind

SLOTS, WORDS = 32, 64
PENDING, DONE, MISMATCH, TIMEOUT, ABORTED, LOST, MOVED, DAMAGED = range(8)
SECOND = 1_000_000_000


class Cluster:
    """One job on one switch; `engines` by place, the rank that a member had at first."""

    def __init__(
        self,
        workers: int,
        *,
        faults: Faults | None = None,
        link: bool = False,
        shared: bool = False,
        seed: int = 0,
        switch: Any = None,
        checked: bool = False,
        receivers: Sequence[int] = (),
        secret: bytes = b"",
    ) -> None:
        self.random = random.Random(seed)
        self.switch: Any = switch or Switch(faults=faults)
        self.link = link
        self.shared = shared
        self.by_udp: set[int] = set()  # places that do not attach
        self.words = WORDS
        self.checked = checked
        self.receivers = list(receivers)
        self.secret = secret
        self.engines: dict[int, _native.Engine] = {}
        self.places: tuple[int, ...] = ()
        self.job = 0
        self._ids = itertools.count(1)
        self._workers = workers

    def __enter__(self) -> Self:
        self.switch.start()
        places = tuple(range(self._workers))
        sockets, admissions = self._admit(places)
        for place in places:
            self.engines[place] = self._engine(sockets[place], admissions[place])
        return self

    def __exit__(self, *exception: object) -> None:
        for engine in self.engines.values():
            engine.close()
        self.switch.close()

    def fence(self, place: int) -> None:
        self.switch.fence(self.job, 1 << self.places.index(place))

    def change(self, places: Sequence[int]) -> int:
        """Acts as the controller and every member's monitor; returns how many collectives were complete."""
        before, old = self.places, self.job
        stay = [place for place in before if place in places]
        upto = max(self.engines[place].freeze() for place in stay)
        for place in stay:
            while not self.engines[place].finish(upto, SECOND // 10):
                assert not self.engines[place].broken
        sockets, admissions = self._admit(tuple(places))
        lost = len(stay) < len(before)
        for place in places:
            if place in stay:
                assert self.engines[place].resume(
                    sockets[place].native, _native.Admission(**admissions[place]), lost
                )
            else:
                self.engines[place] = self._engine(sockets[place], admissions[place])
        self.switch.remove_job(old)
        return upto

    def replay(self, gone: Sequence[int] = ()) -> None:
        """Acts as the controller and every member's monitor where the ranks send again what a rank lacks.

        Does nothing where an engine is broken: its member leaves. Processes that are `gone` end before that.
        """
        old = self.job
        first = min(engine.suspend()[0] for engine in self.engines.values())
        if any(engine.broken for engine in self.engines.values()):
            return
        sockets, admissions = self._admit(self.places, first)
        for place in gone:
            self.stop(place)
        for place, engine in self.engines.items():
            assert engine.move(sockets[place].native, _native.Admission(**admissions[place]), first)
        self.switch.remove_job(old)

    def _engine(self, sock: BoundSocket, admission: dict[str, Any]) -> _native.Engine:
        return _native.Engine(
            sock.native, _native.Admission(**admission), self.checked, bytearray(self.secret)
        )

    def _admit(
        self, places: tuple[int, ...], first: int = 0
    ) -> tuple[dict[int, BoundSocket], dict[int, dict[str, Any]]]:
        sockets = {place: bind("127.0.0.1") for place in places}
        self.job = next(self._ids)
        self.places = places
        base = (self.job % 8) * SLOTS
        draw = lambda: self.random.getrandbits(32)  # noqa: E731
        entry = JobEntry(
            self.job, base, SLOTS, self.words, draw(),
            tuple(WorkerEntry(i, sockets[p].address, sockets[p].port, draw()) for i, p in enumerate(places)),
            shared=self.shared,
        )  # fmt: skip
        first_seq = draw()
        self.switch.first_seq = first_seq
        self.switch.add_job(entry)
        for packet in init_packets(entry, (first_seq + first) % (1 << 32)).values():
            assert self.switch.packet_out(packet)
        host, port = self.switch.address
        return sockets, {
            place: {
                "switch_ip": int(ipaddress.IPv4Address(host)), "switch_port": port, "job": self.job,
                "token": entry.workers[rank].token, "result_token": entry.result_token, "base": base,
                "slots": SLOTS, "words": self.words, "first_seq": first_seq, "rank": rank,
                "workers": len(places), "window_limit": SLOTS // 2, "receivers": self.receivers,
                "shared_slots": self.shared,
                "link": self.switch.link if (self.link or self.shared) and place not in self.by_udp else "",
            }
            for rank, place in enumerate(places)
        }  # fmt: skip

    def stop(self, place: int) -> None:
        """Its process ends."""
        self.engines.pop(place).close()


class Sum:
    """An all-reduce of int32 at one engine."""

    def __init__(
        self,
        engine: _native.Engine,
        x: np.ndarray[Any, np.dtype[np.int32]],
        *,
        kind: Kind = Kind.ALLREDUCE,
        background: bool = True,
        seconds: float = 60.0,
        in_place: bool = True,
    ) -> None:
        self.engine, self.x = engine, x
        self.out = x if in_place else np.empty_like(x)
        call = _native.Call(
            kind=int(kind), op=int(ReduceOp.SUM), dtype=int(DType.I32), bits=32, root=0, sparse=True,
            block=16, count=x.size, fingerprint_count=x.size, shape_crc=shape_fingerprint(x.shape),
            workers=0, rank=0, policy=0, input=x.ctypes.data, in_begin=0, in_end=x.size,
            output=self.out.ctypes.data, out_begin=0, out_end=x.size, mask=0, zero_fill=not in_place,
        )  # fmt: skip
        submitted = None
        while submitted is None:
            submitted = engine.submit(call, int(seconds * SECOND), background, engine.generation)
        self.native = submitted

    def wait(self, seconds: float = 60.0) -> int:
        """Its status: still `PENDING` after that time."""
        return self.engine.wait(self.native, int(seconds * SECOND))


def close_all(*engines: _native.Engine) -> None:
    for engine in engines:
        with contextlib.suppress(Exception):
            engine.close()
