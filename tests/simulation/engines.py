"""Stand-ins for the classes of `worker_lib._native` that reach a kernel: the engine itself is the product's.

`install()` puts them into the module. A socket's address tells the host, and the calling thread the process.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from switchagg.wire.header import MAX_STRIPES, MAX_WEIGHT
from tests.simulation.library import CallFields, library, numbers
from tests.simulation.scheduler import SECOND, Process, Thread, Waiters
from worker_lib import _native

FIRST_ADDRESS: Final = 0x0A000001  # 10.0.0.1, of host 0
PENDING: Final = 0
DONE: Final = 1
_DEFAULTS: Final = {"block": 64, "workers": 1, "sparse": True}  # of a call
_DIRECTED: Final = ("part", "reader")  # of a call: for collectives other than all-reduce
_GAUGES: Final = (19, 40, 41)  # fields of a heartbeat that are no counters


def address_of(host: int) -> str:
    """Returns the IPv4 address of a host."""
    number = FIRST_ADDRESS + host
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


class Admission:
    """As `_native.Admission`."""

    def __init__(
        self, switch_ip: int, switch_port: int, job: int, token: int, result_token: int, base: int,
        slots: int, words: int, first_seq: int, rank: int, workers: int, window_limit: int, link: str = "",
        policy: int = 0, receivers: Sequence[int] = (), shared_slots: bool = False, threads: int = 1,
        weight: int = MAX_WEIGHT,
    ) -> None:  # fmt: skip
        # `receivers` are for collectives other than all-reduce.
        assert not link
        assert not shared_slots
        assert threads == 1
        where = (switch_ip, switch_port, job, token, result_token, base, slots, words, first_seq)
        self.fields = numbers((*where, rank, workers, window_limit, policy, weight))


class Call:
    """As `_native.Call`."""

    def __init__(self, kind: int, op: int, dtype: int, bits: int, **fields: Any) -> None:
        self.checked = self.directed = False
        given = {"kind": kind, "op": op, "dtype": dtype, "bits": bits, **_DEFAULTS, **fields}
        self.fields = CallFields(
            **{name: int(value) for name, value in given.items() if value and name not in _DIRECTED}
        )
        self.nontemporal = False


class Socket:
    """As `_native.Socket`."""

    gso = gro = False

    def __init__(self, ip: int, port: int, receive_buffer: int, offload: bool) -> None:
        assert not port
        self.ip, self.receive_buffer = ip, receive_buffer
        self.host = ip - FIRST_ADDRESS
        self.port = int(library.worker_socket(self.host))
        self.taken = False

    def close(self) -> None:
        if not self.taken:
            self.taken = True
            library.worker_close_socket(self.host, self.port)


class Collective:
    """As `_native.Collective`."""

    def __init__(self, engine: Engine, number: int, call: Call) -> None:
        self._engine, self._number, self._call = engine, number, call
        self._last: list[int] | None = None

    def _fields(self) -> list[int]:
        if self._last is None or not self._last[0]:
            if self._engine.process.dead:
                return self._last or [4, *[0] * 12]
            into = (ctypes.c_int64 * 13)()
            library.work_fields(self._engine.host, self._number, into)
            self._last = list(into)
        return self._last

    @property
    def status(self) -> int:
        if self._last is not None and self._last[0]:
            return self._last[0]
        if self._engine.process.dead:
            return 4
        return int(library.work_status(self._engine.host, self._number))

    call_number = property(lambda self: self._fields()[1])
    generation = property(lambda self: self._fields()[2])
    submitted_at = property(lambda self: self._fields()[3])
    ended_at = property(lambda self: self._fields()[4])
    packets = property(lambda self: self._fields()[5])
    results = property(lambda self: self._fields()[6])
    policy = property(lambda self: self._fields()[7])
    difference = property(lambda self: self._fields()[8:])


def _ways(socket: Socket, admission: Admission, more: Sequence[tuple[Socket, Admission]]) -> tuple[Any, ...]:
    """Returns the number of an engine's stripes, their ports, and their admissions."""
    ways = [(socket, admission), *more]
    for each, _ in ways:
        each.taken = True
    ports = numbers([each.port for each, _ in ways])
    return len(ways), ports, numbers([field for _, each in ways for field in each.fields])


