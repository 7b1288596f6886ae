"""One client's stream: messages wait here until gRPC takes them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Final

from switchagg.p4runtime.server.errors import Refused

_MOST_WAITING: Final = 10_000


class Stream:
    """The way to one client. Any thread may send.

    A client that does not read loses packets and digests past 10,000 that wait. Other messages wait however
    many there are.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: Refused | None = None
        self.joined = False

    def send(self, message: Any, *, droppable: bool = False) -> bool:
        """Hands a message on; whether it will get there, unless the client goes."""
        if droppable and self._waiting.qsize() >= _MOST_WAITING:
            return False
        self._waiting.put(message)
        return True

    def end(self, error: Refused | None = None) -> None:
        """Ends the stream after what waits, with an error or without."""
        if self.error is None:
            self.error = error
        self._waiting.put(None)

    def messages(self) -> Iterator[Any]:
        """What was sent, until the stream ends."""
        while (message := self._waiting.get()) is not None:
            yield message
