"""`fallback="gloo"`: when the switch is lost, a process group goes on through gloo from that collective on.

    call --> Relieved --> Session --> switch        until somebody finds the switch lost; then, on all ranks,
                 |                                  a thread of the group takes over:
                 +--> queue --> relief thread --> gloo

The rule, by which no rank is left with half a result, none redoes what another has finished, and all have
the same bits:

1. A result is written to a buffer of the group's own, and copied to the caller's tensor when it is complete.
   So a collective that was interrupted has its input untouched.
2. Before a rank begins collective i it waits until it has the result of i - FLIGHT. A rank that has the
   result of j knows that every rank has begun j, hence has j - FLIGHT. So one that begins i, and has
   i - FLIGHT, knows that all have i - 2 FLIGHT, and keeps the results of those after it.
3. When the switch is lost the ranks tell each other how many collectives they have completed, which all do
   in the same order. What any rank has completed, the lowest that has it sends to the others. What nobody has
   is done by gloo, from the inputs; and so is everything after it.

The thread takes part whatever the program is doing, as it may wait in an operation of gloo's own for a rank
that waits for the switch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import (
    CollectiveTimeout,
    MismatchError,
    SessionBrokenError,
    SwitchAggError,
    SwitchError,
)
from worker_lib.session import Session
from worker_lib.work import Work

FLIGHT: Final = 4  # collectives under way at once
_LOOK: Final = 0.5  # seconds between two looks whether another rank has lost the switch
_GRACE: Final = 2.0  # seconds for the thread that found the switch lost to say so
_FAREWELL: Final = 5.0  # seconds for the last results to reach all ranks
_DONE, _MISMATCH = 1, 2  # of a native collective
_log = logging.getLogger("switchagg")


class Entry:
    """One collective: what runs it on the switch, and what does it by gloo."""

    def __init__(self, name: str, result: torch.Tensor | None, redo: Callable[[Any], None]) -> None:
        self.name = name
        self.result = result
        self.redo = redo
        self.inner: Work | None = None
        self.settled = threading.Event()
        self.error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether it is complete here, or all ranks know that they called different things."""
        if self.settled.is_set():
            return True
        native = None if self.inner is None else self.inner._native
        return native is not None and native.status in (_DONE, _MISMATCH)

    def settle(self, error: BaseException | None = None) -> None:
        """It has ended."""
        if not self.settled.is_set():
            self.error = error
            self.settled.set()


