"""The membership monitor of a session: heartbeats, the controller's events, changes of membership.

    member stream --reader thread--> events -+                          +--> engine: abort, fail_from,
                                             +--> monitor thread -------+    freeze, finish, resume,
    engine: "all ranks have paused" ---------+    (membership machine)  |    suspend, move
    native thread: heartbeats                                           +--> controller: attach,
                                                                             progress, proceed, replay

`worker_lib/membership.py` decides what an event means. A thread that waits in a collective does so in the
engine, without the interpreter's lock, so it comes back as soon as the engine has been told.

When the stream breaks, the controller may have been restarted: the monitor attaches again for as long as the
session lives, and nothing is raised while packets flow. Only if the switch's port refuses packets as well is
the session over.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from switchagg.addresses import show_address
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.planner import SkipPolicy
from switchagg.runtime import Runtime
from worker_lib import _native
from worker_lib.membership import (
    Change,
    Effect,
    End,
    FailFrom,
    Generation,
    Gone,
    GoOver,
    Loss,
    MembershipStateMachine,
    OnLoss,
    RequestPause,
    SetPolicy,
    failure,
)
from worker_lib.transport import BoundSocket, Way, bind, start_engine

if TYPE_CHECKING:
    from worker_lib.join import Membership

_SLICE_NS: Final = 100_000_000
_PATIENCE: Final = 30.0  # seconds that one request waits for other ranks; then it is repeated
_ATTACH_TIMEOUT: Final = 5.0
_FIRST_PAUSE: Final = 0.05  # seconds between two attempts to attach; doubled up to the last
_LAST_PAUSE: Final = 0.25
_PORT_CHECK: Final = 0.05  # seconds between checks of the switch's port meanwhile
_END_SECONDS: Final = 5.0  # for the threads to end
_LEFT_CHECK: Final = 0.002  # seconds between looks at a change that a thread waits for
_REPLAYS: Final = 1.0  # seconds in which all ranks have sent again what they had sent to an earlier switch
_TEMPORARY: Final = ("stopping", "switch")  # codes of refusals that may pass
_monitors: Final[weakref.WeakSet[MembershipMonitor]] = weakref.WeakSet()


def end_dropped() -> None:
    """Waits for the monitors of sessions that were dropped and not closed, before the interpreter ends.

    A thread that comes back from native code after that ends the process with an abort.
    """
    for monitor in list(_monitors):
        monitor.drop()
        monitor.join()


class MembershipMonitor:
    """One member's monitor; its threads run from the start.

    Args:
        engine: of the session.
        member: the admission that the controller gave.
        transport: as the caller asked for; see `worker_lib.transport`. used: one that it names.
        address: IP address of this host that packets come from.
        runtime: time and threads.

    Attributes:
        member: the present admission.
        lock: guards what follows, and orders calls and changes of generation.
        generations: by the engine's number, with the job id that each began with.
        over: why the session has ended; None while it has not.
        owed: a loss that the caller has not been told of; no call is made before it is.
        losses: by the number of the generation that they ended.
        left: ranks of this generation that have left.
        completed: collectives of this generation that were complete at one of these, and so get all RESULTs.
        transport: the way of the packets: "shm", "slots", "udp", "xdp" or "dpdk".
    """

    def __init__(
        self,
        engine: _native.Engine,
        member: Membership,
        *,
        transport: str,
        used: str,
        address: str,
        runtime: Runtime,
    ) -> None:
        self.member = member
        self.runtime = runtime
        self.lock = threading.Lock()
        self.over: Loss | Gone | None = None
        self.owed: Loss | None = None
        self.losses: dict[int, Loss] = {}
        self.left: Loss | None = None
        self.completed = 0
        self.transport = used
        generation = Generation(member.job, member.rank, member.places)
        self.generations = [generation]
        self.policies = [member.policy]
        on_loss: OnLoss = "shrink" if member.on_loss == "shrink" else "fail"
        self._machine = MembershipStateMachine(member.name, generation, on_loss)
        self._engine = engine
        self._asked = transport
        self._address = address
        self._change_wanted = self._failover_wanted = False
        self._gone = 0  # the stripe whose switch is gone
        self._offer: list[BoundSocket] = []  # the controller was told their addresses, by stripe
        self._closing = runtime.event()
        self._dropped = False
        self._events: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._stream_number = 0  # number of the stream that is read
        self._heartbeats = _native.HeartbeatSender(engine)
        self._wakeup = runtime.wake_up()
        self._wakeup_open = True
        self._wakeup_lock = threading.RLock()  # `drop` may come from the collector, anywhere
        engine.set_pause_eventfd(self._wakeup.descriptor)
        self._start_heartbeats()
        self._start_reader(member)
        self._thread = runtime.thread(self._run, "switchagg-monitor")
        self._thread.start()
        _monitors.add(self)

    def leave(self, begun: int, completed: int, error: BaseException | None) -> None:
        """Leaves the job, with the exception that ends this rank, and ends the threads.

        The engine is closed before, which had begun and completed so many collectives. It does not vouch for
        these where the present switch may lack what it had contributed to them, and still sent again.
        """
        self._end_threads()
        known = None if self._engine.replaying else completed
        self.member.leave(begun, known, failure(error, self.member.on_loss))
        self.join()

    def join(self) -> None:
        """Waits a while for the threads to end; the stream is closed."""
        for thread in self._thread, self._reader:
            if self.runtime.current_thread() is not thread:
                thread.join(_END_SECONDS)

    def lose_switch(self, job: int) -> None:
        """The switch sends nothing and its port refuses packets: goes to another one, or ends the session.

        From any thread. Nothing happens if `job`, the job id on that switch, is not the present one any more.
        """
        with self.lock:  # in which the switch changes
            member = self.member
            if member.job != job:
                return
            refused = self._engine.refused
            stripe = refused.index(max(refused))
            gone = member.parts[stripe]
            if not member.standby and self.over is None:
                where = show_address(gone.switch_address, gone.switch_port)
                self.over = Gone(
                    f"the switch of job {member.name!r} at {where} is gone: its port refuses packets"
                )
        if self.over is not None:
            self._engine.abort()
            return
        event = {"event": "failover", "job": job, "stripe": stripe}
        self._events.put((self._stream_number, event))
        self._wake()

    def go_on_without_left(self) -> bool:
        """In a job that shrinks, has its members go on without ranks that have left; returns False in others.

        From any thread. A call needs what these ranks would have contributed: to this member they are lost.
        """
        if self.member.on_loss != "shrink":
            return False
        with self.lock:
            places = self.generations[-1].places
            gone = [] if self.left is None else [places[rank] for rank in self.left.ranks]
        self._events.put((self._stream_number, {"event": "lost", "ranks": gone, "why": ""}))
        self._wake()
        return True

    def await_change(self, generation: int, seconds: float) -> Loss | None:
        """Waits for the loss that ends a generation, at most so long; returns None if none comes."""
        until = self.runtime.monotonic() + seconds
        while (loss := self.losses.get(generation)) is None and self.over is None:
            if self.runtime.monotonic() >= until or self._closing.wait(_LEFT_CHECK):
                break
        return loss

    def wrong(self, damage: int) -> str:
        """Says of which switch, packet and slot a RESULT was wrong."""
        stripe, number = self._engine.dealt(damage)
        member = self.member.parts[stripe]
        slot = member.base + (member.first_seq + number) % member.slots
        return (
            f"the RESULT of packet number {damage}, in slot {slot} of the switch at "
            f"{show_address(member.switch_address, member.switch_port)}, is not the sum of what the ranks "
            "have sent"
        )

    def drop(self) -> None:
        """Ends the threads, and closes the stream without a leave. From any thread."""
        self._dropped = True
        self._closing.set()
        self._wake()

    def abandon(self) -> None:
        """For a forked child: threads and membership are the parent's."""
        self._heartbeats.abandon()
        # The threads' frames, and this object with them, stay in the child for ever; the engine must not.
        del self._heartbeats, self._engine
        self.member.close_descriptors()
        if self._wakeup_open:
            self._wakeup_open = False
            self._wakeup.close()

    # ------------------------------------------------------------------ threads

    def _end_threads(self) -> None:
        self._closing.set()
        self._heartbeats.close()
        self._wake()

    def _wake(self) -> None:
        with self._wakeup_lock:
            if self._wakeup_open:
                self._wakeup.set()

    def _start_reader(self, member: Membership) -> None:
        """Starts to read the member's stream."""
        self._stream_number += 1
        read = partial(self._read, self._stream_number, member)
        self._reader = self.runtime.thread(read, "switchagg-events")
        self._reader.start()

    def _read(self, line: int, member: Membership) -> None:
        while True:
            try:
                event = member.next_event()
            except SwitchError:  # not an event: like the end of the stream
                event = None
            self._events.put((line, event))
            self._wake()
            if event is None:
                return

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and self.over is None:
                self._wakeup.wait()
                self._take_events()
                while not self._ended():
                    # A packet of which a lost rank had a part cannot be sent again.
                    if self._engine.damage is not None and not self._machine.losing:
                        self._failover_wanted = True
                    if self._failover_wanted:
                        self._go_over()
                    elif self._change_wanted or self._engine.halted:
                        self._change()
                    else:
                        break
                    self._take_events()
        except Exception as error:  # a session whose monitor is dead must not wait for it
            self._end(Gone(f"the session's monitor failed: {error!r}"))
            raise
        finally:
            self._heartbeats.close()
            if self._dropped:
                self.member.close_stream()
            for sock in self._offer:
                sock.native.close()
            self._engine.set_pause_eventfd(-1)
            with self._wakeup_lock:
                self._wakeup_open = False
                self._wakeup.close()

    def _ended(self) -> bool:
        return self._closing.is_set() or self.over is not None or self._engine.broken

    # ------------------------------------------------------------------ events

    def _take_events(self) -> None:
        """Acts on all events that have come."""
        while not self._ended():
            try:
                line, event = self._events.get_nowait()
            except queue.Empty:
                return
            if line != self._stream_number:
                continue
            if event is None:
                self._attach()
                continue
            try:
                self._apply(self._machine.event(event))
            except SwitchError as error:
                self._end(Gone(str(error)))

    def _apply(self, effect: Effect | None) -> None:
        match effect:
            case End(cause):
                self._end(cause)
            case Change():
                # Nobody can send again at another switch what a lost rank had sent.
                self._change_wanted, self._failover_wanted = True, False
            case GoOver(stripe):
                self._failover_wanted, self._gone = True, stripe
            case RequestPause():
                self._engine.request_pause()
            case SetPolicy(word):
                if SkipPolicy.from_word(word) is not None:
                    self._engine.set_policy(word)
            case FailFrom(begun, completed, loss):
                with self.lock:
                    self.left, self.completed = loss, max(self.completed, completed)
                if begun is not None:
                    self._engine.fail_from(begun)

    def _end(self, cause: Loss | Gone) -> None:
        """Ends the session: threads in the engine come back and find `over`."""
        with self.lock:
            if self.over is None:
                self.over = cause
        self._engine.abort()

    # ------------------------------------------------------------------ the controller went away

    def _attach(self) -> None:
        """Attaches again, until the controller is there, the switch is gone too, or the session ends."""
        if self._machine.final:
            return self._end(Gone(f"the controller of job {self.member.name!r} has stopped, and its switch"))
        refused = self._engine.stats()["refused"]
        pause = _FIRST_PAUSE
        while not self._ended():
            try:
                member = self.member.attach(_ATTACH_TIMEOUT)
            except AdmissionError as error:
                if error.code not in _TEMPORARY:
                    return self._end(Gone(f"{error}"))
            except SwitchError:
                pass
            else:
                self._attached(member)
                return None
            until = self.runtime.monotonic() + pause
            while self.runtime.monotonic() < until and not self._closing.wait(_PORT_CHECK):
                if self._engine.stats()["refused"] > refused and not self.member.standby:
                    return self._end(
                        Gone(
                            f"the switch of job {self.member.name!r} is gone: its port refuses packets and "
                            "its controller does not answer"
                        )
                    )
            pause = min(2 * pause, _LAST_PAUSE)
        return None

    def _attached(self, member: Membership) -> None:
        self._start_reader(member)
        if member.job == self.member.job:
            self.member = member
            self._start_heartbeats()
        elif self._offer and self._failover_wanted:  # the answer to `replay` was lost on its way
            self._failover_wanted = False
            self._move(member)
        elif self._offer:  # the answer to `proceed` was lost on its way
            self._resume(member)
        else:
            self._end(Gone(f"job {member.name!r} went on without this rank"))

    def _start_heartbeats(self) -> None:
        beats = self.member.heartbeats
        if beats is not None:
            self._heartbeats.start(
                _native.ip_number(beats.address), beats.port, beats.cookie, int(beats.interval * 1e9)
            )

    # ------------------------------------------------------------------ a change of membership

    def _change(self) -> None:
        """Freeze, progress, finish, proceed, resume; see `worker_lib/membership.py`."""
        self._change_wanted = False
        engine, member = self._engine, self.member
        try:
            until = self.runtime.monotonic() + _REPLAYS
            while engine.replaying and not self._ended() and self.runtime.monotonic() < until:
                self._closing.wait(_PORT_CHECK)
            completed = engine.freeze()
            complete_to = member.progress(completed, engine.replaying, _PATIENCE)
            if complete_to < completed:
                return self._end(Gone(f"the controller said {complete_to} of {completed} collectives"))
            while not engine.finish(complete_to, _SLICE_NS):
                self._take_events()
                if self._ended():
                    return None
                damage = engine.damage
                if damage is not None and self._machine.losing:
                    text = f"{self.wrong(damage)}, and a lost rank cannot send again what it had sent"
                    return self._end(Gone(text, damaged=True))
                if self._failover_wanted or damage is not None:
                    self._change_wanted = self._failover_wanted = True
                    return None
            return self._resume(member.proceed(self._address, self._offered(), _PATIENCE))
        except AdmissionError as error:
            if error.code not in _TEMPORARY:
                return self._end(Gone(str(error)))
        except SwitchError:
            # The controller is slow or gone. If it is gone the stream has ended too, which comes as an event.
            pass
        self._change_wanted = True
        self._closing.wait(_FIRST_PAUSE)
        return None

    def _go_over(self) -> None:
        """Suspend, replay, move; see docs/protocol.md, section 13."""
        lowest = self._engine.suspend()
        damage, unhealed = self._engine.damage, self._engine.unhealed
        stripe = self._gone if damage is None else self._engine.dealt(damage)[0]
        try:
            new = self.member.replay(
                lowest, self._address, self._offered(), _PATIENCE, stripe=stripe, damaged=damage is not None
            )
        except AdmissionError as error:
            if error.code not in _TEMPORARY:
                if unhealed is not None:
                    return self._end(Gone(f"{self.wrong(unhealed)}; {error}", damaged=True))
                return self._end(Gone(str(error)))
        except SwitchError:  # as in `_change`
            pass
        else:
            self._failover_wanted = False
            return self._move(new)
        self._closing.wait(_FIRST_PAUSE)
        return None

    def _offered(self) -> list[int]:
        """The ports of sockets that the next generation, or another switch, may send to."""
        while len(self._offer) < len(self.member.parts):
            self._offer.append(bind(self._address, self._asked))
        return [sock.port for sock in self._offer]

    def _move(self, new: Membership) -> None:
        """Goes on in the same generation, with other switches for some stripes."""
        self._machine.changed(Generation(new.job, new.rank, new.places), ())
        both = enumerate(zip(self.member.parts, new.parts, strict=True))
        moved = [stripe for stripe, (before, now) in both if before.job != now.job]

        def start(ways: list[Way]) -> None:
            for i in moved:
                self._engine.move(*ways[i], new.parts[i].first_packet, i, i != moved[-1])

        with self.lock:
            used = self._start_on(new, start)
        self._go_on(used)

    def _resume(self, new: Membership) -> None:
        """Goes on in a new generation."""
        self._change_wanted = False  # by a loss that came in the middle of this change, and is among these
        generation = Generation(new.job, new.rank, new.places)
        loss = self._machine.changed(generation, new.lost)
        # Under the lock: no call is made between the old generation's end and the caller's being told.
        with self.lock:
            self.left, self.completed = None, 0
            self.generations.append(generation)
            self.policies.append(new.policy)
            if loss is not None:
                self.losses[len(self.generations) - 2] = self.owed = loss
            used = self._start_on(new, lambda ways: self._engine.resume(*ways[0], loss is not None, ways[1:]))
        self._go_on(used)

    def _start_on(self, new: Membership, start: Callable[[list[Way]], object]) -> str | None:
        """Starts the engine again, with the lock held. Returns the transport; None if the session is over."""
        socks, self._offer = self._offer, []
        self.member = new
        try:
            return start_engine(socks, new, self._asked, start)[1]
        except (SwitchError, ValueError) as error:
            self.over = Gone(str(error))
            return None
        finally:
            for sock in socks:
                sock.native.close()  # does nothing once the engine has it

    def _go_on(self, used: str | None) -> None:
        if self.over is not None:
            self._engine.abort()
        if used is not None:
            self.transport = used
            self._start_heartbeats()
        for event in self._machine.early():
            self._events.put((self._stream_number, dict(event)))
