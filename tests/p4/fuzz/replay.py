"""The native slot table and a P4 device side by side: each step is done to both, and they are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from switchagg.emulator import _native
from switchagg.errors import UsageError
from switchagg.p4program.entries import station_entry
from switchagg.p4program.program import Entries, Station, TableEntry, Target
from switchagg.rules.slots import Address, JobEntry, Out
from switchagg.wire.header import Flag, Header, Op, WireError, decode, encode
from tests.p4.device_under_test import DeviceUnderTest, Frame
from tests.p4.engine import P4Engine, install_switch
from tests.switchagg.conformance.engines import Engine
from tests.switchagg.conformance.scenario import first_seqs

from .bystanders import switched
from .steps import Admit, Connect, Cross, Send, Step
from .wrappers import Varied

ELSEWHERE: Final = ("203.0.113.1", 1)
"""The native table's source of a packet that came in at another port than its source's: no worker."""


class Differs(Exception):
    """The device did something else than the native slot table."""


def ports_of(target: Target) -> tuple[int, ...]:
    """Returns a switch's ports: of a Tofino, those of the pipe that the controller's INITs go to."""
    first = target.init_port & 0x180 if target.packet_out_port else 0
    return tuple(range(first, first + 48))


class Pair:
    """A native slot table and a device.

    Args:
        common: what `install_switch` has written into the device.
    """

    def __init__(self, dut: DeviceUnderTest, common: Entries) -> None:
        self._native = _native.SlotTable(dut.target.slots)
        self._bare = dut
        self._stations: dict[Station, TableEntry] = {}
        self._dut = P4Engine(Varied(dut), common, dut.target.slots)
        self._jobs: dict[int, JobEntry] = {}
        self._ports: dict[str, int] = {}
        self.hits: Counter[str] = Counter()
        """Answers by kind."""

    def close(self) -> None:
        """Removes all jobs and stations from the device."""
        self._dut.close()
        for entry in self._stations.values():
            self._bare.delete(entry)

    def apply(self, step: Step) -> list[Out]:
        """Returns what the switch sent. Raises `Differs`."""
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, Cross):
            self._cross(step)
        elif isinstance(step, Connect):
            self._connect(step)
        elif isinstance(step, Admit):
            self._admit(step)
        elif step.job in self._jobs:
            self._compare_job(self._jobs.pop(step.job))
            self._native.remove_job(step.job)
            self._dut.remove_job(step.job)
        return []

    def counters(self) -> dict[str, int]:
        """Returns the native table's counters."""
        return self._native.counters()

    def check(self) -> None:
        """Compares all that can be read. Raises `Differs`."""
        _compare("counters", self._dut.counters(), self._native.counters())
        for job in self._jobs.values():
            self._compare_job(job)

    def _admit(self, step: Admit) -> None:
        job = step.job
        try:
            self._native.add_job(job)
        except UsageError:
            return  # while shrinking: what made room for it is gone
        self._dut.add_job(job, step.place)
        self._jobs[job.job] = job
        self._ports.update({worker.ip: step.place.stations[worker.bit].port for worker in job.workers})
        if step.place.parent is not None:
            self._ports[step.place.parent.ip] = step.place.parent.station.port
        for seq in first_seqs(step.first_seq, job.slots):
            header = Header(Op.INIT, 0, job.job, 0, (seq - job.slots) % 2**32, job.base + seq % job.slots)
            self._send(Send(encode(header), None))

    def _connect(self, step: Connect) -> None:
        station = Station(step.port, step.mac)
        if step.mac not in {each.mac for each in self._stations}:
            entry = self._stations[station] = station_entry(station)
            self._bare.insert(entry)

    def _cross(self, step: Cross) -> None:
        stations = {each.mac: each.port for each in self._stations}
        expected = switched(step.port, step.frame, stations, ports_of(self._bare.target))
        if expected is None:
            return
        kind, frames = expected
        self.hits[kind] += 1
        try:
            outs = self._bare.send(step.port, step.frame)
        except Exception as error:
            raise Differs(f"frame {step.frame.hex()} at port {step.port}\ndevice: {error!r}") from error
        if sorted(outs) != sorted(frames):
            raise Differs(
                f"frame {step.frame.hex()} at port {step.port}, to be {kind}\n"
                f"expected: {_frames(frames)}\ndevice: {_frames(outs)}"
            )

    def _send(self, step: Send) -> list[Out]:
        source = step.source
        if source is not None and self._ports.get(source[0], step.port) != step.port:
            source = ELSEWHERE
        expected = self._native.receive(step.payload, source)
        try:
            outs = self._dut.receive(step.payload, step.source, step.port)
        except Exception as error:
            raise Differs(f"{_packet(step.payload)} from {source}\ndevice: {error!r}") from error
        if sorted(outs, key=_key) != sorted(expected, key=_key):
            raise Differs(
                f"{_packet(step.payload)} from {source}\n"
                f"native: {_packets(expected)}\ndevice: {_packets(outs)}"
            )
        if outs:
            self.hits.update(self._kinds(step, expected))
        return expected

    def _kinds(self, step: Send, outs: list[Out]) -> Iterator[str]:
        if step.source is None:
            yield "an echo"
            return
        header, words = decode(outs[0][1])
        if header.op is not Op.RESULT:
            directed = header.flags & Flag.DIRECTED
            yield (
                "a full slot raised, directed"
                if directed
                else "a repeat raised"
                if header.reply
                else "a full slot raised"
            )
            return
        if decode(step.payload)[0].op is Op.RESULT:
            one = "one" if decode(step.payload)[0].reply else "all"
            yield (
                "a bare RESULT handed down"
                if header.flags & Flag.DIRECTED
                else f"a RESULT handed down to {one}"
            )
            return
        if any(Header.unpack(payload).flags & Flag.DIRECTED for _, payload in outs):
            words_to_one = any(decode(payload)[1] is not None for _, payload in outs)
            yield "RESULT to one, bare to the others" if words_to_one else "RESULT bare to all"
            return
        alone = len(self._jobs[header.job].workers) == 1
        audience = "all" if len(outs) > 1 else "the only one" if alone else "one"
        yield f"RESULT to {audience}, {'empty' if words is None else 'with words'}"
        if decode(step.payload)[0].reply:
            yield "a reply echoed" if header.reply else "a reply set aside"

    def _compare_job(self, job: JobEntry) -> None:
        ours, theirs = self._dut.job_counters(job.job), self._native.job_counters(job.job)
        _compare(f"counters of job {job.job}", ours, theirs)
        for index in range(job.base, job.base + job.slots):
            _compare(f"slot {index}", _slot(self._dut, index), _slot(self._native, index))


