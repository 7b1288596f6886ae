"""Builds a job from its entries, and checks that they agree. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchagg.errors import UsageError
from switchagg.p4program.program import JobPlace, Parent, Station
from switchagg.p4runtime.server.errors import StatusError, failed_precondition
from switchagg.p4runtime.server.native.entries import Contribution, Delivery, Initialise, Receiver
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry


@dataclass(slots=True)
class RunningJob:
    """A job that the engine has.

    Attributes:
        place: ports and MACs, on Ethernet.
        workers: each worker's entry when the job began, by bit.
        receivers, group: the numbers of its receivers, its parent's among them, and of its group.
        fenced: the bits of workers that are shut out.
    """

    entry: JobEntry
    place: JobPlace | None
    initialise: Initialise
    workers: dict[int, Contribution]
    receivers: frozenset[int]
    group: int
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class JobParts:
    """The entries that together are a job.

    Attributes:
        replicas: the receivers of its group, with their ports.
        receivers: all receivers, by their numbers.
    """

    initialise: Initialise
    workers: Sequence[Contribution]
    deliveries: Sequence[Delivery]
    group: int
    replicas: Mapping[int, int]
    receivers: Mapping[int, Receiver]


def check_agreement(job: int, initialise: Initialise | None, workers: list[Contribution]) -> None:
    """Raises `StatusError` if a job's entries contradict each other."""

    def disagree(what: str) -> StatusError:
        return failed_precondition(f"job {job}: its entries do not agree on {what}")

    entries: list[Initialise | Contribution] = [*workers, *([initialise] if initialise else [])]
    for what, values in (
        ("its slots", {(each.base, each.slots) for each in entries}),
        ("its tally", {each.tally for each in entries}),
        ("its workers", {each.full for each in workers}),
        ("its multicast group", {each.group for each in workers}),
        ("whether it has a parent", {each.below for each in workers}),
    ):
        if len(values) > 1:
            raise disagree(f"{what}: {', '.join(map(str, sorted(values)))}")
    for what, found in (
        ("who is which worker: two have one bit", [each.bit for each in workers]),
        ("who is which worker: two have one address", [each.source for each in workers]),
        (
            "who gets what: two have one receiver",
            [each.receiver for each in workers if not each.below],
        ),
    ):
        if len(set(found)) != len(found):
            raise disagree(what)


def make_job(parts: JobParts, *, words: int, ethernet: bool) -> RunningJob:
    """Returns the job. Raises `StatusError` if its entries do not agree.

    Args:
        words: K if the entry gives none.
        ethernet: the job has places.
    """
    initialise, workers = parts.initialise, parts.workers
    replicas, receivers = parts.replicas, parts.receivers
    job = initialise.job
    below = workers[0].below
    answers = {each.bit: each for each in parts.deliveries if each.bit is not None}
    numbers = {each.bit: answers[each.bit].receiver if below else each.receiver for each in workers}
    theirs = set(numbers.values())
    missing = workers[0].full & ~sum(1 << each.bit for each in workers)
    others = sorted(replicas.keys() - theirs)
    bits = [bit for bit in range(32) if missing & 1 << bit]
    if not theirs <= replicas.keys() or len(others) != len(bits):
        raise failed_precondition(
            f"job {job}: its multicast group has receivers {sorted(replicas)}, its workers "
            f"{sorted(theirs)}, and {len(bits)} workers are missing"
        )
    for each in workers:
        address = receivers[numbers[each.bit]].address
        if address != each.source:
            raise failed_precondition(
                f"job {job}: worker {each.bit} sends from {_shown(each.source)}, its RESULTs go to "
                f"{_shown(address)}; accepted: one address for both"
            )
    for bit, number in zip(bits, others, strict=True):
        numbers[bit] = number
    to_workers = [receivers[number] for number in replicas]
    if len({each.token for each in to_workers}) != 1:
        raise failed_precondition(f"job {job}: its receivers have different tokens")
    parent = _parent(parts) if below else None
    offset = 0 if parent is None else (initialise.base - parent.base) % 2**16
    for receiver in to_workers:
        if receiver.parent or receiver.offset != offset:
            action = "to_parent" if receiver.parent else f"to_worker with offset {receiver.offset}"
            raise failed_precondition(
                f"job {job}: receiver {receiver.number} is {action}; accepted: to_worker with offset {offset}"
            )
    admitted = [WorkerEntry(each.bit, *each.source, each.token) for each in workers]
    # Shut out from the start: their tokens stay unknown.
    strangers = [WorkerEntry(bit, *receivers[numbers[bit]].address, secrets.randbits(32)) for bit in bits]
    try:
        entry = JobEntry(
            job,
            initialise.base,
            initialise.slots,
            initialise.words or words,
            to_workers[0].token,
            tuple(sorted(admitted + strangers, key=lambda worker: worker.bit)),
            parent=parent,
        )
    except UsageError as error:
        raise failed_precondition(str(error)) from None
    place = _place(parts, numbers) if ethernet else None
    mine = frozenset(replicas) | ({workers[0].receiver} if below else frozenset())
    return RunningJob(entry, place, initialise, {each.bit: each for each in workers}, mine, parts.group)


