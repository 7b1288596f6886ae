"""A switch for P4Runtime: its pipelines, and packets through the one that runs.

    port ──── process ──┬─► other ports (returned)
    packet-out ─────────┴─► the CPU port: `on_packet_in`; digests: `on_digest`

One lock covers it all: a batch of updates and a packet are each done wholly before the next.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from switchagg.control.drivers import p4_program
from switchagg.emulator.p4runtime.errors import Code, Refused
from switchagg.emulator.p4runtime.pipeline import Pipeline, Source, build
from switchagg.errors import SwitchAggError

Out = list[tuple[int, bytes]]


class Device:
    """A switch with a device id.

    Args:
        own: the program that it starts with; None waits for a client's.
        cpu_port: where packets for the client leave, and its packets come in; None for what our own programs
            have on the architecture.

    Attributes:
        on_packet_in, on_digest: called with `PacketIn` and `DigestList` messages, under the lock.
        counters: packet_ins, packet_outs; short_packet_ins, which lack the header; no_pipeline, packets that
            met none; lost, packets and digests for a client that is not there or does not read.

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
        self.own = own
        self.device_id = device_id
        self.lock = threading.RLock()
        self.now = now
        self.counters: Counter[str] = Counter()
        self.on_packet_in: Callable[[Any], None] = lambda _: None
        self.on_digest: Callable[[Any], None] = lambda _: None
        self._seed = seed
        self._cpu_port = cpu_port
        self.running: Pipeline | None = None if own is None else self.build(own)
        """What packets go through."""
        self.saved: Pipeline | None = None
        """What was saved and waits for a commit."""

    @property
    def target(self) -> Pipeline | None:
        """What reads and writes are about: what was saved last, committed or not."""
        return self.saved or self.running

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
        """Runs a client's packet; what leaves at other ports. Raises `Refused`."""
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
