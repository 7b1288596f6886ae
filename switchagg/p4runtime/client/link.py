"""Keeps a P4Runtime switch connected, and this controller its primary client.

    thread --Client()--> refused, silent ----------------------> down, and again after a pause
       |        `------> another is primary -------------------> down, until it goes or gives way
       |        `------> nobody is ----------------------------> claim a higher election id
       |        `------> primary --prepare()--> no program ...-> down, and again after a pause
       |                                `-----> up: `connected`, or `restarted` where its memory is gone
       `-- stream ends, a probe is not answered, another takes over -> down: `lost`

Between two attempts it waits 0.1 s, doubling up to 1 s.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from switchagg.errors import SwitchAggError, SwitchError
from switchagg.p4runtime.client.connection import Client, Listener, Standing, election_of_now
from switchagg.p4runtime.client.spec import P4RuntimeSpec
from switchagg.rules.switch import ChangeKind, SwitchChange

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 1.0
_PROBE_INTERVAL: Final = 1.0

_log = logging.getLogger(__name__)


class Link:
    """The connection to a switch, whichever `Client` it is just then.

    Args:
        prepare: called with a new primary client before anybody else has it; returns whether the switch's
            memory is gone. A `SwitchAggError` closes the connection again.
        packet: takes the frames that come to the controller's port.
    """

    def __init__(
        self, spec: P4RuntimeSpec, prepare: Callable[[Client], bool], packet: Callable[[bytes], None]
    ) -> None:
        self._spec = spec
        self._prepare = prepare
        self._packet = packet
        self._election = spec.election or election_of_now()
        self._news: queue.SimpleQueue[Standing | str | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._client: Client | None = None
        self._change: SwitchChange | None = None
        self._watchers: list[Callable[[SwitchChange], None]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"link-{spec.name}", daemon=True)

    def start(self) -> None:
        """Connects from now on."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Waits until it is known whether the switch can be used."""
        with self._state:
            self._state.wait_for(lambda: self._change is not None, seconds)

    def client(self) -> Client:
        """The client that is primary. Raises `SwitchError` where the switch cannot be used, and says why."""
        with self._state:
            if self._client is None:
                why = self._change.why if self._change is not None else "it has not answered yet"
                raise SwitchError(why)
            return self._client

    @property
    def up(self) -> bool:
        """True if the switch can be used."""
        return self._client is not None

    def suspect(self) -> None:
        """A call failed: looks at once whether the switch is still there."""
        self._news.put(None)

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        """Calls `callback` with what is now, if that is known, and with every change."""
        with self._state:
            self._watchers.append(callback)
            if self._change is not None:
                callback(self._change)

    def close(self) -> None:
        """Disconnects, and calls nobody any more."""
        with self._state:
            self._watchers.clear()
            self._closing.set()
        self._news.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            was_up = False
            try:
                listener = Listener(self._news.put, self._packet, self._news.put)
                client = Client(self._spec, self._election, listener)
                try:
                    was_up = self._serve(client)
                finally:
                    self._client = None
                    client.close()
            except SwitchAggError as error:
                self._down(str(error))
            except Exception as error:
                _log.exception("switch %s", self._spec.name)
                self._down(f"the driver failed: {error}")
            pause = _FIRST_PAUSE if was_up else min(2 * pause, _LONGEST_PAUSE)
            self._closing.wait(pause)
            self._forget_news()

    def _serve(self, client: Client) -> bool:
        """Until the connection ends. Returns whether the switch could be used at a time."""
        was_up = False
        while not self._closing.is_set():
            try:
                news = self._news.get(timeout=_PROBE_INTERVAL)
            except queue.Empty:
                news = None
            if self._closing.is_set():
                break
            if news is None:
                client.probe()
            elif isinstance(news, str):
                raise SwitchError(news)
            elif news.primary:
                if self._client is None:
                    self._up(client, memory_gone=self._prepare(client))
                    was_up = True
            elif news.vacant:
                self._election = max(self._election, news.election + 1)
                client.claim(self._election)
            else:
                self._client = None
                self._down(f"another controller, of election id {news.election}, has this switch")
        return was_up

    def _up(self, client: Client, *, memory_gone: bool) -> None:
        with self._state:
            self._client = client
            kind = ChangeKind.restarted if memory_gone else ChangeKind.connected
            self._tell(SwitchChange(kind, "the switch restarted" if memory_gone else ""))

    def _down(self, why: str) -> None:
        with self._state:
            self._client = None
            change = SwitchChange(ChangeKind.lost, why)
            if change != self._change and not self._closing.is_set():
                self._tell(change)

    def _tell(self, change: SwitchChange) -> None:
        self._change = change
        self._state.notify_all()
        for callback in self._watchers:
            callback(change)

    def _forget_news(self) -> None:
        try:
            while True:
                self._news.get_nowait()
        except queue.Empty:
            pass
