"""The control plane of a simulated system: controllers, their store and drivers, and members' connections.

    Membership (product) --call_once, _open--> Connections --> Controller (product), a thread a request
    Agent (product)      --SwitchDriver------> Driver      --> SimulatedSwitch
    Journal (product)    --Store-------------> SimulatedStore: SQLite in memory, which may fail or stall

A request takes its way to the controller and back. It waits while the link is down, and is over when one of
the two processes ends.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from switchagg import http_client
from switchagg.control.controller import Controller
from switchagg.control.drivers.base import reconcile_by_calls
from switchagg.control.jobs.records import OPEN, JoinRequest, OnLoss
from switchagg.control.store import Changes, Store
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.slots import JobEntry, SlotState
from switchagg.rules.switch import Capacity, ChangeKind, Reconciled, SwitchChange
from switchagg.rules.wiring import Attachment
from switchagg.wire.heartbeat import FIELDS
from tests.simulation.engines import FIRST_ADDRESS, address_of
from tests.simulation.library import Failed, library, numbers
from tests.simulation.scheduler import SECOND, Process, Scheduler, Thread, Waiters
from worker_lib import join

CAPACITY: Final = 256  # slots of a switch
PORT: Final = 1000  # of a switch
MEMORY: Final = 1 << 24
WORDS: Final = 364


def _number(address: str) -> int:
    parts = [int(part) for part in address.split(".")]
    return parts[0] << 24 | parts[1] << 16 | parts[2] << 8 | parts[3]


class SimulatedStore(Store):
    """A store that outlives controllers, in memory.

    Attributes:
        process: of the controller that has it.
        error: raised by every write, while there is one.
        stalled_until: virtual time before which no write returns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.persistent = True
        self.process: Process | None = None
        self.error = ""
        self.stalled_until = 0
        self.writes = self.failed = 0

    def write(self, changes: Changes) -> None:
        process = self.process
        assert process is not None
        process.sleep(process.random.uniform(0, 0.002))  # a controller that is killed here has lost them
        while process.scheduler.now < self.stalled_until:
            process.sleep((self.stalled_until - process.scheduler.now) / SECOND)
        self.writes += 1
        if self.error:
            self.failed += 1
            raise SwitchError(f"{self.where}: {self.error}")
        super().write(changes)
        process.sleep(process.random.uniform(0, 0.001))  # here it has them, and nobody knows


class SimulatedSwitch:
    """A switch at a host: its process may end, which loses its jobs, and start again."""

    def __init__(self, scheduler: Scheduler, name: str, host: int) -> None:
        self.scheduler, self.name, self.host = scheduler, name, host
        self.up = False
        self.jobs: dict[int, JobEntry] = {}
        self.fenced: dict[int, int] = {}
        self.watchers: list[Driver] = []
        self.start()

    def start(self) -> None:
        if not self.up:
            library.checked("switch_start", self.host, CAPACITY)
            self.up = True
            self._tell()

    def die(self) -> None:
        if self.up:
            library.switch_stop(self.host)
            self.up = False
            self.jobs, self.fenced = {}, {}
            self._tell()

    def _tell(self) -> None:
        for driver in self.watchers:
            driver.look()

    def add(self, entry: JobEntry) -> None:
        job = numbers((entry.job, entry.base, entry.slots, entry.words, entry.result_token))
        workers = numbers(
            [field for each in entry.workers for field in (_number(each.ip), each.port, each.bit, each.token)]
        )
        parent, above = None, entry.parent
        if above is not None:
            parent = numbers((_number(above.ip), above.port, above.token, above.base, above.result_token))
        self._asked("switch_add", job, workers, len(entry.workers), parent)
        self.jobs[entry.job] = entry

    def remove(self, job: int) -> None:
        self._asked("switch_remove", job)
        self.jobs.pop(job, None)
        self.fenced.pop(job, None)

    def fence(self, job: int, bits: int) -> None:
        self._asked("switch_fence", job, bits)
        self.fenced[job] = self.fenced.get(job, 0) | bits

    def packet_out(self, packet: bytes) -> bool:
        return bool(self._asked("switch_packet_out", packet, len(packet)))

    def slot(self, index: int) -> SlotState:
        into = numbers([0, 0, 0])
        self._asked("switch_slot", index, into)
        return SlotState(into[0], into[1], bool(into[2]), None)

    def _asked(self, name: str, *arguments: Any) -> int:
        try:
            return library.checked(name, self.host, *arguments)
        except Failed as error:
            raise SwitchError(str(error)) from error


