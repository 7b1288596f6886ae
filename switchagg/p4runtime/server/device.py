"""A switch as the calls of P4Runtime need it: a device id, pipelines, packets."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from switchagg.p4runtime.server.entities import Entities

Out = list[tuple[int, bytes]]
"""Frames with the ports that they leave by."""


class Forwarding(Protocol):
    """A pipeline: its entities, its P4Info message, and device config and cookie as the client gave them."""

    @property
    def entities(self) -> Entities: ...
    @property
    def p4info(self) -> Any: ...
    @property
    def config(self) -> bytes: ...
    @property
    def cookie(self) -> int | None: ...


_Pipeline = TypeVar("_Pipeline", bound=Forwarding)


class Device(ABC, Generic[_Pipeline]):
    """A switch with a device id. Under one lock, a batch of updates or a packet ends before the next.

    Attributes:
        on_packet_in, on_digest: called with `PacketIn` and `DigestList` messages, under the lock.
        counters: packet_ins, packet_outs; short_packet_ins, which lack the header; no_pipeline, packets that
            met none; lost, packets and digests for a client that is gone or does not read.
        running: the pipeline that packets go through.
        saved: the pipeline that waits for a commit.
    """

    def __init__(self, device_id: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.device_id = device_id
        self.lock = threading.RLock()
        self.now = now
        self.counters: Counter[str] = Counter()
        self.on_packet_in: Callable[[Any], None] = lambda _: None
        self.on_digest: Callable[[Any], None] = lambda _: None
        self.running: _Pipeline | None = None
        self.saved: _Pipeline | None = None

    @property
    def target(self) -> _Pipeline | None:
        """The pipeline of reads and writes: the one that was saved last, committed or not."""
        return self.saved or self.running

    @property
    def failure(self) -> str | None:
        """The reason why the switch ended by itself; None while it works."""
        return None

    @abstractmethod
    def configured(self, config: Any) -> _Pipeline:
        """Returns a pipeline for a `ForwardingPipelineConfig`, not running yet. Raises `StatusError`."""

    @abstractmethod
    def reconciled(self, made: _Pipeline) -> _Pipeline:
        """Returns the running pipeline under a new config of the same program. Raises `StatusError`."""

    @abstractmethod
    def packet_out(self, message: Any) -> Out:
        """Runs a client's packet. Returns the frames for other ports. Raises `StatusError`."""

    def commit(self, made: _Pipeline) -> None:
        """Sends packets through this pipeline from now on."""
        self.running, self.saved = made, None
