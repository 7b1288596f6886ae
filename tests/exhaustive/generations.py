"""The slots of one generation at the switch, as functions of a state.

`tests/reference/slots.py` itself is run. The table has the entry and the INITs that the controller made. Each
state of a slot that comes up is shown every packet that members of former generations may have sent, from the
same addresses: none may change it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from switchagg.rules.slots import Out
from switchagg.wire.header import Header, Op, encode
from tests.exhaustive.controller import Installed
from tests.exhaustive.programs import (
    WORDS,
    Programs,
    Sent,
    Slot,
    Words,
    number_of,
    sent_packets,
    seq_of,
    words_of,
)
from tests.exhaustive.search import Wrong

PAUSE = WORDS - 1  # the word of a header in which rank 0 asks for a pause


@cache
def contribution(place: int, job: int, number: int, pause: bool) -> Words:
    """A member's words: in another place than in the generation before, and with a mark for a pause."""
    words = words_of(place, number)
    if words is None and not pause:
        return None
    moved = [0] * WORDS
    for index, word in enumerate(words or ()):
        moved[(index + 4 * (job - 1)) % PAUSE] += word
    if pause:
        moved[PAUSE] = 1
    return tuple(moved)


@cache
def total(places: tuple[int, ...], job: int, number: int, pause: bool) -> Words:
    """The sum of what these members contribute; rank 0 is the one that asks for a pause."""
    given = [contribution(place, job, number, pause and place == places[0]) for place in places]
    words = [each for each in given if each is not None]
    return tuple(map(sum, zip(*words, strict=True))) if words else None


class Generation:
    """One generation's slots. States of slots are numbered as they come up; `states` has them.

    Args:
        former: the generations before it.
        packets: the number of packets that a member of one of these may have sent.
    """

    def __init__(
        self, programs: Programs, installed: Installed, former: tuple[Installed, ...], packets: int
    ) -> None:
        self._programs, self._installed = programs, installed
        self._packets = packets
        entry = installed.entry
        self.job, self.places, self.slots, self.base = entry.job, installed.places, entry.slots, entry.base
        self.addresses = tuple(worker.address for worker in entry.workers)
        self._late = [
            (self._packet_of(old, bit, number), old.entry.workers[bit].address)
            for old in former
            for bit in range(len(old.places))
            for number in range(packets)
        ]
        self.table = cache(self._table)
        self.contribute = cache(self._contribute)
        self.answer = cache(self._answer)
        self.states: list[Slot] = []
        self._numbers: dict[Slot, int] = {}
        self.first = tuple(self._number(i, self._read(self.table(0), i)) for i in range(self.slots))

    def bit_of(self, place: int) -> int:
        """The worker bit of a member."""
        return self.places.index(place)

    def _table(self, fenced: int) -> Any:
        table = self._programs.slots.SlotTable(self.base + self.slots)
        table.add_job(self._installed.entry)
        if self._programs.inits:
            for packet in self._installed.inits:
                assert table.receive(packet, None), "INIT is answered"
        if fenced:
            table.fence(self.job, fenced)
        return table

    @staticmethod
    def _packet_of(installed: Installed, bit: int, number: int, pause: bool = False) -> bytes:
        entry, seq = installed.entry, seq_of(number)
        words = contribution(installed.places[bit], entry.job, number, pause)
        slot = entry.base + seq % entry.slots
        header = Header(Op.SUM, 0, entry.job, entry.workers[bit].token, seq, slot)
        return encode(header, None if words is None else np.array(words, np.uint32))

    def _read(self, table: Any, index: int) -> Slot:
        slot = table._jobs[self.job].slots[index]
        return slot.seq, slot.seen, slot.filled, tuple(map(int, slot.words)) if slot.filled else ()

    def _receive(
        self, fenced: int, index: int, state: Slot, data: bytes, source: Any
    ) -> tuple[Slot, list[Out]]:
        table = self.table(fenced)
        slot = table._jobs[self.job].slots[index]
        slot.seq, slot.seen, slot.filled = state[:3]
        slot.words = np.array(state[3] or [0xDEAD] * WORDS, np.uint32)
        out = table.receive(data, source)
        return self._read(table, index), out

    def _number(self, index: int, state: Slot) -> int:
        if state not in self._numbers:
            if any(byte > 1 for word in state[3] for byte in word.to_bytes(4, "little")):
                raise Wrong(f"slot {index} has the words of a member twice: {state}")
            self._numbers[state] = len(self.states)
            self.states.append(state)
            for data, source in self._late:
                after, out = self._receive(0, index, state, data, source)
                if after != state or out:
                    raise Wrong(f"a packet of a former generation was taken: {Header.unpack(data)}")
            self._refuse_fenced(index, state)
        return self._numbers[state]

    def _refuse_fenced(self, index: int, state: Slot) -> None:
        """Whatever a fenced member sends changes nothing, so its process need not be followed any more."""
        for bit in range(len(self.places)):
            for number in range(self._packets):
                packet = self._packet_of(self._installed, bit, number)
                after, out = self._receive(1 << bit, index, state, packet, self.addresses[bit])
                if after != state or out:
                    raise Wrong(f"a packet of a fenced worker was taken: {Header.unpack(packet)}")

    def _contribute(
        self, state: int, fenced: int, bit: int, number: int, pause: bool
    ) -> tuple[int, list[Sent]]:
        """The slot of packet `number` gets it from a member: its state then, and what is sent."""
        index = seq_of(number) % self.slots
        packet = self._packet_of(self._installed, bit, number, pause)
        after, out = self._receive(fenced, index, self.states[state], packet, self.addresses[bit])
        return self._number(index, after), sent_packets(out)

    def _answer(self, state: int, fenced: int, bit: int, number: int, pause: bool) -> list[Sent]:
        """The answer to a retransmission."""
        index = seq_of(number) % self.slots
        packet = self._packet_of(self._installed, bit, number, pause)
        return sent_packets(self._receive(fenced, index, self.states[state], packet, self.addresses[bit])[1])

    def overwritten(self, before: int, after: int) -> int | None:
        """The packet number whose content is lost when a slot goes from one state to another."""
        seq = self.states[before][0]
        number = number_of(seq)
        return None if self.states[after][0] == seq or number < 0 else number
