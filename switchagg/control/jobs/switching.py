"""What becomes of jobs when a switch goes, comes back, or is to be emptied. No I/O and no clock."""

from __future__ import annotations

from switchagg.control.jobs.job import Generation, Job
from switchagg.control.jobs.placement import UNREACHED
from switchagg.control.jobs.places import UNOPENED
from switchagg.control.jobs.queueing import Queueing
from switchagg.control.jobs.records import EventKind, JobState
from switchagg.errors import SwitchAggError, SwitchError
from switchagg.rules.switch import Capacity, Reconciled


class Switching(Queueing):
    """Jobs, and the switches under them."""

    def opened(self, job: Job, part: Generation, now: float) -> None:
        """A switch knows the job, or its part of it, and every slot there is initialised."""
        generation = job.generation
        if generation is None or part not in generation.parts or generation.open:
            return
        part.ready = True
        if not all(each.ready for each in generation.parts):
            return
        moved = job.change
        job.state, job.change = JobState.running, None
        self._admit(job, now, {} if moved is None else moved.lost)
        if moved is not None:
            self._changed(job, moved)
        else:
            self._note(EventKind.opened, f"job {job.name!r} runs with {job.world_size} workers", job)
        self._save(job)
        self._schedule()

    def opening_failed(self, job: Job, part: Generation, error: SwitchAggError) -> None:
        """A switch refused the job, or never echoed an INIT: all its ranks are refused."""
        generation = job.generation
        if generation is None or part not in generation.parts or generation.open:
            return
        which = f"switch {part.site.switch!r}" if generation.leaves else "the switch"
        why = f"{which} did not take job {job.name!r}: {error}"
        if job.state is JobState.moving:
            self._fail(job, why, {"event": "switch", "why": why}, EventKind.failed)
        else:
            self._dismiss(job, why, "switch", bare=True)
        self._schedule()

    def switch_down(self, name: str, why: str) -> None:
        """A switch cannot be reached. What runs there may go on; nothing new is put there."""
        room = self.placement.rooms[name]
        if room.up or room.why == UNREACHED:  # another reason is for those who look, and no event
            self._note(EventKind.switch_down, f"switch {name!r} is down: {why}", switch=name)
        room.up, room.why = False, why

    def switch_measured(self, name: str, capacity: Capacity, address: tuple[str, int] | None = None) -> None:
        """A switch says how large it is, and at which address and port it is if that has become known.

        Raises `SwitchError` where its jobs do not fit any more.
        """
        room = self.placement.rooms[name]
        if address is not None:
            room.address = address
        if capacity != room.capacity:
            try:
                room.resize(capacity)
            except SwitchAggError as error:
                raise SwitchError(
                    f"it is not what it was, and its jobs do not fit: {error}; evict them, "
                    "or start the switch as it was"
                ) from None

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
            if job is None or job.generation is None:
                continue
            if not job.generation.open:
                part = next(each for each in job.generation.parts if each.site.switch == name)
                restarted = SwitchError("it restarted, and what its slots held is lost")
                self.opening_failed(job, part, restarted)
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
            if job.tree is None or name not in job.tree.switches or job.state not in UNOPENED:
                continue
            self._give_up_place(job)
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
