"""What becomes of jobs when a switch goes, comes back, or is to be emptied. No I/O and no clock."""

from __future__ import annotations

from switchagg.control.drivers.base import Reconciled
from switchagg.control.queueing import UNOPENED, Queueing
from switchagg.control.records import EventKind, JobState


class Switching(Queueing):
    """Jobs, and the switches under them."""

    def switch_down(self, name: str, why: str) -> None:
        """A switch cannot be reached. What runs there may go on; nothing new is put there."""
        room = self.placement.rooms[name]
        if room.up or room.why != why:
            self._note(EventKind.switch_down, f"switch {name!r} is down: {why}", switch=name)
        room.up, room.why = False, why

    def switch_up(self, name: str, found: Reconciled) -> None:
        """A switch answers, and holds what belongs there. Jobs whose slots are lost fail."""
        room = self.placement.rooms[name]
        back = not room.up
        room.up, room.why = True, ""
        if back:
            self._note(EventKind.switch_up, f"switch {name!r} is up", switch=name)
        if (back and found.kept) or found.installed or found.removed:
            self._note(
                EventKind.reconciled,
                f"switch {name!r}: {len(found.kept)} jobs were in order, "
                f"{len(found.installed)} were not there, {len(found.removed)} were nobody's",
                switch=name,
            )
        for job_id in found.installed:
            job = self._ids.get(job_id)
            if job is None or job.generation is None or not job.generation.open:
                continue
            if job.change is not None and not self._waited_for(job, job.change):
                continue  # nobody needs the old generation any more; the next one opens below
            why = f"switch {name!r} restarted, and what its slots held is lost"
            if not self._end_if_empty(job):
                self._fail(job, why, {"event": "switch", "why": why}, EventKind.failed)
        self._schedule()

    def drain_switch(self, name: str, who: str) -> None:
        """Puts no new job on a switch; its jobs move when they come to a pause, where another has room."""
        room = self.placement.rooms[name]
        if not room.draining:
            room.draining = True
            self._note(EventKind.drained, f"switch {name!r} is being drained by {who}", switch=name)
        for job in self.jobs():
            if job.site is None or job.site.switch != name or job.state not in UNOPENED:
                continue
            self.placement.free(job.site)
            job.site = job.shape = None
            job.state = JobState.queued
            self._save(job)
        self._schedule()

    def undrain_switch(self, name: str, who: str) -> None:
        """Lets a switch have new jobs again."""
        room = self.placement.rooms[name]
        if room.draining:
            room.draining = False
            self._note(EventKind.drained, f"switch {name!r} takes jobs again, by {who}", switch=name)
        self._schedule()