def _parent(parts: JobParts) -> ParentEntry:
    initialise, workers, deliveries = parts.initialise, parts.workers, parts.deliveries
    job = initialise.job
    above = parts.receivers[workers[0].receiver]
    sources = {(each.source, each.token, each.base, each.slots, each.ingress_port) for each in deliveries}
    if len(sources) != 1 or {each.receiver for each in workers} != {above.number}:
        raise failed_precondition(f"job {job}: its entries do not agree on its parent")
    first = deliveries[0]
    if first.slots != initialise.slots:
        raise failed_precondition(
            f"job {job}: it has {initialise.slots} slots, and {first.slots} at its parent; accepted: as many"
        )
    if not above.parent or above.address != first.source:
        raise failed_precondition(
            f"job {job}: its parent's RESULTs come from {_shown(first.source)}, and receiver {above.number} "
            f"is {'to_parent' if above.parent else 'to_worker'} {_shown(above.address)}"
        )
    if above.offset != (first.base - initialise.base) % 2**16:
        raise failed_precondition(
            f"job {job}: to_parent has offset {above.offset}; accepted: from its base here to that at its "
            "parent"
        )
    return ParentEntry(*above.address, above.token, first.base, first.token)


def _place(parts: JobParts, numbers: Mapping[int, int]) -> JobPlace:
    """Returns the ports and MACs of the job. Raises `StatusError` for a worker that is in two places."""
    job, receivers, replicas = parts.initialise.job, parts.receivers, parts.replicas
    one = {each.bit: each.port for each in parts.deliveries}
    for each in parts.workers:
        ports = {each.port, replicas[numbers[each.bit]], one[each.bit] if each.below else each.way_out}
        if len(ports) != 1:
            raise failed_precondition(
                f"job {job}: worker {each.bit} is expected at port {each.port}, and its RESULTs go to ports "
                f"{sorted(ports)}; accepted: one port for both"
            )
    stations = {bit: Station(replicas[number], receivers[number].mac) for bit, number in numbers.items()}
    first = parts.workers[0]
    if not first.below:
        return JobPlace(0, stations)
    above = receivers[first.receiver]
    ports = {each.ingress_port for each in parts.deliveries} | {each.way_out for each in parts.workers}
    if len(ports) != 1:
        raise failed_precondition(f"job {job}: its parent is at ports {sorted(ports)}; accepted: one port")
    station = Station(ports.pop(), above.mac)
    delivery = parts.deliveries[0]
    parent = Parent(station, above.address[0], above.token, delivery.base, delivery.token, above.address[1])
    return JobPlace(0, stations, parent)


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