class Engine:
    """As `_native.Engine`: the product's engine, driven by the network while a thread waits in it."""

    processes: Final[dict[int, Engine]] = {}  # by host
    late: Final = 0  # nobody here sums without slots
    current_thread: Callable[[], Thread | None]

    def __init__(
        self,
        socket: Socket,
        admission: Admission,
        checked: bool = False,
        secret: object = None,
        more: Sequence[tuple[Socket, Admission]] = (),
        shares: bool = False,
    ) -> None:
        assert not checked
        assert not secret
        assert not shares
        thread = Engine.current_thread()
        assert thread is not None
        self.process: Process = thread.process
        self.host = socket.host
        library.checked("engine_open", self.host, *_ways(socket, admission, more))
        self._waiters: Waiters = []
        self._pause = -1
        Engine.processes[self.host] = self

    def news(self) -> None:
        """Something has happened in the engine: whoever waits looks again."""
        if self.process.dead:
            return
        if self._pause >= 0 and self.frozen and self.halted:
            self.process.scheduler.wake_ups[self._pause].set()
        self.process.scheduler.wake(self._waiters)

    def _call(self, name: str, *arguments: Any) -> int:
        self.process.check()
        return library.checked(name, self.host, *arguments)

    def _change(self, name: str, *arguments: Any) -> int:
        found = self._call(name, *arguments)
        self.news()
        return found

    @contextmanager
    def _driving(self) -> Iterator[None]:
        library.worker_drivers(self.host, 1)
        try:
            yield
        finally:
            if not self.process.dead:
                library.worker_drivers(self.host, -1)

    def _wait(self, slice_ns: int, done: Callable[[], bool]) -> None:
        scheduler = self.process.scheduler
        until = scheduler.now + slice_ns
        if done():
            return
        with self._driving():
            while not done() and scheduler.now < until:
                scheduler.block(self._waiters, until)

    def submit(self, call: Call, timeout_ns: int, background: bool, generation: int = 0) -> Collective | None:
        number = self._call(
            "engine_submit", ctypes.byref(call.fields), timeout_ns, int(background), generation
        )
        return None if number == -2 else Collective(self, number, call)

    def wait(self, work: Collective, slice_ns: int) -> int:
        self._wait(slice_ns, lambda: work.status != PENDING)
        return work.status

    def finish(self, complete_to: int, slice_ns: int) -> bool:
        self._change("engine_finish", complete_to)
        self._wait(slice_ns, lambda: self.halted or self.broken)
        return bool(self._call("engine_finish", complete_to))

    def freeze(self) -> int:
        return self._change("engine_freeze")

    def resume(
        self, socket: Socket, admission: Admission, lost: bool, more: Sequence[tuple[Socket, Admission]]
    ) -> bool:
        return bool(self._change("engine_resume", *_ways(socket, admission, more), int(lost)))

    def suspend(self) -> list[int]:
        lowest = (ctypes.c_uint64 * MAX_STRIPES)()
        return list(lowest[: self._change("engine_suspend", lowest)])

    def move(self, socket: Socket, admission: Admission, first: int, stripe: int, more: bool) -> bool:
        socket.taken = True
        return bool(self._change("engine_move", socket.port, admission.fields, first, stripe, int(more)))

    @property
    def refused(self) -> list[int]:
        into = (ctypes.c_uint64 * MAX_STRIPES)()
        return list(into[: self._call("engine_refused", into)])

    def request_pause(self) -> None:
        self._call("engine_request_pause")

    def set_pause_eventfd(self, descriptor: int) -> None:
        self._pause = descriptor

    def fail_from(self, begun: int) -> None:
        self._change("engine_fail_from", begun)

    def abort(self) -> None:
        self._change("engine_abort")

    def close(self) -> None:
        self._change("engine_close")

    def abandon(self) -> None:
        raise AssertionError("nobody forks")

    def set_policy(self, word: int) -> None:
        self._call("engine_set_policy", word)

    def silence_ns(self, completed: int) -> int:
        return self._call("engine_silence", completed)

    def probe(self, timeout_ns: int) -> bool:
        self.process.sleep(timeout_ns / SECOND)
        return False

    def _field(self, index: int) -> int:
        into = (ctypes.c_int64 * 5)()
        self._call("engine_fields", into)
        return into[index]

    def _flag(self, bit: int) -> bool:
        return bool(self._call("engine_fields", (ctypes.c_int64 * 5)()) >> bit & 1)

    begun = property(lambda self: self._field(0))
    completed = property(lambda self: self._field(1))
    generation = property(lambda self: self._field(2))
    calls = property(lambda self: self._field(3))
    policy = property(lambda self: self._field(4))
    frozen = property(lambda self: self._flag(0))
    halted = property(lambda self: self._flag(1))
    broken = property(lambda self: self._flag(2))
    recovering = property(lambda self: self._flag(3))
    damage = unhealed = None  # packets have no check words
    pause_requested = property(lambda self: self._flag(4))
    replaying = property(lambda self: self._flag(5))

    def stats(self) -> dict[str, int]:
        into = (ctypes.c_int64 * 5)()
        self._call("engine_stats", into)
        return dict(zip(("refused", "retransmissions", "results", "positions", "rto_ns"), into, strict=True))

    def report(self) -> list[int]:
        into = (ctypes.c_uint64 * 64)()
        return list(into[: self._call("engine_report", into)])


