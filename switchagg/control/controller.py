"""Runs the life cycle of jobs against switches, for callers in many threads.

    HTTP ---- calls ----> Controller --.
      |                   Queries ------> ControllerCore <-- reports -- Agent -- SwitchDriver --> a switch
      |                                     one lock,    <-- reports -- Agent -- SwitchDriver --> another
      `<- EventStream: events ------------- JobBook, Journal -- one thread --> Store

`Controller` has the calls of tenants and members, `Queries` those that change nothing. `ControllerCore` has
the lock, the threads and the order of effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from switchagg.control.answers import AdmittedView, JobView, SwitchView
from switchagg.control.controller_core import ControllerCore
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs.effects import ChangeStep
from switchagg.control.jobs.job import Job, Member
from switchagg.control.jobs.records import EventStream, JobSpec, JobState, JoinRequest, MemberState, Tenant
from switchagg.control.queries import Queries
from switchagg.control.store import Store
from switchagg.control.tenants import Tenants
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.wiring import Attachment
from switchagg.runtime import SYSTEM, Runtime


class Controller:
    """Owns the jobs of some switches, from `start()` to `close()`.

    Args:
        drivers: the switches. The controller does not close them.
        store: keeps what survives a restart; by default nothing does. The controller does not close it.
        words, slots: K and P of jobs whose ranks ask for none; None takes what suits the switch.
        policy: the skip policy of all jobs; None tunes each by its members' heartbeats.
        wiring: the attachments of switches, by name. By default no switch has a parent, and workers attach
            to any.
        runtime: time, threads and random numbers.

    Attributes:
        queries: the read-only calls.
        outcomes: joins by outcome: ``admitted``, or the code of the refusal.

    Raises `UsageError` for defaults that do not fit a switch, two switches of one name, or wiring that is no
    tree.

    Methods that a tenant calls raise `AdmissionError` if they are refused; nothing has changed then. They
    raise another `SwitchError` if the store does not take what has changed: a restart would undo it.
    """

    def __init__(
        self,
        drivers: Sequence[SwitchDriver],
        *,
        store: Store | None = None,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
        wiring: Mapping[str, Attachment] | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.store = store or Store()
        self.tenants = Tenants(self.store, runtime)
        self._core = ControllerCore(drivers, self.store, words, slots, policy, wiring or {}, runtime)
        self._book = self._core.book
        self._now = runtime.monotonic
        self.queries = Queries(self._core)
        self.outcomes = self._core.outcomes

    def start(self, heartbeat_address: tuple[str, int] | None = None) -> None:
        """Takes over an earlier controller's jobs, and has members send heartbeats to `heartbeat_address`.

        Raises `SwitchError` if the store cannot be read.
        """
        self._core.start(heartbeat_address)

    def close(self) -> None:
        """Refuses pending joins, tells members and closes their streams. Safe to call twice.

        Jobs end, unless the store survives: then they stay on their switches, and their members can attach to
        the next controller.
        """
        self._core.close()

    @property
    def busy(self) -> bool:
        """True while a job has admitted ranks that have not all left."""
        with self._core.lock:
            return any(member.admission for job in self._book.table.jobs() for member in job.joined())

    # Calls of tenants.

    def create(self, tenant: Tenant, spec: JobSpec) -> JobView:
        """Orders a job and returns it: it has its slots, or is queued. One that is not kept is not there."""
        job = None
        try:
            with self._core.changing(keep=True) as book:
                job = book.create(tenant, spec, self._now())
                view = self.queries.job_view(job)
        except SwitchError:
            if job is not None:
                with self._core.changing() as book:
                    if job.state is not JobState.ended:
                        book.evict(job, "the controller, which cannot keep it")
            raise
        return view

    def evict(self, tenant: Tenant, name: str, job_id: int | None = None) -> JobView:
        """Ends a job now, whatever its members do, and returns it."""
        return self._end(tenant, name, job_id, self._book.evict)

    def drain(self, tenant: Tenant, name: str, job_id: int | None = None) -> JobView:
        """Admits no one else to a job, which ends when its members have left; returns it."""
        return self._end(tenant, name, job_id, self._book.drain)

    def _end(
        self, tenant: Tenant, name: str, job_id: int | None, change: Callable[[Job, str], None]
    ) -> JobView:
        with self._core.changing(keep=True):
            job = self._core.find(tenant, name, job_id)
            if job is None:
                raise AdmissionError(f"there is no job {name[:128]!r}", "not_found")
            change(job, tenant.who)
            return self.queries.job_view(job)

    def drain_switch(self, tenant: Tenant, name: str) -> SwitchView:
        """Places no new job on a switch, and moves its jobs as they allow it; returns the switch."""
        return self._set_draining(tenant, name, True)

    def undrain_switch(self, tenant: Tenant, name: str) -> SwitchView:
        """Places new jobs on a switch again; returns it."""
        return self._set_draining(tenant, name, False)

    def _set_draining(self, tenant: Tenant, name: str, draining: bool) -> SwitchView:
        if not tenant.admin:
            raise AdmissionError("switches are the administrators' affair", "forbidden")
        with self._core.changing(keep=True) as book:
            if name not in self._core.drivers:
                raise AdmissionError(f"there is no switch {name[:128]!r}", "not_found")
            self._core.keep(switches={name: draining})
            book.set_draining(name, draining, tenant.who)
            return self.queries.switch_view(name, tenant)

    # Calls of members.

    def join(self, tenant: Tenant, name: str, request: JoinRequest, stream: EventStream) -> None:
        """Adds a rank to a job. `stream` gets the event ``admitted``, or is refused, once that is known."""
        with self._core.changing() as book:
            if self._core.closed:
                raise AdmissionError("the controller is stopping", "stopping")
            try:
                member = book.join(tenant, name, request, self._now())
            except AdmissionError as error:
                self.outcomes[error.code] += 1
                raise
            self._core.streams.open(member, stream)

    def attach(self, tenant: Tenant, name: str, rank: int, token: int, stream: EventStream) -> None:
        """Gives an admitted rank a new stream, which gets ``admitted`` again; an older one is closed."""
        with self._core.changing() as book:
            member = self._present(tenant, name, rank, token)
            if member.job.state is JobState.failed:
                # The event that told it so went to a stream that is gone.
                raise AdmissionError(f"job {name!r} has failed: {member.job.why}", "failed")
            self._core.streams.open(member, stream)
            book.attached(member, self._core.admitted(member), self._now())

    def stream_closed(self, stream: EventStream) -> None:
        """A connection has ended. Its member is lost, unless it has a newer stream or has left.

        One that attached a moment ago has a moment for a sign of life.
        """
        with self._core.changing() as book:
            member = self._core.streams.closed(stream)
            if member is not None and not self._core.closed:
                book.stream_ended(member, self._now())

    def leave(
        self,
        tenant: Tenant,
        name: str,
        rank: int,
        token: int,
        begun: int | None = None,
        completed: int | None = None,
        why: str | None = None,
    ) -> None:
        """A rank leaves its job.

        Args:
            begun, completed: numbers of collectives that it has begun and completed, if known.
            why: the exception that ends it; None if it leaves in order.
        """
        with self._core.changing() as book:
            member = book.table.member(tenant.name, name, rank, token)
            book.leave(member, begun, completed, why, token)

    def heartbeat(
        self, cookie: bytes, sequence: int, fields: Mapping[str, int], now: float | None = None
    ) -> bool:
        """Takes a heartbeat. Returns False if no member has this cookie.

        Args:
            sequence: grows by one from heartbeat to heartbeat; late ones are ignored.
            fields: counts since the join, named as in `switchagg.wire.heartbeat`.
            now: on the runtime's clock.
        """
        now = self._now() if now is None else now
        with self._core.changing() as book:
            member = book.heard(cookie, now)
            if member is None:
                return False
            if sequence > member.heartbeats:
                member.heartbeats = sequence
                self._count(member, fields, now)
            return True

    def beat(
        self, tenant: Tenant, name: str, rank: int, token: int, report: Mapping[str, int] | None = None
    ) -> None:
        """Takes a heartbeat of a rank that shows its token. `report` is as `fields` of `heartbeat`."""
        now = self._now()
        with self._core.changing() as book:
            member = self._present(tenant, name, rank, token)
            book.heard(member.cookie, now)
            if report is not None:
                self._count(member, report, now)

    def _count(self, member: Member, counts: Mapping[str, int], now: float) -> None:
        decision = self._core.telemetry.heard(member, counts, now)
        if decision is not None:
            self._book.set_policy(member.job, decision.policy, decision.why, now)

    def progress(
        self, tenant: Tenant, name: str, rank: int, token: int, completed: int, *, replaying: bool = False
    ) -> Future[int]:
        """A rank has paused for a change of membership after so many collectives.

        Returns the number up to which it must complete them, once all the others have reported theirs.

        Args:
            replaying: it lacks RESULTs of the present switch, of collectives that it has completed.
        """
        with self._core.changing() as book:
            member = self._present(tenant, name, rank, token)
            with self._core.streams.call(member, ChangeStep.progress) as future:
                book.changes.progress(member, completed, token, replaying=replaying)
            return future

    def proceed(
        self, tenant: Tenant, name: str, rank: int, token: int, address: str, ports: Sequence[int]
    ) -> Future[AdmittedView]:
        """A rank is done with the old generation of its job, and will send from this address and these ports.

        Returns the event ``admitted`` of the new generation, once it is open.
        """
        with self._core.changing() as book:
            member = self._present(tenant, name, rank, token)
            with self._core.streams.call(member, ChangeStep.proceed) as future:
                book.changes.proceed(member, address, ports, token)
            return future

    def replay(
        self,
        tenant: Tenant,
        name: str,
        rank: int,
        token: int,
        lowest: Sequence[int],
        address: str,
        ports: Sequence[int],
        *,
        stripe: int = 0,
        damaged: bool = False,
    ) -> Future[AdmittedView]:
        """A stripe's switch is gone: a rank lacks RESULTs from packets `lowest` on, and has new ports.

        With `damaged` the switch is there, and gives wrong sums. Returns the event ``admitted`` of the switch
        where the job goes on, once it is installed there.
        """
        with self._core.changing() as book:
            member = self._present(tenant, name, rank, token)
            with self._core.streams.call(member, ChangeStep.replay) as future:
                book.failovers.report(member, token, lowest, address, ports, stripe=stripe, damaged=damaged)
            return future

    def _present(self, tenant: Tenant, name: str, rank: int, token: int) -> Member:
        member = self._book.table.member(tenant.name, name, rank, token)
        if member.state is MemberState.lost:
            raise AdmissionError(f"rank {rank} of job {name!r} is lost: {member.why}", "lost")
        if member.state is MemberState.left:
            raise AdmissionError(f"rank {rank} has left job {name!r}", "lost")
        return member
