"""Runs the life cycle of jobs (`jobs.py`) against switches, for callers in many threads.

    HTTP ---- calls ----> Controller <---- answers ---- Agent -- SwitchDriver --> a switch
      ^                    one lock                     Agent -- SwitchDriver --> another
      |                      book
      +-- EventStream: events ------+------ the store

Here is what tenants and members ask for; `looking.py` has what people look at, and
`shell.py` the lock, the threads and the order in which things are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from switchagg.control.answers import AdmittedView, JobView, SwitchView
from switchagg.control.controller_core import refuse
from switchagg.control.history import History
from switchagg.control.jobs.effects import (
    Question,
)
from switchagg.control.jobs.job import Member
from switchagg.control.jobs.records import (
    EventStream,
    JobSpec,
    JobState,
    JoinRequest,
    MemberState,
    Tenant,
)
from switchagg.control.jobs.tuning import Tuning
from switchagg.control.queries import Looking
from switchagg.control.store import Changes
from switchagg.errors import AdmissionError


class Controller(Looking):
    """Owns the jobs of some switches, from `start()` to `close()`.

    Args:
        drivers: the switches. The controller does not close them.
        store: what survives a restart; by default nothing does. The controller does not close it.
        words, slots: of a job whose ranks ask for nothing; None takes what suits its switch.
        policy: the skip policy of all jobs; None lets each be tuned from what its members report.
        wiring: by name, how switches are wired; by default none is another's parent, and workers attach to
            any.

    Raises `UsageError` for defaults that a switch has no room for, two switches of one name, or a tree that
    cannot be.

    Methods that a tenant calls raise `AdmissionError` where they are refused; nothing has changed then.
    """

    # What tenants ask for.

    def create(self, tenant: Tenant, spec: JobSpec) -> JobView:
        """Orders a job and returns it: it has its slots, or is queued."""
        with self._changing():
            return self._describe(self._book.create(tenant, spec, time.monotonic()))

    def evict(self, tenant: Tenant, name: str, job_id: int | None = None) -> JobView:
        """Ends a job now, whatever its members do, and returns it as it is then."""
        with self._changing():
            job = self._found(tenant, name, job_id)
            self._book.evict(job, tenant.who)
            return self._describe(job)

    def drain(self, tenant: Tenant, name: str, job_id: int | None = None) -> JobView:
        """Lets no one else into a job, which ends when its members have left; returns it."""
        with self._changing():
            job = self._found(tenant, name, job_id)
            self._book.drain(job, tenant.who)
            return self._describe(job)

    def drain_switch(self, tenant: Tenant, name: str) -> SwitchView:
        """Puts no new job on a switch, and moves those there as they allow it; returns the switch."""
        return self._set_draining(tenant, name, self._book.drain_switch, True)

    def undrain_switch(self, tenant: Tenant, name: str) -> SwitchView:
        """Lets a switch have new jobs again; returns it."""
        return self._set_draining(tenant, name, self._book.undrain_switch, False)

    def _set_draining(
        self, tenant: Tenant, name: str, change: Callable[[str, str], None], draining: bool
    ) -> SwitchView:
        if not tenant.admin:
            raise AdmissionError("switches are the administrators' affair", "forbidden")
        with self._changing():
            if name not in self._drivers:
                raise AdmissionError(f"there is no switch {name[:128]!r}", "not_found")
            self._keep(Changes(switches={name: draining}))
            change(name, tenant.who)
            return self._switch(name, tenant)

    # What members ask for.

    def join(self, tenant: Tenant, name: str, request: JoinRequest, line: EventStream) -> None:
        """A rank wants in. `line` gets the event ``admitted``, or is refused, when that is known."""
        with self._changing():
            if self._closed:
                raise AdmissionError("the controller is stopping", "stopping")
            try:
                member = self._book.join(tenant, name, request, time.monotonic())
            except AdmissionError as error:
                self.outcomes[error.code] += 1
                raise
            self._lines[member] = line
            self._members[line] = member

    def attach(self, tenant: Tenant, name: str, rank: int, token: int, line: EventStream) -> None:
        """An admitted rank has a new connection. `line` gets ``admitted`` again; an older one is closed."""
        with self._changing():
            member = self._present(tenant, name, rank, token)
            if member.job.state is JobState.failed:
                # What it was told of that went to a line that is no more.
                raise AdmissionError(f"job {name!r} has failed: {member.job.why}", "failed")
            if (old := self._lines.pop(member, None)) is not None:
                self._members.pop(old, None)
                old.close()
            self._lines[member] = line
            self._members[line] = member
            line.send(self._admitted(member))
            self._book.attached(member, time.monotonic())

    def stream_closed(self, line: EventStream) -> None:
        """A connection has ended. Its member is lost, if it has no other and did not leave."""
        with self._changing():
            member = self._members.pop(line, None)
            if member is not None and self._lines.pop(member, None) is line and not self._closed:
                self._book.lost([member], "its process ended")

    def leave(self, tenant: Tenant, name: str, rank: int, token: int, begun: int | None = None) -> None:
        """A rank is done with its job, after it has begun so many collectives, if it says so."""
        with self._changing():
            self._book.leave(self._book.member(tenant.name, name, rank, token), begun)

    def heartbeat(
        self, cookie: bytes, sequence: int, fields: Mapping[str, int], now: float | None = None
    ) -> bool:
        """Takes a heartbeat.

        Args:
            cookie: says whose it is.
            sequence: grows by one from heartbeat to heartbeat; late ones are ignored.
            fields: counts since the join, named as in `switchagg.wire.heartbeat`.
            now: on the clock of `time.monotonic`.

        Returns:
            Whether it is some member's.
        """
        now = time.monotonic() if now is None else now
        with self._changing():
            member = self._book.heard(cookie, now)
            if member is None:
                return False
            self._report(member, sequence, fields, now)
            return True

    def beat(
        self, tenant: Tenant, name: str, rank: int, token: int, report: Mapping[str, int] | None = None
    ) -> None:
        """Takes a heartbeat of a rank that says its token. `report` is as `fields` of `heartbeat`."""
        now = time.monotonic()
        with self._changing():
            member = self._present(tenant, name, rank, token)
            self._book.heard(member.cookie, now)
            if report is not None:
                self._report(member, None, report, now)

    def _report(self, member: Member, sequence: int | None, fields: Mapping[str, int], now: float) -> None:
        if sequence is not None:
            if sequence <= member.heartbeats:
                return
            member.heartbeats = sequence
        job = member.job
        self._histories.setdefault(job.number, History()).heard(member.cookie, fields, now)
        if self._tuned:
            decision = self._tunings.setdefault(job.number, Tuning()).heard(job, member, fields, now)
            if decision is not None:
                self._book.set_policy(job, decision.policy, decision.why, now)

    def progress(self, tenant: Tenant, name: str, rank: int, token: int, completed: int) -> Future[int]:
        """A rank has stopped for a change of membership after so many collectives.

        Returns:
            The number that it must complete, when all the others have said theirs.
        """
        with self._changing():
            member = self._present(tenant, name, rank, token)
            future = self._question(member, Question.progress)
            self._ask(future, lambda: self._book.progress(member, completed))
            return future

    def proceed(
        self, tenant: Tenant, name: str, rank: int, token: int, address: str, port: int
    ) -> Future[AdmittedView]:
        """A rank is done with the old generation of its job, and will send from this address and port.

        Returns:
            The event ``admitted`` of the new generation, when it is open.
        """
        with self._changing():
            member = self._present(tenant, name, rank, token)
            future = self._question(member, Question.proceed)
            self._ask(future, lambda: self._book.proceed(member, address, port))
            return future

    def _question(self, member: Member, question: Question) -> Future[Any]:
        if (earlier := self._questions.pop((member, question), None)) is not None:
            asked = f"rank {member.rank} of job {member.job.name!r} has asked for its {question} again"
            refuse(earlier, AdmissionError(asked, "failed"))
        future: Future[Any] = Future()
        self._questions[member, question] = future
        return future

    def _ask(self, future: Future[Any], call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            self._questions = {key: each for key, each in self._questions.items() if each is not future}
            raise

    def _present(self, tenant: Tenant, name: str, rank: int, token: int) -> Member:
        member = self._book.member(tenant.name, name, rank, token)
        if member.state is MemberState.lost:
            raise AdmissionError(f"rank {rank} of job {name!r} is lost: {member.why}", "lost")
        if member.state is MemberState.left:
            raise AdmissionError(f"rank {rank} has left job {name!r}", "lost")
        return member
