"""A P4 program in the model as a switch between network interfaces of this host, through packet sockets.

    interface a ─ port 0 ─┐                       ┌─ port 0 ─ interface a
    interface b ─ port 1 ─┴─► ModelSwitch.process ┴─ port 1 ─ interface b

Any program. It needs root, or CAP_NET_RAW. What a program sends to a port that is no interface is dropped and
counted. Frames come as the kernel has them: switch off segmentation offload (`ethtool -K a gso off tso off`)
where larger ones than the link carries should not appear.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

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
    """

    def __init__(self, model: Processor, interfaces: Mapping[int, str]) -> None:
        if not interfaces:
            raise UsageError("a switch between interfaces needs one at least")
        if len(set(interfaces.values())) < len(interfaces):
            raise UsageError("an interface can be one port only")
        self._model = model
        self._interfaces = dict(interfaces)
        self._sockets: dict[int, socket.socket] = {}
        self._thread: threading.Thread | None = None
        self._traffic: Counter[str] = Counter()
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

    def _close_sockets(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def _serve(self) -> None:
        ports = {each: port for port, each in self._sockets.items()}
        while True:
            readable, _, _ = select.select([*ports, self._woken], [], [])
            for each in readable:
                if each is self._woken:
                    return
                try:
                    frame = receive(each)
                except OSError:
                    # The interface went down, or away; others go on.
                    continue
                if frame is None:
                    continue
                port = ports[each]
                self._traffic.update(("packets_in", f"port_{port}_packets_in"))
                try:
                    outs = self._model.process(port, frame, time.monotonic())
                except SwitchAggError as error:
                    self.failure = str(error)
                    return
                self.send(outs)

    def send(self, outs: list[tuple[int, bytes]]) -> None:
        """Sends frames, each by its port. Any thread may call it."""
        with self._sending:
            for port, frame in outs:
                self._send(port, frame)

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
