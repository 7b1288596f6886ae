"""The reference programs as functions of a state, each distinct step run once.

`tests/reference/slots.py` and `tests/reference/window.py` themselves are run: a table or window is put into
the state, takes the packet, and its new state is read. The answers are kept, since few of them differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

import tests.reference.slots
import tests.reference.window
from switchagg.rules.slots import Address, JobEntry, Out, ParentEntry, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode
from tests.exhaustive.search import Wrong

WORDS: Final = 16
FIRST_SEQ: Final = 2**32 - 5  # so that sequence numbers wrap
JOB: Final = 7

Words = tuple[int, ...] | None
Slot = tuple[int, int, bool, tuple[int, ...]]  # seq, seen, filled, words


@dataclass(frozen=True, slots=True)
class Programs:
    """The modules with the slot table and the window; and whether the slots get their INIT."""

    slots: ModuleType = tests.reference.slots
    window: ModuleType = tests.reference.window
    inits: bool = True


def mistaken(module: ModuleType, right: str, wrong: str) -> ModuleType:
    """Returns the module with one mistake put in: `right`, which occurs once in its source, replaced."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times in {module.__name__}"
    copy = ModuleType(f"{module.__name__}_mistaken")
    sys.modules[copy.__name__] = copy
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), copy.__dict__)
    return copy


def seq_of(number: int) -> int:
    """The sequence number of a packet number."""
    return (FIRST_SEQ + number) % 2**32


def number_of(seq: int) -> int:
    """The reverse; negative before the first packet."""
    ahead = (seq - FIRST_SEQ) % 2**32
    return ahead if ahead < 2**31 else ahead - 2**32


def words_of(worker: int, number: int) -> Words:
    """A worker's words: one, in a byte and a word that no other worker and few packets have.

    Some workers send a SKIP, and at one packet in five all do.
    """
    if number % 5 == 4 or (worker + number) % 3 == 2:
        return None
    words = [0] * WORDS
    words[number % WORDS] = 1 << (8 * worker)
    return tuple(words)


@cache
def sum_of(workers: tuple[int, ...], number: int) -> Words:
    """The sum of what these workers contribute; None if all of them skip."""
    given = [words for worker in workers if (words := words_of(worker, number)) is not None]
    return tuple(map(sum, zip(*given, strict=True))) if given else None


def address_of(worker: int) -> Address:
    """Of a worker; leaves have addresses of their own."""
    return f"10.0.0.{worker + 1}", 1000


@dataclass(frozen=True, slots=True)
class Sent:
    """A packet that a switch sends: `to` are addresses; it has `words` of packet `number`."""

    to: tuple[Address, ...]
    op: Op
    number: int
    words: Words
    reply: int
    data: bytes


