"""The native engine as a switch for P4Runtime.

    client ─ entries ──► tables ─ updates ─► entries, jobs ──► Switch: add_job, fence, remove_job
             counters ◄─ tables ◄─ counts ◄─────────────────── Switch: outcomes
             packet-out ─► INIT ─────────────────────────────► Switch ─► packet-in

To a client it is `switchagg_v1model.p4` on bmv2, with the program there from the start; packets do not pass
here. docs/native-p4runtime.md lists the differences.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, Final, Protocol

from switchagg.emulator.ether_switch import EtherSwitch
from switchagg.emulator.mtu import words_at
from switchagg.errors import SwitchAggError, UsageError
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.p4info_diff import difference
from switchagg.p4runtime.server.codec import PacketIo
from switchagg.p4runtime.server.device import Device, Out
from switchagg.p4runtime.server.entities import Entities
from switchagg.p4runtime.server.errors import internal, invalid
from switchagg.p4runtime.server.native.counts import NativeCounts, Tallying
from switchagg.p4runtime.server.native.frames import NativeFrames
from switchagg.p4runtime.server.native.jobs import Engine, NativeJobs, Rehearsal
from switchagg.p4runtime.server.native.tables import NativeTables, own_p4info
from switchagg.p4runtime.server.native.updates import NativeUpdates
from switchagg.p4runtime.server.schema import Schema
from switchagg.rules.slots import Address
from switchagg.rules.switch import DEFAULT_MEMORY
from switchagg.wire.header import DEFAULT_PORT, MIN_WORDS, Header, Op, WireError, decode, max_words

DEFAULT_WORDS: Final = 64
ANNOTATION: Final = "switchagg_native"
# A client may send the P4Info of the program as it was compiled, with registers, and for other sizes.
_IGNORED: Final = ("registers", "size")
_PORT_BITS: Final = 9


class NativeSwitch(Engine, Tallying, Protocol):
    """The switch behind the server: a started `emulator.switch.Switch`."""

    @property
    def address(self) -> Address: ...
    @property
    def receive_buffer(self) -> int: ...
    @property
    def link(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def failure(self) -> str | None: ...
    def packet_out(self, packet: bytes) -> list[bytes]: ...


class NativePipeline:
    """The program's tables, and the jobs that they mean to the engine.

    Args:
        p4info: the client's, or our own.
        capacity: the switch's slots.
        words: K of jobs whose entries give none.
        largest: the largest K.
    """

    def __init__(
        self,
        switch: NativeSwitch,
        capacity: int,
        p4info: Any,
        config: bytes = b"",
        cookie: int | None = None,
        *,
        words: int = DEFAULT_WORDS,
        largest: int,
        controller_port: int,
        now: Callable[[], float],
    ) -> None:
        self.p4info, self.config, self.cookie = p4info, config, cookie
        self._switch = switch
        self._ether = switch if isinstance(switch, EtherSwitch) else None
        tables = NativeTables(p4info)
        schema = Schema(p4info, tables, {})
        self.jobs = NativeJobs(
            tables.table(p4_program.ADMISSION),
            Rehearsal(capacity),
            controller_port=controller_port,
            words=words,
            ethernet=self._ether is not None,
        )
        self._attached = False
        self._frames = None if self._ether is None else NativeFrames(tables)
        self._counts = NativeCounts(tables, self.jobs)
        self._updates = NativeUpdates(self.jobs, self._settle, largest, self._frames)
        self.jobs.on_end, self.jobs.receivers_of = self._ended, self._updates.receivers
        self.entities = Entities(schema, now, self._updates)
        self.packet_io = PacketIo(p4info)

    def attach(self) -> None:
        """Gives its jobs to the engine."""
        self._counts.begin(self._switch)
        if self._frames is not None and self._ether is not None:
            self._frames.attach(self._ether.frames, self._updates.ports())
        self.jobs.move_to(self._switch)
        self._attached = True

    def detach(self) -> None:
        """Takes its jobs off the engine."""
        self.jobs.clear()
        self._attached = False
        if self._frames is not None:
            self._frames.detach()

    def _settle(self, job: int | None) -> None:
        if self._attached:
            self._counts.settle(self._switch, job)
            if self._frames is not None and job is None:
                self._frames.settle()

    def _ended(self, job: int) -> None:
        self._settle(job)
        self._counts.forget(job)


class NativeDevice(Device[NativePipeline]):
    """A started switch with a device id; see `Device`.

    Args:
        switch: started. The device does not close it.
        capacity: the slots that it was made with.
        cpu_port: the number of the port that INITs come in at and echoes leave by; None for bmv2's 510.
    """

    def __init__(
        self,
        switch: NativeSwitch,
        capacity: int,
        *,
        device_id: int = 0,
        cpu_port: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(device_id, now)
        self._switch = switch
        self.cpu_port = p4_program.v1model().controller_port if cpu_port is None else cpu_port
        self._ether = switch if isinstance(switch, EtherSwitch) else None
        largest = max_words(self._ether.mtu) if self._ether is not None else words_at(switch.address[0])
        self._own = own_p4info()
        facts = {
            "words": f"{MIN_WORDS}..{largest}",
            "slots": str(capacity),
            "address": "" if self._ether is not None else f"{switch.address[0]}:{switch.address[1]}",
            "ports": ",".join(map(str, self._ether.ports)) if self._ether is not None else "",
            "memory": str(DEFAULT_MEMORY),
            "receive_buffer": str(switch.receive_buffer),
            "link": switch.link,
            "threads": str(switch.threads) if switch.threads > 1 else "",
        }
        shown = ", ".join(f'"{name}={value}"' for name, value in facts.items() if value)
        self._own.pkg_info.annotations.append(f"@{ANNOTATION}({shown})")
        self._pipeline = partial(
            NativePipeline, switch, capacity, largest=largest, controller_port=self.cpu_port, now=now
        )
        self.commit(self._pipeline(self._own))

    @property
    def failure(self) -> str | None:
        return self._switch.failure

    def configured(self, config: Any) -> NativePipeline:
        if not config.HasField("p4info"):
            raise invalid("the config has no P4Info")
        found = difference(config.p4info, self._own, ignored=_IGNORED)
        if found is not None:
            raise invalid(
                f"the native engine carries out switchagg_v1model.p4, and the P4Info is not its: {found}"
            )
        p4info = deepcopy(config.p4info)
        del p4info.pkg_info.annotations[:]
        p4info.pkg_info.annotations.extend(self._own.pkg_info.annotations)
        registers = [each.preamble.name.rpartition(".")[2] for each in p4info.registers]
        words = sum(name.startswith("word_") for name in registers) or DEFAULT_WORDS
        cookie = config.cookie.cookie if config.HasField("cookie") else None
        return self._pipeline(p4info, bytes(config.p4_device_config), cookie, words=words)

    def reconciled(self, made: NativePipeline) -> NativePipeline:
        running = self.running
        if running is None:
            return made
        running.p4info, running.config, running.cookie = made.p4info, made.config, made.cookie
        return running

    def commit(self, made: NativePipeline) -> None:
        before = self.running
        if before is not made:
            if before is not None:
                before.detach()
            made.attach()
        super().commit(made)

    def packet_out(self, message: Any) -> Out:
        with self.lock:
            running = self.running
            assert running is not None
            frame = running.packet_io.frame(message)
            port, ether = int.from_bytes(frame[:2], "big") & ((1 << _PORT_BITS) - 1), self._ether
            if port and ether is None:
                raise invalid(
                    f"packet_out to port {port}: the native engine has no ports that frames leave by; "
                    "0 runs a packet through the switch"
                )
            self.counters["packet_outs"] += 1
            if ether is None:
                answers = [frame[2:] for _ in self._echoes(running, frame)]
            elif port:
                ether.frames.send_frame(port, frame[2:])
                return []
            else:
                answers = self._injected(running, ether, frame[2:])
            for each in answers:
                answer = running.packet_io.packet_in(self.cpu_port.to_bytes(2, "big") + each)
                self.counters["packet_ins"] += 1
                self.on_packet_in(answer)
            return []

    def _injected(self, running: NativePipeline, ether: EtherSwitch, frame: bytes) -> list[bytes]:
        """Returns the frames that come back to the controller's port for one from there."""
        payload, answers = ether.frames.inject(frame)
        if payload is not None and self._echo(running, payload):
            answers.append(frame)
        return answers

    def _echoes(self, running: NativePipeline, frame: bytes) -> list[bytes]:
        """Returns the engine's echo of a frame from the controller's port: INITs are echoed, nothing else."""
        # The UDP port of the program, or the one that workers send to.
        if int.from_bytes(frame[38:40], "big") not in (DEFAULT_PORT, self._switch.address[1]):
            return []
        try:
            payload = p4_frames.packet_in(frame)
        except UsageError:
            return []
        return self._echo(running, payload)

    def _echo(self, running: NativePipeline, payload: bytes) -> list[bytes]:
        header = _bare_init(payload)
        if header is not None and not running.jobs.takes_init(header.job, header.token, header.slot):
            return []
        try:
            return self._switch.packet_out(payload)
        except SwitchAggError as error:
            raise internal(str(error)) from None


def _bare_init(payload: bytes) -> Header | None:
    """Returns the header of an INIT; None for another packet, which the engine refuses by itself."""
    try:
        header, words = decode(payload)
    except WireError:
        return None
    return header if header.op is Op.INIT and words is None else None