class HeartbeatSender:
    """As `_native.HeartbeatSender`: a thread of the simulation."""

    deliver: Callable[[Process, bytes, int, list[int]], None]  # set by whoever has the controller

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._series = 0  # of the present controller
        self.sent = 0

    def start(self, ip: int, port: int, cookie: bytes, interval_ns: int) -> None:
        process = self._engine.process
        self._series += 1
        series = self._series
        baseline = self._engine.report()

        def program() -> None:
            number = 0
            while self._series == series:
                number += 1
                report = self._engine.report()
                counts = [
                    now if field in _GAUGES else max(0, now - before)
                    for field, (now, before) in enumerate(zip(report, baseline, strict=True))
                ]
                HeartbeatSender.deliver(process, cookie, number, counts)
                self.sent += 1
                process.sleep(interval_ns / SECOND)

        process.run(program, "heartbeats")

    def close(self) -> None:
        self._series += 1

    def abandon(self) -> None:
        raise AssertionError("nobody forks")


class KnownCall(NamedTuple):
    """As `_native.KnownCall`."""

    generation: int
    call: Call
    label: object
    called: Callable[[], str]


class Caller:
    """As `_native.Caller`; its keys are of arrays that nobody moves."""

    inside = 0

    def __init__(self, engine: Engine, slice_ns: int) -> None:
        self._engine, self._slice_ns = engine, slice_ns
        self.known: dict[Any, KnownCall] = {}
        self._records: deque[tuple[Callable[[], str], Collective]] = deque(maxlen=32)

    def run(self, begun: list[tuple[Collective, KnownCall]], seconds: float, known: KnownCall) -> bool:
        if not seconds > 0 or self._engine.broken:
            return False
        work = self._engine.submit(known.call, int(min(seconds, 1e9) * 1e9), False, known.generation)
        if work is None:
            return False
        self.note(known.called, work)
        if self._engine.wait(work, self._slice_ns) == DONE and work.generation == known.generation:
            return True
        begun.append((work, known))
        return False

    def allreduce(
        self, begun: list[tuple[Collective, KnownCall]], seconds: float, x: Any, out: Any, *options: object
    ) -> bytes | bool:
        arrays = [(each.ctypes.data, each.shape, each.dtype.str) for each in (x, out) if each is not None]
        key = repr((arrays, options)).encode()
        known = self.known.get(key)
        return (known is not None and self.run(begun, seconds, known)) or key

    def note(self, called: Callable[[], str], work: Collective) -> None:
        self._records.append((called, work))

    def recent(self) -> list[tuple[Callable[[], str], Collective]]:
        return list(self._records)


def install(thread: Callable[[], Thread | None]) -> None:
    """Puts the stand-ins in the places of the product's classes; `thread` returns the one that calls."""
    Engine.current_thread = staticmethod(thread)
    Engine.processes.clear()
    for stand_in in (Admission, Call, KnownCall, Caller, Socket, Engine, HeartbeatSender):
        setattr(_native, stand_in.__name__, stand_in)
