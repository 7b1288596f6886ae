"""`fallback="gloo"`: when the switch is lost, a process group goes on through gloo from that collective on.

    call --> GlooFallback --> Session --> switch     until a rank finds the switch lost; then, on all ranks,
                 |                                   a thread of the group takes over:
                 +--> queue --> thread --> gloo

No rank is left with half a result, none repeats a collective that another has finished, and all have the same
bits, by three rules:

1. A result is written to a buffer of the group's own, and copied to the caller's tensor when it is complete.
   So a collective that was interrupted has its input untouched.
2. Before a rank begins collective i it waits until it has the result of i - FLIGHT. A rank that has the
   result of j knows that every rank has begun j, hence has j - FLIGHT. So one that begins i, and has
   i - FLIGHT, knows that all have i - 2 FLIGHT, and keeps the results of those after it.
3. When the switch is lost the ranks tell each other how many collectives they have completed; all complete
   them in the same order. The lowest rank that has completed a collective sends its result to the others.
   Gloo does those that no rank has completed, from the inputs, and everything after them.

The thread takes part whatever the program is doing, which may wait in an operation of gloo's own for a rank
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

from switchagg.errors import CollectiveTimeout, MismatchError, SessionBrokenError, SwitchAggError, SwitchError
from worker_lib.membership import Gone
from worker_lib.session import Session
from worker_lib.session_state import DONE, MISMATCH
from worker_lib.work import Work

FLIGHT: Final = 4  # collectives under way at once
_LOOK: Final = 0.5  # seconds between two looks for a rank that has lost the switch
_GRACE: Final = 2.0  # seconds for the thread that found the switch lost to say so
_FAREWELL: Final = 5.0  # seconds for the last results to reach all ranks
_log = logging.getLogger("switchagg")


class FallbackWork:
    """One collective, on the switch or by gloo; the group holds it in place of a `worker_lib.Work`.

    Args:
        fallback: it waits for the collective.
        name: of the operation, for messages.
        result: the group's own buffer; None for a barrier.
        by_gloo: does it, into `result`, through the gloo backend that it is given.
        after: copies the result to where it belongs.
        seconds: timeout of the call.

    Attributes:
        work: it on the switch; None if it was never begun there.
        ended: set when it is over, well or with `error`.
    """

    def __init__(
        self,
        fallback: GlooFallback,
        name: str,
        result: torch.Tensor | None,
        by_gloo: Callable[[Any], None],
        after: Callable[[], Any] | None,
        seconds: float,
    ) -> None:
        self._fallback, self._seconds = fallback, seconds
        self.name, self.result, self.by_gloo, self.after = name, result, by_gloo, after
        self.work: Work | None = None
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """True if it is complete here, or all ranks know that they called different things."""
        if self.ended.is_set():
            return True
        native = None if self.work is None else self.work._native
        return native is not None and native.status in (DONE, MISMATCH)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is complete, by the switch or by gloo, and copies the result to where it belongs.

        Raises:
            CollectiveTimeout: gloo did not end it in `timeout`, by default that of the call.
            SwitchAggError: any that `Work.wait` raises.
        """
        seconds = timeout or self._seconds
        if not self._fallback.switched(self, timeout) and not self.ended.wait(seconds):
            raise CollectiveTimeout(f"{self.name} was not done by gloo within {seconds:g} s")
        if self.error is not None:
            raise self.error
        with self._lock:
            if self.after is not None:
                self.after()
                self.after = None

    def wait_for_switch(self, timeout: float | None = None) -> None:
        """Waits for the switch's result, if it was begun there, and ends the collective.

        Raises what `Work.wait` raises, but for `MismatchError`, with which a collective can end.
        """
        if self.work is not None and not self.ended.is_set():
            try:
                self.work.wait(timeout)
                self.end()
            except MismatchError as error:
                self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Marks it as over."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