class Driver:
    """Fulfils `SwitchDriver`, over a connection that breaks with the switch and waits for the link."""

    target, link, receive_buffer, memory, threads = "simulated", "", 1 << 20, "", 1

    def __init__(self, switch: SimulatedSwitch, process: Process, plane: ControlPlane) -> None:
        self._switch, self._process, self._plane = switch, process, plane
        self.name = switch.name
        self.capacity = Capacity(CAPACITY, WORDS, MEMORY)
        self.address = (address_of(switch.host), PORT)
        self.warnings: list[str] = []
        self._callback: Callable[[SwitchChange], None] | None = None
        self._told: ChangeKind | None = None
        switch.watchers.append(self)
        process.at_end.append(lambda: switch.watchers.remove(self))

    def look(self) -> None:
        """The switch, or the link to it, has changed: the callback hears of it soon."""
        random = self._process.random
        up = self._switch.up and not self._plane.is_cut(self._process.host, self._switch.host)
        # A connection that ends is noticed at once; a link that is down when nothing comes for some time.
        wait = random.uniform(0.001, 0.05) if self._switch.up == up else random.uniform(1.0, 3.0)
        scheduler = self._process.scheduler
        scheduler.at(scheduler.after(wait), partial(self._tell, up))

    def _tell(self, up: bool) -> None:
        reachable = self._switch.up and not self._plane.is_cut(self._process.host, self._switch.host)
        kind = ChangeKind.connected if up else ChangeKind.lost
        if self._process.dead or self._callback is None or up != reachable or (not up and self._told is kind):
            return
        self._told = kind
        self._callback(SwitchChange(kind, "" if up else "its connection has ended"))

    def _there(self) -> SimulatedSwitch:
        """Takes the time of a round trip. Raises `SwitchError` if the switch does not answer."""
        process, switch = self._process, self._switch
        process.sleep(process.random.uniform(0.0001, 0.002))
        if switch.up and self._plane.is_cut(process.host, switch.host):
            process.sleep(process.random.uniform(0.5, 2.0))
            if self._plane.is_cut(process.host, switch.host):
                raise SwitchError(f"switch {self.name!r} does not answer")
        if not switch.up:
            raise SwitchError(f"switch {self.name!r} has ended")
        return switch

    def install_job(self, entry: JobEntry) -> None:
        self._there().add(entry)

    def remove_job(self, job_id: int) -> None:
        self._there().remove(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        self._there().fence(job_id, bits)

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        switch, lost = self._there(), self._plane.init_loss
        return [each for each in packets if self._process.random.random() >= lost and switch.packet_out(each)]

    def counters(self) -> Mapping[str, int]:
        self._there()
        return {}

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        self._there()
        return {}

    def slot(self, index: int) -> SlotState | None:
        return self._there().slot(index)

    def reconcile(self, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Reconciled:
        switch = self._there()
        return reconcile_by_calls(self, switch.jobs, switch.fenced, entries, fenced)

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        self._callback = callback
        self.look()

    def close(self) -> None:
        self._callback = None


class Stream:
    """A member's stream: the controller's end and the member's."""

    def __init__(self, plane: ControlPlane, member: Process, controller: Process) -> None:
        self._plane, self._member, self._controller = plane, member, controller
        self.peer = address_of(controller.host)
        self._events: deque[Any] = deque()
        self._waiters: Waiters = []
        self._queued = 0  # on the way
        self._last = 0  # when the last one arrives
        self.member_gone = False
        member.at_end.append(self._member_ends)
        controller.at_end.append(lambda: self._push(None))

    # The controller's end.

    def send(self, event: Mapping[str, Any]) -> None:
        self._push(json.loads(json.dumps(event)))

    def refuse(self, error: AdmissionError) -> None:
        self._push(error)

    def close(self) -> None:
        self._push(None)

    def _push(self, item: Any) -> None:
        scheduler = self._plane.scheduler
        self._last = max(self._last + 1, self._plane.arrival(self._member))
        self._queued += 1
        scheduler.at(self._last, partial(self._arrive, item))

    def _arrive(self, item: Any) -> None:
        if self._plane.is_cut(self._controller.host, self._member.host) and not self._member.dead:
            self._plane.scheduler.at(self._plane.scheduler.after(0.05), partial(self._arrive, item))
            return
        self._events.append(item)
        self._plane.scheduler.wake(self._waiters)

    # The member's end.

    def next_event(self, timeout: float | None = None) -> Any:
        """As `worker_lib.join.MemberStream.next_event`; raises a refusal."""
        scheduler = self._plane.scheduler
        until = None if timeout is None else scheduler.after(timeout)
        while not self._events and not self.member_gone:
            if scheduler.expired(until):
                self._member_ends()
                raise TimeoutError
            scheduler.block(self._waiters, until)
        if self.member_gone or self._events[0] is None:
            return None
        event = self._events.popleft()
        if isinstance(event, AdmissionError):
            raise event
        return event

    def _member_ends(self) -> None:
        if self.member_gone:
            return
        self.member_gone = True
        scheduler = self._plane.scheduler
        scheduler.wake(self._waiters)
        scheduler.at(self._plane.arrival(self._controller), self._tell_controller)

    def _tell_controller(self) -> None:
        if self._plane.is_cut(self._controller.host, self._member.host):
            self._plane.scheduler.at(self._plane.scheduler.after(0.1), self._tell_controller)
        elif not self._controller.dead and (controller := self._plane.controller_of(self._controller)):
            self._controller.run(lambda: controller.stream_closed(self), "stream closed")

    def join_end(self) -> None:
        """As `MemberStream.close`."""
        self._member_ends()


class _ClientStream:
    """The member's end, with the names of `worker_lib.join.MemberStream`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.peer = stream.peer

    def next_event(self, timeout: float | None = None) -> Any:
        return self._stream.next_event(timeout)

    def close(self) -> None:
        self._stream.join_end()


class ControlPlane:
    """The controllers of a system, one at a time, and the ways to them.

    Args:
        host: of the controller.
        switches: that it has.
        wiring: their attachments.
        init_loss: the share of INITs that get lost.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        host: int,
        switches: Sequence[SimulatedSwitch],
        wiring: Mapping[str, Attachment],
        init_loss: float,
    ) -> None:
        self.scheduler, self.host, self.switches = scheduler, host, switches
        self.init_loss = init_loss
        self._wiring = wiring
        self.store = SimulatedStore()
        self.process: Process | None = None
        self.controller: Controller | None = None
        self.lives = 0
        self._cut: set[tuple[int, int]] = set()
        self.random = Process(scheduler, "network", host).random

    # Links and processes.

    def is_cut(self, one: int, other: int) -> bool:
        return (min(one, other), max(one, other)) in self._cut

    def cut(self, one: int, other: int, down: bool) -> None:
        """Takes a link down, or up again, for the control plane."""
        (self._cut.add if down else self._cut.discard)((min(one, other), max(one, other)))
        for switch in self.switches:
            if switch.host in (one, other):
                for driver in switch.watchers:
                    driver.look()

    def arrival(self, receiver: Process) -> int:
        """Returns when a message gets there if the link is up."""
        at = self.scheduler.after(self.random.uniform(0.00005, 0.001))
        return max(at, receiver.stopped_until)

    def start(self) -> None:
        """Starts a controller with the store of the one before, unless one runs."""
        if self.process is not None and not self.process.dead:
            return
        self.lives += 1
        process = self.process = Process(self.scheduler, f"controller {self.lives}", self.host)
        self.store.process = process
        drivers = [Driver(switch, process, self) for switch in self.switches]
        runtime: Any = process
        controller = self.controller = Controller(
            drivers, store=self.store, wiring=self._wiring, runtime=runtime, words=32, slots=8
        )
        process.run(lambda: controller.start((address_of(self.host), 1)), "start")

    def die(self) -> None:
        """Kills the controller: what is not in the store is lost."""
        if self.process is not None:
            self.controller = None
            self.process.kill()

    def controller_of(self, process: Process) -> Controller | None:
        return self.controller if process is self.process else None

    # Requests of members.

    def install(self) -> None:
        """Has `worker_lib.join` use these connections."""
        names: Any = join
        names._open = self._open
        names.http_client = SimpleNamespace(call_once=self._call_once, endpoint=http_client.endpoint)

    def heartbeat(self, member: Process, cookie: bytes, number: int, counts: list[int]) -> None:
        """A heartbeat is a datagram."""
        if self.is_cut(member.host, self.host) or self.random.random() < 0.02:
            return
        fields = dict(zip(FIELDS, counts, strict=True))

        def arrive() -> None:
            process, controller = self.process, self.controller
            if process is not None and controller is not None and not process.dead:
                process.run(lambda: _taken(controller, cookie, number, fields), "heartbeat")

        assert self.process is not None
        self.scheduler.at(self.arrival(self.process), arrive)

    def _travel(self, sender: Process, receiver: Process, until: int, call: Callable[[], None]) -> None:
        """Calls a function when a message arrives, if both live then and the link is up."""

        def arrive() -> None:
            if sender.dead or receiver.dead or self.scheduler.now >= until:
                return
            if self.is_cut(sender.host, receiver.host):
                self.scheduler.at(self.scheduler.after(0.05), arrive)
            else:
                call()

        self.scheduler.at(self.arrival(receiver), arrive)

    def _asked(self, timeout: float, handle: Callable[[Controller, Process, _Request], Any]) -> Any:
        """One request, whose handler runs in a thread of the controller. Returns its answer.

        Raises `ConnectionResetError` where nobody listens or the controller ends, and `TimeoutError`.
        """
        scheduler = self.scheduler
        thread = scheduler.current
        assert thread is not None
        client, server, controller = thread.process, self.process, self.controller
        client.check()
        if server is None or server.dead or controller is None:
            client.sleep(client.random.uniform(0.0001, 0.001))
            raise ConnectionResetError("nobody listens")
        until = scheduler.after(timeout)
        request = _Request()

        def arrive() -> None:
            server.run(partial(serve, controller), "request")

        def serve(controller: Controller) -> None:
            try:
                found = handle(controller, server, request)
                if isinstance(found, Future):
                    request.future = found
                    done = server.event()
                    found.add_done_callback(lambda _: done.set())
                    done.wait()
                    if found.cancelled():
                        return
                    found = found.result()
                answer: Any = json.loads(json.dumps(found))
            except SwitchError as error:
                answer = error
            self._travel(server, client, until, partial(request.end, scheduler, answer))

        self._travel(client, server, until, arrive)
        ended = lambda: scheduler.at(scheduler.after(0.0005), partial(request.end, scheduler, _RESET))  # noqa: E731
        server.at_end.append(ended)
        try:
            while request.answer is None:
                if scheduler.expired(until):
                    raise TimeoutError
                scheduler.block(request.waiters, until)
        finally:
            if ended in server.at_end:
                server.at_end.remove(ended)
            if request.answer is None and request.future is not None:
                request.future.cancel()  # the server notices that its client has gone
        if request.answer is _RESET:
            raise ConnectionResetError("the controller has ended")
        if isinstance(request.answer, SwitchError):
            raise request.answer
        return request.answer

    def _call_once(
        self,
        there: http_client.Endpoint,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float,
    ) -> Any:
        try:
            return self._asked(timeout, lambda controller, *_: _answer(controller, method, path, body or {}))
        except TimeoutError as error:
            raise SwitchError(
                f"the controller at {there.url} did not answer within {timeout:g} seconds"
            ) from error
        except OSError as error:
            raise SwitchError(f"the controller at {there.url} did not answer: {error}") from error

    def _open(
        self,
        there: http_client.Endpoint,
        path: str,
        body: dict[str, Any],
        *,
        what: str,
        timeout: float,
        **_: Any,
    ) -> tuple[_ClientStream, dict[str, Any]]:
        client = self.scheduler.current
        assert client is not None
        held: list[Stream] = []

        def handle(controller: Controller, server: Process, _: _Request) -> bool:
            stream = Stream(self, client.process, server)
            held.append(stream)
            parts = path.split("/")
            name = unquote(parts[3])
            if parts[-1] == "attach":
                controller.attach(OPEN, name, int(parts[5]), body["token"], stream)
            else:
                given = {key: value for key, value in body.items() if value is not None}
                if "on_loss" in given:
                    given["on_loss"] = OnLoss(given["on_loss"])
                if "more_ports" in given:
                    given["more_ports"] = tuple(given["more_ports"])
                controller.join(OPEN, name, JoinRequest(**given, timeout=timeout), stream)
            return True

        try:
            self._asked(timeout + 5.0, handle)
            (stream,) = held
            event = stream.next_event(timeout + 5.0)
        except (TimeoutError, ConnectionResetError) as error:
            for stream in held:
                stream.join_end()
            raise SwitchError(f"the controller at {there.url} went away while {what}: {error!r}") from error
        if event is None or event.get("event") != "admitted":
            stream.join_end()
            raise SwitchError(f"the controller at {there.url} went away while {what}: {event!r}")
        return _ClientStream(stream), event


_RESET: Final = object()


class _Request:
    """A request that waits for its answer."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.future: Future[Any] | None = None
        self.waiters: Waiters = []

    def end(self, scheduler: Scheduler, answer: Any) -> None:
        if self.answer is None:
            self.answer = answer
            scheduler.wake(self.waiters)


def _taken(controller: Controller, cookie: bytes, number: int, fields: Mapping[str, int]) -> None:
    controller.heartbeat(cookie, number, fields)


def _answer(controller: Controller, method: str, path: str, body: dict[str, Any]) -> Any:
    """The routes of the HTTP service that members call."""
    split = urlsplit(path)
    parts, query = split.path.split("/"), {key: value[0] for key, value in parse_qs(split.query).items()}
    if method == "GET":
        if parts[2] == "slots":
            found: Any = controller.queries.waiting_slots(OPEN, query["job"], int(query["id"]))
        else:
            found = controller.queries.job(OPEN, unquote(parts[3]), int(query["id"]))
        if found is None:
            raise AdmissionError("there is no such job", "not_found")
        return found
    name, rank, verb, token = unquote(parts[3]), int(parts[5]), parts[6], body["token"]
    ports = [body[key] for key in ("port",) if key in body] + body.get("more_ports", [])
    match verb:
        case "leave":
            controller.leave(OPEN, name, rank, token, body["begun"], body["completed"], body.get("why"))
            return {}
        case "progress":
            future = controller.progress(
                OPEN, name, rank, token, body["completed"], replaying=body["replaying"]
            )
            return _mapped(future, lambda complete_to: {"complete_to": complete_to})
        case "proceed":
            return controller.proceed(OPEN, name, rank, token, body["address"], ports)
        case "replay":
            lowest = [body["lowest"], *body.get("more_lowest", [])]
            return controller.replay(
                OPEN, name, rank, token, lowest, body["address"], ports, stripe=body.get("stripe", 0)
            )
    raise AssertionError(verb)


def _mapped(future: Future[Any], shown: Callable[[Any], Any]) -> Future[Any]:
    """Returns a future of the shown result; whoever cancels it cancels the other."""
    found: Future[Any] = Future()

    def done(_: Future[Any]) -> None:
        if found.cancelled() or not found.set_running_or_notify_cancel():
            return
        error = future.exception()
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(shown(future.result()))

    future.add_done_callback(lambda each: None if each.cancelled() else done(each))
    found.add_done_callback(lambda each: future.cancel() if each.cancelled() else None)
    return found


def host_of(address: str) -> int:
    """Returns the host of an address."""
    return _number(address) - FIRST_ADDRESS


__all__ = ["ControlPlane", "Driver", "SimulatedStore", "SimulatedSwitch", "Stream", "Thread", "host_of"]
