"""A P4 program in the model as a switch between network interfaces of this host, through packet sockets.

    interface a ─ port 0 ─┐                       ┌─ port 0 ─ interface a
    interface b ─ port 1 ─┴─► ModelSwitch.process ┴─ port 1 ─ interface b

Any program. It needs root, or CAP_NET_RAW. What a program sends to a port that is no interface is dropped and
counted. Frames come as the kernel has them: switch off segmentation offload (`ethtool -K a gso off tso off`)
where larger ones than the link carries should not appear.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from switchagg.emulator.fault_line import FaultDevice
from switchagg.emulator.faults import Faults
from switchagg.emulator.lifetime import Lifetime
from switchagg.emulator.packet_socket import open_interface, receive
from switchagg.errors import SwitchAggError, SwitchError, UsageError


@runtime_checkable
class Processor(Protocol):
    """Processes packets: a `ModelSwitch`, or a wrapper of one."""

    def process(self, port: int, data: bytes, now: float) -> list[tuple[int, bytes]]:
        """Runs one packet; the (port, packet) that go out, in order. Raises `SwitchAggError`."""


class P4Interfaces(Lifetime):
    """A program between interfaces.

    Args:
        model: the switch, with its entries.
        interfaces: the interface of each port.
        faults: what to do to frames; None for nothing.
    """

    def __init__(
        self, model: Processor, interfaces: Mapping[int, str], *, faults: Faults | None = None
    ) -> None:
        if not interfaces:
            raise UsageError("a switch between interfaces needs one at least")
        if len(set(interfaces.values())) < len(interfaces):
            raise UsageError("an interface can be one port only")
        self._model = model
        self._interfaces = dict(interfaces)
        self._sockets: dict[int, socket.socket] = {}
        self._thread: threading.Thread | None = None
        self._traffic: Counter[str] = Counter()
        self._device = FaultDevice[int](faults)
        self._sending = threading.Lock()
        self.failure: str | None = None
        """The error that ended the switch; None while it serves."""

    def start(self) -> None:
        """Serves from now on.

        Raises:
            UsageError: there is no such interface.
            SwitchError: no permission for packet sockets, or this switch was started before.
        """
        if self._thread is not None:
            raise SwitchError("this switch was started already; a switch starts once, so make another one")
        try:
            for port, name in self._interfaces.items():
                self._sockets[port] = open_interface(name)
        except SwitchAggError:
            self._close_sockets()
            raise
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="p4-interfaces", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        if self._thread is None or not self._sockets:
            return
        self._wake.send(b"x")
        self._thread.join()
        self._close_sockets()
        self._wake.close()
        self._woken.close()

    def counters(self) -> dict[str, int]:
        """packets_in, packets_out, no_such_port, send_errors; and packets_in and _out of each port."""
        names = ["packets_in", "packets_out", "no_such_port", "send_errors"]
        for port in self._interfaces:
            names += [f"port_{port}_packets_in", f"port_{port}_packets_out"]
        return {name: self._traffic[name] for name in names}

    @property
    def faults(self) -> Faults | None:
        """The faults that are injected, with the seed in use; None for none."""
        return self._device.faults

    def fault_counters(self) -> dict[str, int]:
        """Returns lost, corrupted, duplicated, reordered, delayed, overflowed, each with _in and _out.

        Empty without faults.
        """
        return self._device.counters()

    def _close_sockets(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def _serve(self) -> None:
        ports = {each: port for port, each in self._sockets.items()}
        while True:
            with self._sending:
                timeout = self._device.timeout(time.monotonic())
            readable, _, _ = select.select([*ports, self._woken], [], [], timeout)
            if self._woken in readable and b"x" in self._woken.recv(4096):
                return
            now = time.monotonic()
            arrived = self._device.inward.release(now)
            for each in readable:
                try:
                    frame = None if each is self._woken else receive(each)
                except OSError:
                    # The interface went down, or away; others go on.
                    continue
                if frame is not None:
                    port = ports[each]
                    self._traffic.update(("packets_in", f"port_{port}_packets_in"))
                    arrived += self._device.inward.enter(frame, port, now)
            try:
                for frame, port in arrived:
                    self.send(self._model.process(port, frame, time.monotonic()))
            except SwitchAggError as error:
                self.failure = str(error)
                return
            with self._sending:
                for frame, port in self._device.outward.release(now):
                    self._send(port, frame)

    def send(self, outs: list[tuple[int, bytes]]) -> None:
        """Sends frames, each by its port. Any thread may call it."""
        now = time.monotonic()
        with self._sending:
            for port, frame in outs:
                for left, target in self._device.outward.enter(frame, port, now):
                    self._send(target, left)
            held = self._device.timeout(now) is not None
        if held and self._thread not in (None, threading.current_thread()):
            with contextlib.suppress(OSError):  # closed meanwhile
                self._wake.send(b"t")  # the serving thread waits for it from now on

    def _send(self, port: int, frame: bytes) -> None:
        target = self._sockets.get(port)
        if target is None:
            self._traffic["no_such_port"] += 1
            return
        try:
            target.send(frame)
        except OSError:
            self._traffic["send_errors"] += 1
        else:
            self._traffic.update(("packets_out", f"port_{port}_packets_out"))