class Switch:
    """One switch's table for one job.

    Args:
        members: addresses of workers or leaves, by bit.
        given: what the member at a bit contributes to a packet number.
        parent: of a leaf.
        base: first slot.

    States of slots are numbered as they come up; `states` has them.
    """

    def __init__(
        self,
        programs: Programs,
        slots: int,
        members: Sequence[Address],
        given: Callable[[int, int], Words],
        parent: ParentEntry | None = None,
        base: int = 0,
    ) -> None:
        self.slots, self.base, self.members, self.parent = slots, base, tuple(members), parent
        self.given = given
        workers = tuple(
            WorkerEntry(bit, *address, token=self.token_of(bit)) for bit, address in enumerate(members)
        )
        entry = JobEntry(JOB, base, slots, WORDS, self.result_token, workers, parent=parent)
        self._table: Any = programs.slots.SlotTable(base + slots)
        self._table.add_job(entry)
        if programs.inits:
            for index in range(slots):
                seq = seq_of(index) - slots
                header = Header(Op.INIT, 0, JOB, 0, seq % 2**32, base + seq % slots)
                assert self._table.receive(header.pack(), None), "INIT is answered"
        self.contribute = cache(self._contribute)
        self.answer = cache(self._answer)
        self.states: list[Slot] = []
        self._numbers: dict[Slot, int] = {}
        self.first = tuple(self._number(index, self._read(index)) for index in range(slots))

    result_token: Final = 0xCAFE

    def token_of(self, bit: int) -> int:
        """Of the member at this bit."""
        return 0x100 + bit

    def _number(self, index: int, state: Slot) -> int:
        if state not in self._numbers:
            if any(byte > 1 for word in state[3] for byte in word.to_bytes(4, "little")):
                raise Wrong(f"slot {index} has the words of a worker twice: {state}")
            self._numbers[state] = len(self.states)
            self.states.append(state)
            self._refuse_foreign(index, state)
        return self._numbers[state]

    def _packet(self, bit: int, number: int, reply: int = 0) -> bytes:
        """A member's contribution."""
        words, seq = self.given(bit, number), seq_of(number)
        header = Header(Op.SUM, 0, JOB, self.token_of(bit), seq, self.base + seq % self.slots, reply)
        return encode(header, None if words is None else np.array(words, np.uint32))

    def _read(self, index: int) -> Slot:
        slot = self._table._jobs[JOB].slots[index]
        return slot.seq, slot.seen, slot.filled, tuple(map(int, slot.words)) if slot.filled else ()

    def _write(self, index: int, state: Slot) -> None:
        slot = self._table._jobs[JOB].slots[index]
        slot.seq, slot.seen, slot.filled = state[:3]
        slot.words = np.array(state[3] or [0xDEAD] * WORDS, np.uint32)  # of an empty slot: whatever was there

    def _receive(self, index: int, state: Slot, data: bytes, source: Address) -> tuple[Slot, list[Out]]:
        """The table takes a packet while slot `index` is in this state."""
        self._write(index, state)
        out = self._table.receive(data, source)
        return self._read(index), out

    def _contribute(self, state: int, bit: int, number: int) -> tuple[int, list[Sent]]:
        """The slot of packet `number`, in this state, gets it from a member: its state then, and what is
        sent."""
        index = seq_of(number) % self.slots
        after, out = self._receive(index, self.states[state], self._packet(bit, number), self.members[bit])
        return self._number(index, after), sent_packets(out)

    def _answer(self, state: int, bit: int, number: int, reply: int) -> list[Sent]:
        """The answer to a retransmission."""
        index = seq_of(number) % self.slots
        packet = self._packet(bit, number, reply)
        return sent_packets(self._receive(index, self.states[state], packet, self.members[bit])[1])

    def _refuse_foreign(self, index: int, state: Slot) -> None:
        """Nobody who is not a member, and no member by a jump, changes the slot or gets an answer."""
        number = number_of(state[0])
        words = np.full(WORDS, 0xBAD, np.uint32)
        member, stranger = self.members[0], ("10.9.9.9", 1000)
        for ahead in (0, self.slots):
            seq = seq_of(number + ahead)
            slot, token = self.base + seq % self.slots, self.token_of(0)
            for source, header in (
                (stranger, Header(Op.SUM, 0, JOB, token, seq, slot)),
                (member, Header(Op.SUM, 0, JOB, token + 1, seq, slot)),
                (member, Header(Op.SUM, 0, JOB, token, seq, self.base + (seq + 1) % self.slots)),
                (member, Header(Op.SUM, 0, JOB + 1, token, seq, slot)),
                (member, Header(Op.INIT, 0, JOB, token, seq, slot)),
                (member, Header(Op.RESULT, 0, JOB, self.result_token, seq, slot)),
                (member, Header(Op.SUM, 0, JOB, token, seq_of(number + ahead + 2 * self.slots), slot)),
                (member, Header(Op.SUM, 0, JOB, token, seq_of(number + ahead - 3 * self.slots), slot)),
            ):
                for payload in (None, words):
                    after, out = self._receive(index, state, encode(header, payload), source)
                    if after != state or out:
                        raise Wrong(f"{header} from {source} was taken by slot {index} in {state}")

    def deliver(self, data: bytes) -> list[Sent]:
        """A leaf takes a packet of its parent."""
        assert self.parent is not None
        return sent_packets(self._table.receive(data, self.parent.address))


def sent_packets(out: Sequence[Out]) -> list[Sent]:
    """Packets, each with all whom it goes to."""
    to: dict[bytes, list[Address]] = {}
    for address, data in out:
        assert address is not None
        to.setdefault(data, []).append(address)
    sent = []
    for data, addresses in to.items():
        header, words = decode(data)
        content = None if words is None else tuple(map(int, words))
        sent.append(Sent(tuple(addresses), header.op, number_of(header.seq), content, header.reply, data))
    return sent


Front = tuple[int, int]  # packets sent, and the RESULTs that are held, as bits; both from the base on


class WindowRule:
    """A worker's window, as far as what it has sent and holds decides on what it may do."""

    def __init__(self, programs: Programs, slots: int) -> None:
        self._make: Callable[[int, int, int], Any] = programs.window.Window
        self._slots = slots
        self.may_send = cache(self._may_send)
        self.hold = cache(self._hold)

    def _window(self, front: Front) -> Any:
        window = self._make(self._slots, 1, self._slots)
        window.sent(front[0], 0)
        held = [k for k in range(front[0]) if front[1] >> k & 1]
        assert all(window.on_result(k) for k in held)
        window.acknowledge(held, 0)
        return window

    def _may_send(self, front: Front) -> bool:
        return bool(self._window(front).room() > 0)

    def _hold(self, front: Front, number: int) -> tuple[int, Front]:
        """A RESULT comes: by how much the base moves, and the front after it."""
        window = self._window(front)
        if not window.on_result(number):
            return 0, front
        window.acknowledge([number], 0)
        for k in range(window.base):
            if k != number and not front[1] >> k & 1:
                raise Wrong("a window goes past a packet whose RESULT it does not hold")
        held = 0
        for k in range(window.base, window.next):
            if k == number or front[1] >> k & 1:
                held |= 1 << (k - window.base)
        return window.base, (window.next - window.base, held)