class GlooFallback:
    """A session's collectives, with gloo to take over. Its methods are those that a process group uses.

    Args:
        session: of the group.
        gloo: a backend of its own, used for nothing else.
        store: of its own.
        name: the group's.

    Attributes:
        lost: set when the switch is.
    """

    def __init__(self, session: Session, gloo: Any, store: Any, name: str) -> None:
        self.session = session
        self.lost = threading.Event()
        self._gloo, self._store, self._name = gloo, store, name
        self._reason = ""
        self._stop = threading.Event()
        self._order = threading.Condition()  # calls and the thread's queue, in one order
        self._recent: deque[FallbackWork] = deque()  # the last collectives, in call order
        self._first = 0  # number of recent[0]
        self._next = 0  # the first that gloo has to do
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"switchagg {name} fallback", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """True if gloo has failed too."""
        return self._failed is not None

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of gloo's operations that are given no other."""
        self._gloo._set_default_timeout(timeout)

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
                recent = list(self._recent)
            for collective in recent:
                collective.ended.wait(_FAREWELL)
        self._stop.set()
        with self._order:
            self._order.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL)

    # ------------------------------------------------------------------ collectives, as a session has them

    def _allreduce(
        self, x: Any, op: str, *, timeout: float | None, background: bool, **options: Any
    ) -> FallbackWork:
        result = torch.empty_like(x)

        def by_gloo(gloo: Any) -> None:
            result.copy_(x)
            gloo.allreduce([result], c10d.AllreduceOptions()).wait()
            if op == "avg":
                result.div_(self.session.world_size)

        def start() -> Work:
            return self.session._allreduce(
                x, op, out=result, timeout=timeout, background=background, **options
            )

        return self._submit("allreduce", start, by_gloo, result, lambda: x.copy_(result), timeout)

    def _broadcast(self, x: Any, root: int, timeout: Any, *, background: bool) -> FallbackWork:
        result = x.clone()

        def start() -> Work:
            return self.session._broadcast(result, root, timeout, background=background)

        return self._submit(
            "broadcast", start, lambda gloo: _broadcast(gloo, result, root), result,
            lambda: x.copy_(result), timeout,
        )  # fmt: skip

    def _allgather(self, x: Any, out: Any, timeout: Any, *, background: bool) -> FallbackWork:
        result, mine = torch.empty_like(out), x.clone()

        def by_gloo(gloo: Any) -> None:
            gloo._allgather_base(_bytes(result), _bytes(mine), c10d.AllgatherOptions()).wait()

        def start() -> Work:
            return self.session._allgather(mine, result, timeout, background=background)

        return self._submit("allgather", start, by_gloo, result, lambda: out.copy_(result), timeout)

    def _reduce_scatter(
        self, x: Any, out: Any, op: str, bits: Any, timeout: Any, *, min_bits: Any, background: bool
    ) -> FallbackWork:
        # All of it on all ranks: only its own rank would have a part.
        whole, rank = x.clone(), self.session.rank
        work = self._allreduce(
            whole, op, bits=bits, min_bits=min_bits, timeout=timeout, background=background
        )
        copy_whole = work.after

        def copy_part() -> None:
            if copy_whole is not None:
                copy_whole()
            out.copy_(whole[rank : rank + 1].view(out.shape))

        work.after = copy_part
        return work

    def _barrier(self, timeout: Any, *, background: bool) -> FallbackWork:
        return self._submit(
            "barrier", lambda: self.session._barrier(timeout, background=background),
            lambda gloo: gloo.barrier(c10d.BarrierOptions()).wait(), None, None, timeout,
        )  # fmt: skip

    # ------------------------------------------------------------------ until the switch is lost

    def _submit(
        self,
        name: str,
        start: Callable[[], Work],
        by_gloo: Callable[[Any], None],
        result: torch.Tensor | None,
        after: Callable[[], Any] | None,
        timeout: float | None,
    ) -> FallbackWork:
        collective = FallbackWork(self, name, result, by_gloo, after, timeout or self.session.timeout)
        with self._order:
            if self._failed is not None:
                raise self._failed
            self._make_room(timeout)
            if not self.lost.is_set():
                try:
                    collective.work = start()
                except (SwitchError, SessionBrokenError) as error:
                    self._lose_if(error)
            self._recent.append(collective)
            self._order.notify_all()
        return collective

    def _make_room(self, timeout: float | None) -> None:
        """Waits for the collective FLIGHT before the next, and forgets those that all ranks have then."""
        if len(self._recent) >= FLIGHT and not self.switched(self._recent[-FLIGHT], timeout):
            return
        while len(self._recent) >= 2 * FLIGHT:
            self._recent.popleft()
            self._first += 1

    def switched(self, collective: FallbackWork, timeout: float | None) -> bool:
        """Waits for the switch unless it is lost; returns True if the collective ended and it is not."""
        if not self.lost.is_set():
            try:
                collective.wait_for_switch(timeout)
            except (SwitchError, SessionBrokenError) as error:
                self._lose_if(error)
        return collective.ended.is_set() and not self.lost.is_set()

    def _lose_if(self, error: SwitchAggError) -> None:
        """Takes the switch for lost if the error says so, or another thread has found it; else raises it."""
        monitor = self.session._state.monitor
        if isinstance(error, SwitchError):
            self._lose(str(error))
        elif monitor is not None and isinstance(monitor.over, Gone):
            self._lose(monitor.over.text)  # which a call outside of this object has found first
        elif not self.lost.wait(_GRACE):
            raise error

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._reason = reason
            self.lost.set()

    # ------------------------------------------------------------------ afterwards, in the thread

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
        self.session._state.break_off(f"the switch is lost: {self._reason}")  # nothing completes any more
        with self._order:
            mine = self._first
            for collective in self._recent:
                if not collective.done():
                    break
                collective.wait_for_switch()
                mine += 1
        counts = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.session.world_size)]
        self._gloo.allgather([counts], [torch.tensor([mine], device="cpu")], c10d.AllgatherOptions()).wait()
        completed = [int(count) for count in counts]
        for number in range(min(completed), max(completed)):
            source = next(rank for rank, count in enumerate(completed) if count > number)
            self._share(self._recent[number - self._first], source)
        self._next = max(completed)

    def _share(self, collective: FallbackWork, source: int) -> None:
        """Sends the source's result to all ranks, some of which do not have it."""
        agreed = torch.tensor([int(not isinstance(collective.error, MismatchError))], device="cpu")
        _broadcast(self._gloo, agreed, source)
        if not agreed.item():
            collective.end(
                MismatchError(f"ranks called different things; this rank called {collective.name}")
            )
            return
        if collective.result is not None:
            _broadcast(self._gloo, collective.result, source)
        collective.end()

    def _go_on(self) -> None:
        """Runs calls through gloo, in their order."""
        while True:
            with self._order:
                while self._next >= self._first + len(self._recent):
                    if self._stop.is_set():
                        return
                    self._order.wait()
                while self._first < self._next:
                    self._recent.popleft()
                    self._first += 1
                collective = self._recent[0]
            try:
                collective.by_gloo(self._gloo)
                collective.end()
            except RuntimeError as error:  # gloo's own; each collective fails with its own
                collective.end(
                    SwitchError(f"the switch is lost, and gloo could not do {collective.name}: {error}")
                )
            self._next += 1

    def _fail(self, cause: Exception) -> None:
        error = SwitchError(
            f"the switch is lost ({self._reason}), and gloo cannot go on in its place: {cause}"
        )
        _log.error("switchagg: process group %s: %s", self._name, error)
        with self._order:
            self._failed = error
            for collective in self._recent:
                collective.end(error)


def gloo_backend(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo backend of its own."""
    backend = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, timeout)
    backend._set_sequence_number_for_group()
    return backend


def _broadcast(gloo: Any, tensor: torch.Tensor, root: int) -> None:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    gloo.broadcast([_bytes(tensor)], options).wait()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, in a type that gloo can move."""
    return tensor.view(-1).view(torch.uint8)
