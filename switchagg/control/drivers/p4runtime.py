"""`P4RuntimeDriver`: a switch that runs one of our P4 programs, or a native one, reached over P4Runtime.

    controller --calls--> P4RuntimeDriver --> Link (thread) --> Client --gRPC--> switch
                              |    `--> Layout, Schema: jobs as rows
                              `<-- INITs' echoes, changes of the switch

Every call takes one batch of writes, or of reads, or a few. What is written is remembered only to count and
to take it off again: what a switch holds is read back whenever it has been away (`reconcile`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from switchagg.addresses import is_loopback
from switchagg.errors import SwitchAggError, SwitchError, UsageError
from switchagg.p4program import frames as p4_frames
from switchagg.p4runtime.client import pipeline as p4rt_pipeline
from switchagg.p4runtime.client.connection import Client, Link
from switchagg.p4runtime.client.layout import InstalledJob, Layout
from switchagg.p4runtime.client.pipeline import Program
from switchagg.p4runtime.client.rows import Schema
from switchagg.p4runtime.client.spec import P4RuntimeSpec
from switchagg.p4runtime.client.tables import Tables
from switchagg.rules.slots import JobEntry, SlotState
from switchagg.rules.switch import Capacity, Reconciled, SwitchChange
from switchagg.wire.header import COUNTERS, Header, Op, WireError

_PATIENCE: Final = 0.25  # seconds without an echo, after which the missing ones are lost
_IN_FLIGHT: Final = 128  # packets for the switch that have not come back

_log = logging.getLogger(__name__)


class P4RuntimeDriver:
    """Drives one switch; `SwitchDriver` says what each member is.

    It connects at once and keeps connected; where the switch cannot be reached within the spec's timeout, its
    capacity is what the spec says of it.

    Raises `UsageError` for files of the spec that are missing or hold something else.
    """

    def __init__(self, spec: P4RuntimeSpec) -> None:
        self._spec = spec
        self._wanted = p4rt_pipeline.wanted_pipeline(spec)
        self._program: Program = p4rt_pipeline.expected(spec, self._wanted)
        self._layout: Layout | None = None
        self._common_written = False
        self._jobs: dict[int, InstalledJob] = {}
        self._before: dict[int, Counter[str]] = {}
        self._gone: Counter[str] = Counter()
        self._echoes: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self.writes: Counter[str] = Counter()
        """Updates sent: insert, modify, delete, clear (a cell of a counter); and pushes of the program."""
        self._link = Link(spec, self._prepare, self._heard)
        self._link.start()
        self._link.wait(spec.timeout)

    # ---- what it is ----

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def target(self) -> str:
        return self._program.target

    @property
    def capacity(self) -> Capacity:
        return self._program.capacity

    @property
    def address(self) -> tuple[str, int]:
        own = self._spec.own or self._program.own
        return ("0.0.0.0", 0) if own is None else (own.ip, own.udp_port)

    @property
    def receive_buffer(self) -> int:
        return self._spec.receive_buffer or self._program.receive_buffer

    @property
    def link(self) -> str:
        return self._program.link

    @property
    def threads(self) -> int:
        return self._program.threads

    @property
    def memory(self) -> str:
        return ""  # packets have to reach it: it may be replaced by another switch

    @property
    def warnings(self) -> list[str]:
        host = self._spec.server.rpartition(":")[0].strip("[]")
        if self._spec.tls or is_loopback(host):
            return []
        return [
            f"P4Runtime to switch {self.name} at {self._spec.server} is not encrypted: who can read "
            "that network reads the jobs' tokens; give tls, ca, cert and key, or keep it to the switches"
        ]

    # ---- coming and going ----

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        self._link.watch(callback)

    def close(self) -> None:
        self._link.close()

    def _prepare(self, client: Client) -> bool:
        """Makes a switch that has just been reached usable; returns whether it has forgotten our jobs."""
        with self._lock:
            running = client.pipeline()
            pushed = p4rt_pipeline.must_push(running, self._wanted)
            if pushed and self._wanted is not None:
                self.writes["push"] += 1
                client.push(self._wanted.p4info, self._wanted.config, self._wanted.cookie)
                p4info = self._wanted.p4info
            else:
                p4info = running.p4info
            program = p4rt_pipeline.describe(self._spec, p4info)
            schema = Schema(p4info)
            schema.packet_field("packet_out", "port")
            layout = Layout(self._spec, program, schema)
            tables = Tables(client, layout, self.writes)
            forgotten = False
            if self._jobs:
                # The last entry to be written of each, so that a job is told from the half of one.
                there = tables.admission_keys()
                resized = program.capacity != self._program.capacity
                forgotten = (
                    pushed or resized or any(job.rows[-1].key not in there for job in self._jobs.values())
                )
            self._program, self._layout = program, layout
            self._common_written = False
            return forgotten

    def _heard(self, frame: bytes) -> None:
        try:
            self._echoes.put(p4_frames.packet_in(b"\0\0" + frame))
        except UsageError as error:
            _log.warning("switch %s: %s", self.name, error)

    def _tables(self) -> tuple[Tables, Layout]:
        """Raises `SwitchError` where the switch cannot be used now."""
        client = self._link.client()
        assert self._layout is not None
        return Tables(client, self._layout, self.writes), self._layout

    # ---- jobs ----

    def install_job(self, entry: JobEntry) -> None:
        with self._call("installing a job"):
            tables, layout = self._tables()
            if entry.job in self._jobs:
                raise SwitchError(f"there is a job {entry.job} already")
            holding = layout.holding(entry, layout.free_index(job.place.index for job in self._jobs.values()))
            if not self._common_written:
                tables.write(layout.common_difference(tables.read()))
                self._common_written = True
            self._clear(tables, holding)
            tables.insert(holding)
            self._jobs[entry.job] = holding

    def remove_job(self, job_id: int) -> None:
        with self._call("removing a job"):
            holding = self._job(job_id)
            try:
                tables, _ = self._tables()
                counts = self._since(job_id, tables.counts(holding))
                tables.remove(holding)
                self._gone.update({name: counts[name] for name in COUNTERS})
            finally:
                # Entries that could not be taken off are nobody's, and go when the switch is reconciled.
                del self._jobs[job_id]
                self._before.pop(job_id, None)

    def fence(self, job_id: int, bits: int) -> None:
        with self._call("fencing a worker"):
            holding = self._job(job_id)
            full = sum(1 << worker.bit for worker in holding.entry.workers)
            if bits & ~full:
                raise SwitchError(f"bits is {bits:#x}; the workers of job {job_id} have {full:#x}")
            tables, layout = self._tables()
            made = layout.holding(holding.entry, holding.place.index, holding.fenced | bits)
            before = tables.counts(holding)
            tables.shut(made)
            self._jobs[job_id] = made
            # Entries take their counts with them.
            lost = before - tables.counts(made)
            self._before.setdefault(job_id, Counter()).subtract(lost)

    def reconcile(self, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Reconciled:
        with self._call("reconciling"):
            tables, layout = self._tables()
            there = tables.read()
            outcome = layout.difference(there, entries, fenced).outcome
            kept = [entry for entry in entries if entry.job in outcome.kept]
            difference = layout.difference(there, kept, fenced)
            tables.write(difference)
            for job_id in self._jobs.keys() - difference.jobs.keys():
                self._before.pop(job_id, None)
            self._jobs = difference.jobs
            self._common_written = True
            return outcome

    def _job(self, job_id: int) -> InstalledJob:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise SwitchError(f"there is no job {job_id}") from None

    def _clear(self, tables: Tables, holding: InstalledJob) -> None:
        """Counters of a job begin at zero; where they cannot be written, at what they are."""
        cleared = tables.clear(holding)
        self._before[holding.entry.job] = Counter() if cleared else tables.counts(holding)

    def _since(self, job_id: int, counts: Counter[str]) -> dict[str, int]:
        before = self._before.get(job_id, Counter())
        return {name: count - before[name] for name, count in counts.items()}

    @contextmanager
    def _call(self, doing: str) -> Iterator[None]:
        """Runs one call alone. An error gets the switch's name, and makes the link look at the switch."""
        try:
            with self._lock:
                yield
        except SwitchAggError as error:
            self._link.suspect()
            raise SwitchError(f"switch {self.name} ({self._spec.server}), {doing}: {error}") from error

    # ---- packets ----

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        with self._call("sending INITs"):
            client, layout = self._link.client(), self._layout
            assert layout is not None
            ports = self._program.ports
            values = {"padding": 0, "port": ports.packet_out_port}
            fields = {layout.schema.packet_field("packet_out", name): value for name, value in values.items()}
            echoes: list[bytes] = []
            while not self._echoes.empty():
                echoes.append(self._echoes.get())
            waiting = Counter(packets)
            left = len(packets)
            sent = 0
            end = time.monotonic() + _PATIENCE
            while left:
                while sent < len(packets) and sent - (len(packets) - left) < _IN_FLIGHT:
                    frame = p4_frames.packet_out(ports, layout.own, packets[sent])[2:]
                    client.packet_out(frame, fields)
                    sent += 1
                try:
                    echo = self._echoes.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
                echoes.append(echo)
                if _is_init(echo):  # also of a former call: a slow switch comes to these later
                    end = time.monotonic() + _PATIENCE
                if waiting[echo]:
                    waiting[echo] -= 1
                    left -= 1
            return echoes

    # ---- counters ----

    def counters(self) -> Mapping[str, int]:
        with self._call("reading counters"):
            tables, _ = self._tables()
            strangers, jobs = tables.all_counts(list(self._jobs.values()))
            counts = Counter(self._gone)
            counts.update(strangers)
            counts["received"] += strangers.total()
            for job_id, each in jobs.items():
                counts.update(self._since(job_id, each))
            return {name: counts[name] for name in COUNTERS}

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        with self._call("reading counters"):
            holding = self._job(job_id)
            tables, _ = self._tables()
            return self._since(job_id, tables.counts(holding))

    def slot(self, index: int) -> SlotState | None:  # noqa: ARG002 (bmv2 serves no registers)
        return None


def _is_init(packet: bytes) -> bool:
    try:
        return Header.unpack(packet).op is Op.INIT
    except WireError:
        return False
