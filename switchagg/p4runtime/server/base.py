"""What the calls of P4Runtime need of a switch, whatever runs behind it."""

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
    """A pipeline: what a client pushed, and the entities that it writes."""

    @property
    def entities(self) -> Entities:
        """Its tables and their like."""
        ...

    @property
    def p4info(self) -> Any:
        """The p4.config.v1.P4Info message."""
        ...

    @property
    def config(self) -> bytes:
        """The device config, as the client gave it."""
        ...

    @property
    def cookie(self) -> int | None:
        """As the client gave it; None if it gave none."""
        ...


_Pipeline = TypeVar("_Pipeline", bound=Forwarding)


class BaseDevice(ABC, Generic[_Pipeline]):
    """A switch with a device id. One lock covers it all: a batch of updates is done wholly before the next.

    Attributes:
        on_packet_in, on_digest: called with `PacketIn` and `DigestList` messages, under the lock.
        counters: packet_ins, packet_outs; short_packet_ins, which lack the header; no_pipeline, packets that
            met none; lost, packets and digests for a client that is not there or does not read.
        running: what packets go through.
        saved: what was saved and waits for a commit.
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
        """What reads and writes are about: what was saved last, committed or not."""
        return self.saved or self.running

    @property
    def failure(self) -> str | None:
        """Why the switch ended by itself; None while all is well."""
        return None

    @abstractmethod
    def configured(self, config: Any) -> _Pipeline:
        """A pipeline for a `ForwardingPipelineConfig`, not running yet. Raises `Refused`."""

    @abstractmethod
    def reconciled(self, made: _Pipeline) -> _Pipeline:
        """What runs, under a new config that is the same program. Raises `Refused` for another."""

    @abstractmethod
    def packet_out(self, message: Any) -> Out:
        """Runs a client's packet; what leaves at other ports. Raises `Refused`."""

    def commit(self, made: _Pipeline) -> None:
        """Sends packets through this pipeline from now on."""
        self.running, self.saved = made, None