def replay(dut: DeviceUnderTest, steps: Sequence[Step], common: Entries | None = None) -> str | None:
    """Returns what differs when a device without jobs goes through `steps`; None if nothing does.

    Args:
        common: what `install_switch` has written into the device; None if that is still to be done.
    """
    pair = Pair(dut, common or install_switch(dut, ports_of(dut.target)))
    try:
        for step in steps:
            pair.apply(step)
        pair.check()
    except Differs as difference:
        return str(difference)
    finally:
        pair.close()
    return None


def _key(out: Out) -> tuple[Address, bytes]:
    return out[0] or ("", 0), out[1]


def _slot(engine: Engine, index: int) -> dict[str, object]:
    slot = engine.slot(index)
    words = None if slot.words is None else [int(word) for word in slot.words]
    return {"seq": slot.seq, "seen": slot.seen, "filled": slot.filled, "words": words}


def _compare(what: str, ours: dict[str, int] | dict[str, object], theirs: object) -> None:
    assert isinstance(theirs, dict)
    if ours != theirs:
        names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
        lines = [f"{name}: native {theirs.get(name)}, device {ours.get(name)}" for name in names]
        raise Differs(f"{what}\n" + "\n".join(lines))


def _packet(payload: bytes) -> str:
    try:
        header, words = decode(payload)
    except WireError as error:
        return f"[{error}: {payload[:24].hex()}]"
    if words is None:
        return f"[{header}]"
    values = np.unique(words)
    shown = f"all {values[0]:#x}" if len(values) == 1 else " ".join(f"{word:x}" for word in words)
    return f"[{header}, {len(words)} words: {shown}]"


def _packets(outs: list[Out]) -> str:
    return ", ".join(f"to {address}: {_packet(payload)}" for address, payload in outs) or "nothing"


def _frames(frames: list[Frame]) -> str:
    return ", ".join(f"{data.hex()} by port {port}" for port, data in frames) or "nothing"
