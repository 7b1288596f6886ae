"""Answers that do not end: a member's stream of events, and the live view of the page and of `top`.

    controller, any thread --send()--> MemberStream --[bounded queue]--> _MemberResponse --> the connection
                                                        its end --> controller.stream_closed()

The answer to a join begins when the admission is known, or is an ordinary refusal. From then on the
connection is the member's life line: the controller hears of its end as soon as the kernel does. A member
that does not read what is sent is cut off when the queue is full; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from switchagg.control.http.guard import WAITS
from switchagg.control.http.protocol import abort
from switchagg.errors import AdmissionError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from switchagg.control.answers import Snapshot
    from switchagg.control.controller import Controller

MAX_EVENTS: Final = 256  # queued for a member
PING_INTERVAL: Final = 5.0  # seconds
LIVE_INTERVAL: Final = 1.0  # seconds between two snapshots
NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"

_T = TypeVar("_T")


class MemberStream:
    """The controller's end of a member's stream: an `EventStream` of `switchagg.control.jobs.records`.

    Args:
        loop: the loop that writes the stream.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._events: deque[Mapping[str, Any]] = deque()
        self._refusal: AdmissionError | None = None
        self._closed = False
        self._wake = asyncio.Event()
        self._overrun = asyncio.Event()

    def send(self, event: Mapping[str, Any]) -> None:
        """Queues an event; closes the stream if the queue is full. From any thread."""
        with self._lock:
            if self._closed:
                return
            overrun = self._closed = len(self._events) >= MAX_EVENTS
            if not overrun:
                self._events.append(event)
        self._notify(self._overrun if overrun else self._wake)

    def refuse(self, error: AdmissionError) -> None:
        """Refuses the join. From any thread."""
        with self._lock:
            self._refusal, self._closed = error, True
        self._notify(self._wake)

    def close(self) -> None:
        """Ends the stream after what is queued. From any thread."""
        with self._lock:
            self._closed = True
        self._notify(self._wake)

    async def next(self) -> Mapping[str, Any] | None:
        """Waits for the next event; None after the last. Raises `AdmissionError` for a refusal."""
        while True:
            self._wake.clear()
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._refusal is not None:
                    raise self._refusal
                if self._closed:
                    return None
            await self._wake.wait()

    async def overrun(self) -> None:
        """Waits until an event finds no room."""
        await self._overrun.wait()

    def _notify(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the service has ended
            self._loop.call_soon_threadsafe(event.set)


class ClientGone(Exception):
    """The connection ended before its answer."""


async def admitted(stream: MemberStream, controller: Controller, request: Request) -> Response:
    """Waits for the outcome of a join or an attach; returns the stream that begins with its admission.

    Raises:
        AdmissionError: the controller refused.
        ClientGone: the connection ended first; the controller has been told.
    """
    try:
        first = await unless_gone(request, stream.next())
    except BaseException:
        controller.stream_closed(stream)
        raise
    if first is None:
        controller.stream_closed(stream)
        raise AdmissionError("the controller is stopping", "stopping")
    return _MemberResponse(first, stream, controller)


async def unless_gone(request: Request, outcome: Awaitable[_T], *others: asyncio.Future[Any]) -> _T:
    """Awaits `outcome`; raises `ClientGone`, and cancels it, when the connection ends or one of `others`."""
    request.scope[WAITS] = True
    waiting = asyncio.ensure_future(outcome)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((waiting, gone, *others), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientGone
        return waiting.result()
    finally:
        waiting.cancel()
        gone.cancel()


class _MemberResponse(Response):
    """The events of a stream, each a line of JSON, until either side ends."""

    media_type = NDJSON

    def __init__(self, first: Mapping[str, Any], stream: MemberStream, controller: Controller) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._first = first
        self._stream = stream
        self._controller = controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        overrun = asyncio.ensure_future(self._stream.overrun())
        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(Request(scope, receive), self._write(send), overrun)
            if overrun.done():
                abort(scope)
        finally:
            self._controller.stream_closed(self._stream)
            self._stream.close()
            overrun.cancel()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        event: Mapping[str, Any] | None = self._first
        while event is not None:
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
            try:
                event = await asyncio.wait_for(self._stream.next(), PING_INTERVAL)
            except TimeoutError:
                event = {"event": "ping"}
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LiveStream(Response):
    """Server-sent events: a snapshot a second.

    Args:
        snapshot: returns a snapshot with the events past a number.
        since: the number to begin after.
        stop: set when the service ends.
    """

    media_type = SSE

    def __init__(
        self, snapshot: Callable[[int], Awaitable[Snapshot]], since: int, stop: asyncio.Event
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._snapshot = snapshot
        self._since = since
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await unless_gone(Request(scope, receive), self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not self._stop.is_set():
            shown = await self._snapshot(self._since)
            self._since = max((event["n"] for event in shown["events"]), default=self._since)
            text = f"event: snapshot\nid: {self._since}\ndata: {json.dumps(shown, separators=(',', ':'))}\n\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LIVE_INTERVAL)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
