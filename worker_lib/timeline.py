"""A rank's record of all its collectives, in a file: `connect(timeline=...)` or SWITCHAGG_TIMELINE.

    SessionState.submit --Timeline.add--> collectives that have not ended --write--> JOB.rank0.PID.jsonl
    switchagg trace <------------------------------RankTimeline.read------------------------+

Lines of JSON. The first is an object and describes the rank: the fields of `TimelineHeader`. Each of the
others is an array and describes a collective that has ended: the fields of `TimelineRecord`, in their order.
The threads that call collectives write, at most once a second: a killed process loses its last second.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from switchagg.errors import UsageError
from switchagg.runtime import Runtime
from worker_lib import _native
from worker_lib.membership import Generation

FORMAT: Final = 1
VARIABLE: Final = "SWITCHAGG_TIMELINE"
PENDING: Final = 0
STATUSES: Final = ("pending", "done", "mismatch", "timed out", "aborted", "lost", "withdrawn", "damaged")
_EVERY: Final = 1.0  # seconds between two writes
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class TimelineHeader:
    """The rank that a file is of.

    Attributes:
        switchagg_timeline: version of the format.
        job: its name.
        rank, world_size: when it joined.
        host, pid: of its process.
        clock: identifies the clock of all times in the file: processes with the same one share it.
        monotonic, unix: nanoseconds of that clock, and since 1970, at one moment.
        transport: the way of the packets.
    """

    switchagg_timeline: int
    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    clock: str
    monotonic: int
    unix: int
    transport: str


@dataclass(frozen=True, slots=True)
class TimelineRecord:
    """A collective at a rank. Times are nanoseconds of the file's clock; 0: it did not get there.

    Attributes:
        membership: the controller's number of the membership that it belongs to, the same at all ranks.
        number: of the call in that membership, the same at all ranks.
        rank: of this process in it.
        call: "allreduce(float32, shape (10,), sum, 32 bits)".
        status: one of `STATUSES`.
        background: nobody had to wait for it to begin.
        called: when the program called it.
        begun: when its turn came, and the engine sent its header.
        opened: when the header's RESULT came, and so every rank had begun it.
        ended: when its result was there.
        packets, results: packet numbers that it took, and RESULTs that came.
        again: retransmissions: when, and how many packets.
    """

    membership: int
    number: int
    rank: int
    call: str
    status: str
    background: bool
    called: int
    begun: int
    opened: int
    ended: int
    packets: int
    results: int
    again: tuple[tuple[int, int], ...]


class Timeline:
    """Writes one session's file. Any thread may call; the caller of `add` orders its calls.

    Args:
        folder: for the file; made where it does not exist.
        job, rank, world_size, transport: as in `TimelineHeader`.
        generations: memberships by the engine's number.
        runtime: time.

    Raises:
        UsageError: the folder or the file cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        job: str,
        rank: int,
        world_size: int,
        transport: str,
        generations: Sequence[Generation],
        runtime: Runtime,
    ) -> None:
        self._generations = generations
        self._runtime = runtime
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_native.Collective, Callable[[], str], bool]] = deque()
        header = TimelineHeader(
            FORMAT, job, rank, world_size, socket.gethostname(), os.getpid(), _clock(),
            round(runtime.monotonic() * 1e9), round(runtime.unix() * 1e9), transport,
        )  # fmt: skip
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = _create(Path(folder), f"{job}.rank{rank}.{os.getpid()}")
        except OSError as error:
            raise UsageError(f"timeline is {os.fspath(folder)!r}: {error.strerror}") from None
        self._write(json.dumps(asdict(header)) + "\n")
        self._next = runtime.monotonic() + _EVERY

    def add(self, native: _native.Collective, called: Callable[[], str], *, background: bool) -> None:
        """Records a collective, which `called` names, once it has ended."""
        self._waiting.append((native, called, background))

    def write(self, *, all_of_them: bool = False) -> None:
        """Writes what has ended, if the last time is long enough ago; or everything, at the session's end."""
        now = self._runtime.monotonic()
        if not all_of_them and now < self._next:
            return
        with self._lock:
            self._next = now + _EVERY
            lines = []
            while self._waiting and (all_of_them or self._waiting[0][0].status != PENDING):
                native, called, background = self._waiting.popleft()
                # The one that it ended in: it may have been called in an earlier one, and not begun there.
                here = self._generations[native.generation]
                record = (  # the fields of a TimelineRecord
                    here.job, native.call_number, here.rank, called(), STATUSES[native.status], background,
                    native.submitted_at, native.begun_at, native.opened_at, native.ended_at,
                    native.packets, native.results, native.again,
                )  # fmt: skip
                lines.append(json.dumps(record) + "\n")
            if lines:
                self._write("".join(lines))

    def close(self) -> None:
        """Writes everything and closes the file. Safe to call twice."""
        self.write(all_of_them=True)
        self.abandon()

    def abandon(self) -> None:
        """Closes the file and writes nothing: in a forked child."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _write(self, text: str) -> None:
        """Writes at once, not through a buffer that a forked child would write again.

        A disk that fails ends the record, not the training.
        """
        if self._descriptor is None:
            return
        try:
            rest = text.encode()
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            logging.getLogger("switchagg").warning("switchagg: the timeline ends here: %s", error.strerror)
            self.abandon()


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """A file that was read: its header and its records, in the order of calls."""

    path: Path
    header: TimelineHeader
    records: tuple[TimelineRecord, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file; a last line that is cut off, as a kill leaves it, is passed over.

        Raises:
            UsageError: it cannot be read, or is no timeline, or one of another version.
        """
        try:
            *lines, _ = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        number = 1
        try:
            first = json.loads(lines[0])
            if (version := first["switchagg_timeline"]) != FORMAT:
                raise UsageError(f"{path} has version {version!r} of the format; accepted: {FORMAT}")
            header = _made(TimelineHeader, first)
            names = [field.name for field in fields(TimelineRecord)]
            records = []
            for number, line in enumerate(lines[1:], 2):  # noqa: B007  (for the message)
                given = dict(zip(names, json.loads(line), strict=True))
                given["again"] = tuple((int(at), int(packets)) for at, packets in given["again"])
                records.append(_made(TimelineRecord, given))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(
                f"{path}, line {number}, is not a timeline's ({type(error).__name__}: {error}); "
                f"accepted: files that {VARIABLE}=FOLDER or connect(timeline=) makes"
            ) from None
        return cls(path, header, tuple(records))


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """Makes a header or record of what a line has, checking the types of its fields."""
    wanted = {"int": int, "str": str, "bool": bool}
    for field in fields(kind):
        value = given[field.name]
        if (accepted := wanted.get(str(field.type))) is not None and type(value) is not accepted:
            raise TypeError(f"{field.name} is {value!r}")
    return kind(**{field.name: given[field.name] for field in fields(kind)})


def _clock() -> str:
    """The kernel's boot and the time namespace: the monotonic clock is the same where both are."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # nobody else's


def _create(folder: Path, name: str) -> int:
    name = re.sub(r"[^\w.-]", "_", name)
    count = 1
    while True:
        path = folder / (f"{name}.jsonl" if count == 1 else f"{name}-{count}.jsonl")
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            count += 1