class Part:
    """What the group holds of a collective; it looks like a `worker_lib.Work`."""

    def __init__(self, relieved: Relieved, entry: Entry, after: Callable[[], None], seconds: float) -> None:
        self._relieved, self._entry, self._after, self._seconds = relieved, entry, after, seconds
        self._lock = threading.Lock()
        self._copied = False

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._entry.ended

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is complete, whoever does it, and copies the result to where it belongs."""
        self._relieved.wait(self._entry, timeout or self._seconds, timeout)
        if self._entry.error is not None:
            raise self._entry.error
        with self._lock:
            if not self._copied:
                self._copied = True
                self._after()


class Relieved:
    """A session's collectives, with gloo to take over. Its methods are those that a process group uses.

    Args:
        session: of the group.
        gloo: a backend of its own, used for nothing else.
        store: the group's.
        name: the group's.
    """

    def __init__(self, session: Session, gloo: Any, store: Any, name: str) -> None:
        self.session = session
        self.lost = threading.Event()
        self._gloo, self._store, self._name = gloo, store, name
        self._reason = ""
        self._stop = threading.Event()
        self._order = threading.Condition()  # calls and the thread's queue, in one order
        self._entries: deque[Entry] = deque()  # the last of them, in call order
        self._first = 0  # number of entries[0]
        self._next = 0  # the first that gloo has to do
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"switchagg {name} relief", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Makes sure that the last results have reached all ranks, and ends the thread."""
        if not self.lost.is_set():
            try:
                self.session._barrier(min(_FAREWELL, self.session.timeout), background=False).wait()
            except SwitchError as error:
                self._lose(str(error))
            except SwitchAggError:
                pass  # a rank that has failed does not come
        if self.lost.is_set():
            with self._order:
                entries = list(self._entries)
            for entry in entries:
                entry.settled.wait(_FAREWELL)
        self._stop.set()
        with self._order:
            self._order.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL)

    # ------------------------------------------------------------------ collectives

    def _allreduce(
        self,
        x: Any,
        op: str,
        bits: Any,
        blocks: Any,
        _: None,
        block_size: Any,
        timeout: Any,
        *,
        min_bits: int | None = None,
        background: bool,
    ) -> Part:
        result = torch.empty_like(x)

        def redo(gloo: Any) -> None:
            result.copy_(x)
            gloo.allreduce([result], c10d.AllreduceOptions()).wait()
            if op == "avg":
                result.div_(self.session.world_size)

        return self._submit(
            "allreduce",
            lambda: self.session._allreduce(
                x, op, bits, blocks, result, block_size, timeout, min_bits=min_bits, background=background
            ),
            redo, result, lambda: x.copy_(result), timeout,
        )  # fmt: skip

    def _broadcast(self, x: Any, root: int, timeout: Any, *, background: bool) -> Part:
        result = x.clone()

        def redo(gloo: Any) -> None:
            options = c10d.BroadcastOptions()
            options.rootRank = root
            gloo.broadcast([_bytes(result)], options).wait()

        return self._submit(
            "broadcast",
            lambda: self.session._broadcast(result, root, timeout, background=background),
            redo, result, lambda: x.copy_(result), timeout,
        )  # fmt: skip

    def _allgather(self, x: Any, out: Any, timeout: Any, *, background: bool) -> Part:
        result = torch.empty_like(out)
        mine = x.clone()

        def redo(gloo: Any) -> None:
            gloo._allgather_base(_bytes(result), _bytes(mine), c10d.AllgatherOptions()).wait()

        return self._submit(
            "allgather",
            lambda: self.session._allgather(mine, result, timeout, background=background),
            redo, result, lambda: out.copy_(result), timeout,
        )  # fmt: skip

    def _reduce_scatter(
        self,
        x: Any,
        out: Any,
        op: str,
        bits: Any,
        timeout: Any,
        *,
        min_bits: int | None = None,
        background: bool,
    ) -> Part:
        # All of it on all ranks: a part could be had from its own rank alone.
        whole = x.clone()
        part = self._allreduce(
            whole, op, bits, "auto", None, None, timeout, min_bits=min_bits, background=background
        )
        after, rank = part._after, self.session.rank

        def cut() -> None:
            after()
            out.copy_(whole[rank : rank + 1].view(out.shape))

        part._after = cut
        return part

    def _barrier(self, timeout: Any, *, background: bool) -> Part:
        def redo(gloo: Any) -> None:
            gloo.barrier(c10d.BarrierOptions()).wait()

        return self._submit(
            "barrier",
            lambda: self.session._barrier(timeout, background=background),
            redo, None, lambda: None, timeout,
        )  # fmt: skip

    # ------------------------------------------------------------------ until the switch is lost

    def _submit(
        self,
        name: str,
        start: Callable[[], Work],
        redo: Callable[[Any], None],
        result: torch.Tensor | None,
        after: Callable[[], Any],
        timeout: float | None,
    ) -> Part:
        entry = Entry(name, result, redo)
        with self._order:
            if self._failed is not None:
                raise self._failed
            self._make_room(timeout)
            if not self.lost.is_set():
                try:
                    entry.inner = start()
                except (SwitchError, SessionBrokenError) as error:
                    self._lose_if(error)
            self._entries.append(entry)
            self._order.notify_all()
        return Part(self, entry, after, timeout or self.session.timeout)

    def _make_room(self, timeout: float | None) -> None:
        """Waits for the collective FLIGHT before the next, and forgets what all ranks have then."""
        if len(self._entries) >= FLIGHT and not self._switched(self._entries[-FLIGHT], timeout):
            return
        while len(self._entries) >= 2 * FLIGHT:
            self._entries.popleft()
            self._first += 1

    def wait(self, entry: Entry, seconds: float, given: float | None) -> None:
        """Returns when the entry has ended, well or not."""
        if not self._switched(entry, given) and not entry.settled.wait(seconds):
            raise CollectiveTimeout(f"{entry.name} was not done by gloo within {seconds:g} s")

    def _switched(self, entry: Entry, timeout: float | None) -> bool:
        """Waits while there is a switch; whether the entry has ended."""
        if entry.inner is not None and not entry.settled.is_set() and not self.lost.is_set():
            try:
                entry.inner.wait(timeout)
                entry.settle()
            except MismatchError as error:
                entry.settle(error)
            except (SwitchError, SessionBrokenError) as error:
                self._lose_if(error)
        return entry.settled.is_set() and not self.lost.is_set()

    def _lose_if(self, error: SwitchAggError) -> None:
        """Takes the switch for lost, or raises what else it was."""
        if isinstance(error, SwitchError):
            self._lose(str(error))
        elif not self.lost.wait(_GRACE):  # another thread has found it, and its session broken
            raise error

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._reason = reason
            self.lost.set()

    # ------------------------------------------------------------------ afterwards

    def _run(self) -> None:
        while not self.lost.wait(_LOOK):
            if self._stop.is_set():
                return
            try:
                if self._store.check(["lost"]):
                    self._lose(self._store.get("lost").decode())
            except RuntimeError:  # the store has ended, as it does with rank 0
                continue
        try:
            self._take_over()
            self._go_on()
        except Exception as error:
            self._fail(error)

    def _take_over(self) -> None:
        _log.error(
            "switchagg: the switch of process group %s is lost, rank %d goes on through gloo: %s",
            self._name, self.session.rank, self._reason,
        )  # fmt: skip
        self._store.set("lost", self._reason)
        self.session._state.break_off(f"the switch is lost: {self._reason}")  # from here on nothing completes
        with self._order:
            mine = self._first
            for entry in self._entries:
                if not entry.ended:
                    break
                self._close(entry)
                mine += 1
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.session.world_size)]
        self._gloo.allgather([counts], [torch.tensor([mine])], c10d.AllgatherOptions()).wait()
        completed = [int(count) for count in counts]
        for number in range(min(completed), max(completed)):
            self._share(number, completed)
        self._next = max(completed)

    def _close(self, entry: Entry) -> None:
        """Takes what the switch has given."""
        if entry.inner is not None and not entry.settled.is_set():
            try:
                entry.inner.wait()
                entry.settle()
            except MismatchError as error:
                entry.settle(error)

    def _share(self, number: int, completed: list[int]) -> None:
        """Gives the result of a collective that some ranks have to those that do not."""
        source = next(rank for rank, count in enumerate(completed) if count > number)
        entry = self._entries[number - self._first]
        options = c10d.BroadcastOptions()
        options.rootRank = source
        agreed = torch.tensor([int(not isinstance(entry.error, MismatchError))])
        self._gloo.broadcast([agreed], options).wait()
        if not agreed.item():
            entry.settle(MismatchError(f"ranks called different things; this rank called {entry.name}"))
            return
        if entry.result is not None:
            self._gloo.broadcast([_bytes(entry.result)], options).wait()
        entry.settle()

    def _go_on(self) -> None:
        """Does by gloo what is called, in the order of the calls."""
        while True:
            with self._order:
                while self._next >= self._first + len(self._entries):
                    if self._stop.is_set():
                        return
                    self._order.wait()
                while self._first < self._next:
                    self._entries.popleft()
                    self._first += 1
                entry = self._entries[0]
            try:
                entry.redo(self._gloo)
                entry.settle()
            except RuntimeError as error:  # gloo's own, of which each has to be told
                entry.settle(SwitchError(f"the switch is lost, and gloo could not do {entry.name}: {error}"))
            self._next += 1

    def _fail(self, cause: Exception) -> None:
        error = SwitchError(
            f"the switch is lost ({self._reason}), and gloo cannot go on in its place: {cause}"
        )
        _log.error("switchagg: process group %s: %s", self._name, error)
        with self._order:
            self._failed = error
            for entry in self._entries:
                entry.settle(error)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, in a type that gloo can move."""
    return tensor.view(-1).view(torch.uint8)


def gloo_backend(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo backend of one's own."""
    backend = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, timeout)
    backend._set_sequence_number_for_group()
    return backend
