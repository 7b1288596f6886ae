"""The placements that a job could have if the switches were empty. No I/O and no clock.

                 root            a range of slots; its senders are the leaves, and workers that attach to it
                /    \\
           leaf1      leaf2      a range each, of the same P and K, for the workers that attach there
          0 1 2 3    4 5 6 7

A member attaches to the switches whose hosts it is among, or to the one of these that it asks for. A job goes
on one switch if its members have one in common that takes so many workers. Otherwise it goes on a tree: a
root, and the leaves below it that its members attach to. A member that may attach to several leaves goes to
the one with the fewest. A job of several stripes goes on as many switches that all its members attach to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from switchagg.addresses import exchanges
from switchagg.control.jobs.job import UNOPENED, Job, list_ranks
from switchagg.control.jobs.records import JoinRequest
from switchagg.control.jobs.switch_resources import JobSize, SwitchResources
from switchagg.errors import AdmissionError
from switchagg.wire.header import MAX_TREE_WORKERS, MAX_WORKERS

Options = Mapping[int, frozenset[str]]
"""The switches that each rank may attach to."""
Switches = Mapping[str, SwitchResources]


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A switch, a tree of them, or some to choose stripes' switches of, that could take a job."""

    root: str  # the switch, or the tree's root
    size: JobSize
    switches: tuple[str, ...]  # all that the job may use
    count: int = 1  # the number that it does use
    options: Options | None = None  # None for a job on one switch, or in stripes
    stripes: int = 1  # the number of switches that it is dealt to

    @property
    def alone(self) -> bool:
        """True if it is one switch."""
        return self.options is None and self.stripes == 1

    @property
    def slots(self) -> int:
        """Slots that it takes on all switches together."""
        return self.count * self.size.slots

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes on all switches together."""
        return self.count * self.size.memory


def match(options: Options, limits: Mapping[str, int], root: str = "") -> dict[str, tuple[int, ...]] | None:
    """Gives every rank one of its switches: the one with the fewest ranks, and `root` only if necessary.

    A matching by augmenting paths (Kuhn's algorithm), which finds a solution whenever there is one.
    Switches take as many ranks as `limits` says, others none. Returns the ranks of each switch that has any;
    None if there is no solution.
    """
    seats: dict[str, list[int]] = {name: [] for name in limits}

    def find(rank: int, tried: set[str]) -> bool:
        mine = sorted(
            (options[rank] & seats.keys()) - tried, key=lambda name: (name == root, len(seats[name]), name)
        )
        for name in mine:
            if name not in tried and len(seats[name]) < limits[name]:
                seats[name].append(rank)
                return True
        for name in mine:
            if name in tried:
                continue
            tried.add(name)
            for other in list(seats[name]):
                if find(other, tried):
                    seats[name].remove(other)
                    seats[name].append(rank)
                    return True
        return False

    for rank in sorted(options, key=lambda rank: (len(options[rank]), rank)):
        if not find(rank, set()):
            return None
    return {name: tuple(sorted(ranks)) for name, ranks in sorted(seats.items()) if ranks}


def seats_in_tree(
    root: str, options: Options, switches: Switches, usable: Collection[str]
) -> dict[str, tuple[int, ...]] | None:
    """Returns the ranks that attach to each usable switch of a tree; None if they do not fit."""
    limits = {name: switches[name].capacity.workers for name in usable}
    seats = match(options, limits, root)
    if seats is None:
        return None
    leaves = len(seats.keys() - {root})
    return seats if leaves + len(seats.get(root, ())) <= limits[root] else None


class CandidateFinder:
    """Finds the candidates of jobs on the switches of one controller. `leaves` are those of each root."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        self.leaves: dict[str, tuple[str, ...]] = {}
        for switch in switches.values():
            if (parent := switch.attachment.parent) is not None:
                self.leaves[parent] = (*self.leaves.get(parent, ()), switch.name)

    # Candidates of a job in the book.

    def independent(self, job: Job) -> bool:
        """Returns True if the job's candidates do not depend on which members join it."""
        if job.spec is None:
            return False
        return not self.leaves or (job.switch is not None and job.switch not in self.leaves)

    def of_job(self, job: Job) -> Sequence[PlacementCandidate]:
        """Returns the candidates of a job as far as its members are known; empty if there are none."""
        try:
            if job.state in UNOPENED and (job.missing or self.independent(job)):
                words, slots = job.requested("words"), job.requested("slots")
                return self.of_size(job.switch, words, slots, job.world_size, job.stripes, job.requests)
            return self._with_members(job)
        except AdmissionError:
            return []

    def with_rank(self, job: Job | None, request: JoinRequest) -> Sequence[PlacementCandidate]:
        """Returns the candidates of a job with one more rank; empty if they do not depend on it.

        Raises `AdmissionError` if the rank attaches to no switch, or to none together with the others.
        """
        within = None if job is None else job.switch
        if job is not None and job.slot_range is not None and job.state in UNOPENED:
            within = job.slot_range.switch  # the job got it without regard to its members
        self.switches_of(request.rank, request.address, request.switch, within)
        return () if job is None or self.independent(job) else self._with_members(job, request)

    def _with_members(self, job: Job, coming: JoinRequest | None = None) -> Sequence[PlacementCandidate]:
        words, slots, stripes = job.words, job.slots, job.stripes
        members = (*job.joined(), *job.back.values())
        options = {
            member.rank: self.switches_of(member.rank, member.endpoint[0], member.request.switch, job.switch)
            for member in members
        }
        requests = [member.request for member in members]
        if coming is not None:
            words, slots = words or coming.words, slots or coming.slots
            options[coming.rank] = self.switches_of(coming.rank, coming.address, coming.switch, job.switch)
            requests.append(coming)
        return self.of_members(job.switch, words, slots, options, stripes, requests)

    # Candidates of any job.

    def switches_of(self, rank: int, address: str, wish: str | None, within: str | None) -> frozenset[str]:
        """Returns the switches that a member may attach to. Raises `AdmissionError` if there is none.

        Args:
            wish: the switch that it asks for.
            within: the switch that its job must run on or below.
        """
        if wish is not None and wish not in self._switches:
            raise AdmissionError(
                f"rank {rank} asks for switch {wish[:128]!r}; accepted: {self._known()}", "bad_request"
            )
        inside = self._switches.keys() if within is None else {within, *self.leaves.get(within, ())}
        found = frozenset(
            name
            for name, switch in self._switches.items()
            if name in inside
            and wish in (None, name)
            and switch.attachment.takes(address)
            and exchanges(switch.address[0], address)
        )
        if not found and self._switches:
            which = "no switch" if within is None else f"no switch of those of switch {within!r}"
            other = " over IPv4" if ":" in address else " over IPv6"
            asked = "" if wish is None else f", and asks for switch {wish!r}"
            hosts = "; ".join(
                f"{name}: {switch.attachment.shown}{'' if exchanges(switch.address[0], address) else other}"
                for name, switch in self._switches.items()
            )
            raise AdmissionError(
                f"rank {rank} at {address} attaches to {which}{asked}; hosts of workers are {hosts}",
                "no_switch",
            )
        return found

    def of_size(
        self,
        switch: str | None,
        words: int | None,
        slots: int | None,
        workers: int,
        stripes: int = 1,
        requests: Collection[JoinRequest] = (),
    ) -> Sequence[PlacementCandidate]:
        """Returns the candidates of a job of which some members are known. None: any switch, default sizes.

        Raises `AdmissionError` if there are none.
        """
        if stripes > 1:
            return [self._striped(list(self._switches), words, slots, workers, stripes)]
        if switch is not None and switch not in self._switches:
            raise AdmissionError(f"switch is {switch[:128]!r}; accepted: {self._known()}", "bad_request")
        roots = [root for root in self.leaves if switch in (None, root)]
        large = [root for root in roots if workers <= self._most_workers(root)]
        trees, _ = _each(large, lambda root: self._tree_of_size(root, words, slots, workers))
        names = list(self._switches) if switch is None else [switch]
        singles, refusals = _each(names, lambda name: self._alone(name, words, slots, workers, requests))
        if singles or trees:
            return [*singles, *trees]
        if not refusals:
            raise AdmissionError("there are no switches", "no_slots")
        text, code = _joined(refusals), refusals[0].code
        if code == "world_size":
            alone = max(self._switches[name].capacity.workers for name in names)
            most = max((self._most_workers(root) for root in roots), default=alone)
            text = f"world_size is {workers}; accepted: 1..{most} ({text})"
        raise AdmissionError(text, code)

    def of_members(
        self,
        switch: str | None,
        words: int | None,
        slots: int | None,
        options: Options,
        stripes: int = 1,
        requests: Collection[JoinRequest] = (),
    ) -> Sequence[PlacementCandidate]:
        """Returns the candidates of a job with these members. Raises `AdmissionError` if there are none."""
        common = frozenset.intersection(*options.values()) if options else frozenset(self._switches)
        if switch is not None:
            common &= {switch}
        names = [name for name in self._switches if name in common]
        if stripes > 1:
            return [self._striped(names, words, slots, len(options), stripes)]
        singles, refusals = _each(names, lambda name: self._alone(name, words, slots, len(options), requests))
        if singles:
            return singles
        roots = [root for root in self.leaves if switch in (None, root)]
        trees, more = _each(roots, lambda root: self._tree_of_members(root, words, slots, options))
        if trees:
            return trees
        if not (refusals := refusals + more):
            raise AdmissionError(_apart(options), "no_switch")
        raise AdmissionError(_joined(refusals), refusals[0].code)

    def _known(self) -> str:
        return ", ".join(self._switches) or "none, there are no switches"

    def _alone(
        self,
        name: str,
        words: int | None,
        slots: int | None,
        workers: int,
        requests: Collection[JoinRequest] = (),
    ) -> PlacementCandidate:
        switch = self._switches[name]
        size = switch.job_size(words, slots, workers, shared=switch.shares_slots(requests))
        return PlacementCandidate(name, size, (name,))

    def _striped(
        self, names: Sequence[str], words: int | None, slots: int | None, workers: int, stripes: int
    ) -> PlacementCandidate:
        """Raises `AdmissionError` if fewer than `stripes` of these switches take the job."""
        size = self._default_size(names, words, slots)
        found, refusals = _each(names, lambda name: self._alone(name, size.words, size.slots, workers))
        fitting = tuple(each.root for each in found)
        if len(fitting) < stripes:
            said = f" ({_joined(refusals)})" if refusals else ""
            raise AdmissionError(
                f"stripes is {stripes}; accepted: 1..{max(1, len(fitting))}, the number of switches that all "
                f"ranks attach to and that take P = {size.slots}, K = {size.words}: "
                f"{', '.join(fitting) or 'none'}{said}",
                "no_switch",
            )
        return PlacementCandidate(fitting[0], size, fitting, stripes, stripes=stripes)

    def _default_size(self, names: Collection[str], words: int | None, slots: int | None) -> JobSize:
        """Returns the size of a job on these switches, with defaults for None that suit all, if any do."""
        switches = [self._switches[name] for name in names]
        if words is None:
            exact = (switch.capacity.exact_words for switch in switches)
            words = next(filter(None, exact), None) or min((s.default.words for s in switches), default=0)
        if slots is None:
            slots = min((switch.default.slots for switch in switches), default=0)
        return JobSize(slots, words)

    def _most_workers(self, root: str) -> int:
        most = sum(self._switches[name].capacity.workers for name in self.leaves[root])
        return min(most, MAX_TREE_WORKERS)

    def _tree_of_size(
        self, root: str, words: int | None, slots: int | None, workers: int
    ) -> PlacementCandidate:
        switches = (root, *self.leaves[root])
        size = self._common_size(switches, words, slots)
        return PlacementCandidate(root, size, switches, 1 + -(-workers // MAX_WORKERS), {})

    def _common_size(self, names: Collection[str], words: int | None, slots: int | None) -> JobSize:
        """Returns the size of a job on all these switches. Raises `AdmissionError` if they share none."""
        size = self._default_size(names, words, slots)
        for name in names:
            self._switches[name].job_size(size.words, size.slots)
        return size

    def _tree_of_members(
        self, root: str, words: int | None, slots: int | None, options: Options
    ) -> PlacementCandidate:
        """Raises `AdmissionError` if the members do not fit below this root."""
        leaves = self.leaves[root]
        inside = {rank: mine & {root, *leaves} for rank, mine in options.items()}
        if outside := [rank for rank, mine in inside.items() if not mine]:
            names = options[outside[0]]
            raise AdmissionError(
                f"{_attached(outside, names)}, which {'is' if len(names) == 1 else 'are'} "
                f"not below switch {root!r}",
                "no_switch",
            )
        switches = (root, *(name for name in leaves if any(name in mine for mine in inside.values())))
        size = self._common_size(switches, words, slots)
        seats = seats_in_tree(root, inside, self._switches, switches)
        if seats is None:
            raise AdmissionError(self._crowded(root, inside), "world_size")
        return PlacementCandidate(root, size, switches, len({root, *seats}), inside)

    def _crowded(self, root: str, inside: Options) -> str:
        """Returns a message that names a switch of the tree that takes too few workers."""
        for name in (*self.leaves[root], root):
            only = [rank for rank, mine in inside.items() if mine == {name}]
            limit = self._switches[name].capacity.workers
            if len(only) > limit:
                return f"{len(only)} workers attach to switch {name!r}, which takes {limit} in a job"
        used = {name for mine in inside.values() for name in mine} - {root}
        return (
            f"{len(inside)} workers; switch {root!r} and those of its leaves that they attach to "
            f"({', '.join(sorted(used))}) take fewer: each {MAX_WORKERS} workers, or leaves"
        )


def _each(
    names: Iterable[str], make: Callable[[str], PlacementCandidate]
) -> tuple[list[PlacementCandidate], list[AdmissionError]]:
    """Returns the candidates that `make` returns for these switches, and the refusals that it raises."""
    found: list[PlacementCandidate] = []
    refusals: list[AdmissionError] = []
    for name in names:
        try:
            found.append(make(name))
        except AdmissionError as error:
            refusals.append(error)
    return found, refusals


def _joined(refusals: Iterable[AdmissionError]) -> str:
    return "; ".join(dict.fromkeys(map(str, refusals)))


def _attached(ranks: Sequence[int], names: Iterable[str]) -> str:
    return f"{list_ranks(ranks, ' attaches', ' attach')} to {' or '.join(map(repr, sorted(names)))}"


def _apart(options: Options) -> str:
    groups: dict[frozenset[str], list[int]] = {}
    for rank, mine in sorted(options.items()):
        groups.setdefault(mine, []).append(rank)
    said = "; ".join(_attached(ranks, mine) for mine, ranks in groups.items())
    return f"{said}; and no switch is the parent of these: give them one in their specs"
