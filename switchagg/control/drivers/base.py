"""`SwitchDriver`: the operations on a switch that the controller needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from switchagg.rules.slots import JobEntry, SlotState
from switchagg.rules.switch import Capacity, Reconciled, SwitchChange


class SwitchDriver(Protocol):
    """One switch. Methods may be called from any thread, may block for a round trip, and raise `SwitchError`.

    Properties neither block nor raise and are there before the switch is first reached.
    """

    @property
    def name(self) -> str:
        """The switch's name; unique in one controller."""

    @property
    def target(self) -> str:
        """The kind of switch: ``native``, ``p4``, ``bmv2``, ``tofino``, …"""

    @property
    def capacity(self) -> Capacity:
        """Its slots, words and memory."""

    @property
    def address(self) -> tuple[str, int]:
        """Address and UDP port that workers send to; of a switch at all addresses, ::."""

    @property
    def receive_buffer(self) -> int:
        """Bytes that the switch can queue at its UDP port; workers size their windows by it."""

    @property
    def link(self) -> str:
        """Name of the UNIX socket where workers of the switch's host attach; empty where they cannot."""

    @property
    def threads(self) -> int:
        """Threads of the switch, to which blocks of `BLOCK_SLOTS` slots are dealt in turn."""

    @property
    def memory(self) -> str:
        """Identifies the processes whose jobs may have shared slots here; empty where none may.

        Of `switchagg.computer.memory_identity`.
        """

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator about how this switch runs, a sentence each."""

    def install_job(self, entry: JobEntry) -> None:
        """Admits the workers of a job. Raises `SwitchError` where it is refused; nothing is left then."""

    def remove_job(self, job_id: int) -> None:
        """Forgets a job; its slots may be given to another at once."""

    def fence(self, job_id: int, bits: int) -> None:
        """Drops, and counts, the packets of these workers of a job from now on; all else stays as it is.

        Args:
            job_id: an installed job.
            bits: of the workers to shut out, in addition to those that are.
        """

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        """Sends UDP payloads by the controller's port; returns what came back there within its patience.

        All INITs of a job go in one call. An echo that is missing in the answer was lost, or came late.
        """

    def counters(self) -> Mapping[str, int]:
        """Returns the counters of the whole switch, named as in `switchagg.wire.header.COUNTERS`."""

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        """Returns the counters of one job, and ``worker_<bit>_packets``."""

    def slot(self, index: int) -> SlotState | None:
        """Returns what a slot holds, for people; None where the switch does not show it."""

    def reconcile(self, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Reconciled:
        """Takes off the switch all but these jobs: reads back, and writes only what differs.

        What is missing of these, in whole or in part, is taken off and not installed: its slots would be
        empty, and a controller that came later could not tell.

        Args:
            entries: the jobs that belong there, with their slots initialised.
            fenced: job id -> bits of its workers that are shut out and must not be let in meanwhile.
        """

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        """Calls `callback`, from any thread, for every change from now on; at once if there already was one.

        The callback does not block. A switch that can be reached when the controller starts says
        ``connected``, so that the controller reconciles.
        """

    def close(self) -> None:
        """Lets go of the switch and leaves it as it is. Safe to call twice; no callback comes afterwards."""


def reconcile_by_calls(
    driver: SwitchDriver,
    held: Mapping[int, JobEntry],
    shut_out: Mapping[int, int],
    entries: Sequence[JobEntry],
    fenced: Mapping[int, int],
) -> Reconciled:
    """`SwitchDriver.reconcile` for a driver that knows what its switch holds.

    Args:
        driver: its methods remove and fence.
        held: the switch's jobs, job id -> entry.
        shut_out: job id -> bits of its workers that the switch shuts out.
        entries, fenced: of `SwitchDriver.reconcile`.
    """
    wanted = {entry.job: entry for entry in entries}
    kept = tuple(job for job, entry in wanted.items() if held.get(job) == entry)
    removed = tuple(job for job in held if job not in kept)
    missing = tuple(job for job in wanted if job not in kept)
    for job in removed:
        driver.remove_job(job)
    for job, bits in fenced.items():
        if job in kept and (more := bits & ~shut_out.get(job, 0)):
            driver.fence(job, more)
    return Reconciled(kept, missing, tuple(job for job in removed if job not in wanted))
