"""The process of a network's faulty links: moves frames between pairs of interfaces of its own namespace.

    node ── veth ── 0a  [direction]  0b ── veth ── node            python -m switchagg.topo.link_process

One process serves all links of a network. Requests come on standard input, a JSON object a line, and each has
one as its answer:

    {"add": "0", "ends": ["0a", "0b"], "faults": {"loss": 0.01}}
    {"set": "0", "faults": {...}}
    {"counts": true}

It ends when its standard input does.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import sys
import time
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from switchagg.emulator.packet_socket import open_buffered, receive
from switchagg.errors import SwitchAggError, UsageError
from switchagg.topo.link_faults import LinkDirection, LinkFaults, link_faults

# select() takes 1024 descriptors, and a link has two sockets.
MOST_LINKS: Final = 400
_BUFFER: Final = 8 << 20
_BATCH: Final = 64


class _End(NamedTuple):
    """The end at which the frames of one direction enter, and the one at which they leave."""

    source: socket.socket
    target: socket.socket
    way: LinkDirection


class Links:
    """All links, and the frames on their way."""

    def __init__(self) -> None:
        self._ends: dict[int, _End] = {}
        self._ways: dict[str, tuple[LinkDirection, LinkDirection]] = {}
        self._due: list[tuple[float, int, socket.socket, bytes]] = []
        self._order = 0

    def execute(self, request: dict[str, Any]) -> dict[str, Any]:
        """Executes a request and returns the answer. Raises `UsageError` for values out of range."""
        if "counts" in request:
            return {
                name: {"forth": asdict(forth.counts), "back": asdict(back.counts)}
                for name, (forth, back) in self._ways.items()
            }
        faults = link_faults(**request["faults"])
        if "set" in request:
            for way in self._ways[request["set"]]:
                way.change(faults)
        else:
            self._add(request["add"], request["ends"], faults)
        return {"faults": asdict(faults)}

    def _add(self, name: str, ends: list[str], faults: LinkFaults) -> None:
        if len(self._ways) >= MOST_LINKS:
            raise UsageError(f"more than {MOST_LINKS} links with faults; accepted: as many at most")
        first, second = (open_buffered(each, _BUFFER) for each in ends)
        forth, back = LinkDirection(faults, f"{name} forth"), LinkDirection(faults, f"{name} back")
        self._ways[name] = forth, back
        self._ends[first.fileno()] = _End(first, second, forth)
        self._ends[second.fileno()] = _End(second, first, back)

    def serve(self) -> None:
        """Moves frames and answers requests until standard input ends."""
        rest = b""
        while True:
            timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            ready: list[int] = select.select([0, *self._ends], [], [], timeout)[0]
            for each in ready:
                if each == 0:
                    chunk = os.read(0, 1 << 16)
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._answer(line)
                else:
                    self._move(self._ends[each])
            self._deliver(time.monotonic())

    def _answer(self, line: bytes) -> None:
        try:
            said = self.execute(json.loads(line))
        except SwitchAggError as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)

    def _move(self, end: _End) -> None:
        # A few at a time, so that a busy link does not hold up the others.
        for _ in range(_BATCH):
            try:
                frame = receive(end.source)
            except BlockingIOError:
                return
            except OSError:
                continue  # the interface went down
            if frame is None:
                continue
            now = time.monotonic()
            at = end.way.offer(len(frame), now)
            if at is None:
                continue
            if at <= now:
                _send(end.target, frame)
            else:
                self._order += 1
                heapq.heappush(self._due, (at, self._order, end.target, frame))

    def _deliver(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._due)
            _send(target, frame)


def _send(target: socket.socket, frame: bytes) -> None:
    try:
        target.send(frame)
    except OSError:
        return  # down, or full: a frame is lost, as on any link


if __name__ == "__main__":
    try:
        Links().serve()
    except KeyboardInterrupt:
        sys.exit(130)
