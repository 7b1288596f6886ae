"""A switch in Python that does as the reference slot table does, and lies as a test tells it.

    contributions --Lies.contribution--> slots --Lies.slot--> RESULT --Lies.result, for each worker--> out

It runs over UDP in a thread of this process, where `tests.worker_lib.generations.Cluster` takes a switch.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Any

from switchagg.rules.slots import Address, JobEntry
from switchagg.wire.header import Header, Op, decode, encode
from tests.reference.slots import SlotTable
from worker_lib.plan import Words


@dataclass(slots=True)
class Told:
    """Words that one side is about to take for another's.

    Attributes:
        number: the packet's.
        bit: the worker that has sent them, or gets them; -1 in a slot.
        words: None where there are none. May be written to.
        again: a RESULT is the answer to a retransmission.
        adds: of a round of sums; False: of ORs.
    """

    number: int
    bit: int
    words: Words | None
    again: bool = False
    adds: bool = False


class Lies:
    """Nothing is changed."""

    def contribution(self, told: Told) -> Words | None:
        """The words that a contribution is taken to have; None: the slot marks it, and adds nothing."""
        return told.words

    def slot(self, told: Told) -> None:
        """A round is complete, with these words in the slot."""

    def result(self, told: Told) -> Words | None:
        """The words that a worker gets."""
        return told.words


class LyingSwitch:
    """See the module. `first_seq` is set when a job is installed."""

    link = ""

    def __init__(self, lies: Lies) -> None:
        self.lies = lies
        self.first_seq = 0
        self.lock = threading.Lock()
        self._table = SlotTable(4096)
        self._jobs: dict[int, JobEntry] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.05)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> Any:
        return self._socket.getsockname()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def add_job(self, entry: JobEntry) -> None:
        with self.lock:
            self._jobs[entry.job] = entry
            self._table.add_job(entry)

    def remove_job(self, job: int) -> None:
        with self.lock:
            self._table.remove_job(job)
            del self._jobs[job]

    def packet_out(self, packet: bytes) -> bool:
        with self.lock:
            return bool(self._table.receive(packet, None))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                packet, source = self._socket.recvfrom(1 << 16)
            except TimeoutError:
                continue
            with self.lock:
                outs = self._receive(packet, source)
            for address, out in outs:
                self._socket.sendto(out, address)

    def _receive(self, packet: bytes, source: Address) -> list[tuple[Address, bytes]]:
        header, words = decode(packet)
        entry = self._jobs.get(header.job)
        if entry is None:
            return []
        bit = next(worker.bit for worker in entry.workers if worker.address == source)
        number = (header.seq - self.first_seq) % (1 << 32)
        if words is not None:
            told = Told(number, bit, words.copy(), adds=header.op is Op.SUM)
            packet = encode(header, self.lies.contribution(told))
        adds = header.op is Op.SUM
        outs = self._table.receive(packet, source)
        again = len(outs) == 1  # and not the whole job's
        slot = self._table._jobs[header.job].slots[header.slot - entry.base]
        if outs and not again and slot.filled:
            slot.words = slot.words.copy()
            self.lies.slot(Told(number, -1, slot.words, adds=adds))
            result = Header(Op.RESULT, 0, entry.job, entry.result_token, slot.seq, header.slot)
            outs = [(address, encode(result, slot.words)) for address, _ in outs]
        bits = {worker.address: worker.bit for worker in entry.workers}
        lied = []
        for address, out in outs:
            result, has = decode(out)
            words = None if has is None else has.copy()
            lie = self.lies.result(Told(number, bits[address], words, again, adds))
            lied.append((address, encode(result, lie)))
        return lied
