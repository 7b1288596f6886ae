"""The P4 model as a switch for P4Runtime: its pipelines, and packets through the one that runs.

    port ──── process ──┬─► other ports (returned)
    packet-out ─────────┴─► the CPU port: `on_packet_in`; digests: `on_digest`

One lock covers it all: a batch of updates and a packet are each done wholly before the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from switchagg.errors import SwitchAggError, UsageError
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.p4info_diff import difference
from switchagg.p4runtime.program_source import Source
from switchagg.p4runtime.server.base import BaseDevice, Out
from switchagg.p4runtime.server.errors import Code, Refused, invalid
from switchagg.p4runtime.server.pipeline import Pipeline, build, resolve


class Device(BaseDevice[Pipeline]):
    """The P4 model as a switch with a device id; see `BaseDevice`.

    Args:
        own: the program that it starts with; None waits for a client's.
        cpu_port: where packets for the client leave, and its packets come in; None for what our own programs
            have on the architecture.

    Raises `UsageError` for a program that cannot be used.
    """

    def __init__(
        self,
        own: Source | None = None,
        *,
        device_id: int = 0,
        cpu_port: int | None = None,
        seed: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(device_id, now)
        self.own = own
        self._seed = seed
        self._cpu_port = cpu_port
        if own is not None:
            self.running = self.build(own)

    @property
    def cpu_port(self) -> int:
        """Where packets for the client leave."""
        if self._cpu_port is not None:
            return self._cpu_port
        tofino = self.running is not None and self.running.source.program.architecture == "tna"
        return (p4_program.tna() if tofino else p4_program.v1model()).controller_port

    def build(self, source: Source, cookie: int | None = None) -> Pipeline:
        """A pipeline of this switch, not running yet. Raises `UsageError` or `Refused`."""
        return build(source, self.now, seed=self._seed, cookie=cookie)

    def configured(self, config: Any) -> Pipeline:
        cookie = config.cookie.cookie if config.HasField("cookie") else None
        try:
            return self.build(resolve(config, self.own), cookie)
        except UsageError as error:
            raise invalid(str(error)) from None

    def reconciled(self, made: Pipeline) -> Pipeline:
        running = self.running
        if running is None:
            return made
        same = running.switch.source == made.switch.source
        if not same or difference(made.p4info, running.p4info) is not None:
            raise invalid("another program cannot keep the state of the one that runs: VERIFY_AND_COMMIT it")
        return Pipeline(made.source, running.switch, running.entities, running.packet_io, made.cookie)

    def process(self, port: int, data: bytes, now: float) -> Out:
        """Runs a packet; what leaves at other ports than the client's. Raises `SwitchAggError`."""
        with self.lock:
            running = self.running
            if running is None:
                self.counters["no_pipeline"] += 1
                return []
            outs = running.switch.process(port, data, now)
            cpu_port = self.cpu_port
            others: Out = []
            for each, frame in outs:
                if each == cpu_port:
                    self._packet_in(running, frame)
                else:
                    others.append((each, frame))
            self._digests(running)
            return others

    def packet_out(self, message: Any) -> Out:
        with self.lock:
            if self.running is None:
                raise Refused(Code.FAILED_PRECONDITION, "there is no forwarding pipeline yet")
            frame = self.running.packet_io.frame(message)
            self.counters["packet_outs"] += 1
            try:
                return self.process(self.cpu_port, frame, self.now())
            except Refused:
                raise
            except SwitchAggError as error:
                raise Refused(Code.INTERNAL, str(error)) from None

    def _packet_in(self, running: Pipeline, frame: bytes) -> None:
        message = running.packet_io.packet_in(frame)
        if message is None:
            self.counters["short_packet_ins"] += 1
            return
        self.counters["packet_ins"] += 1
        self.on_packet_in(message)

    def _digests(self, running: Pipeline) -> None:
        # Both architectures' switches collect them in a list.
        found: list[tuple[str, dict[str, Any]]] = getattr(running.switch, "digests", [])
        if found:
            given = list(found)
            found.clear()
            for each in running.entities.digests.collect(given):
                self.on_digest(each)
        messages: list[str] = getattr(running.switch, "messages", [])
        messages.clear()
