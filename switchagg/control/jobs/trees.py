"""Jobs on trees of switches: which workers attach where, and on which switches a job goes. No I/O.

                 root            a range of slots; its workers are the leaves, and who attaches to it itself
                /    \\
           leaf1      leaf2      a range each, of the same P and K, for the workers that attach there
          0 1 2 3    4 5 6 7

A member attaches to the switches whose hosts it is among, or of these to the one that it asks for. A job
whose members have a switch in common that takes so many is on that one switch, whatever else there is. Others
are on a tree: a root, and below it the leaves that their members attach to. A member that may attach to
several leaves goes to the one with the fewest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from switchagg.control.jobs.placement import Placement, Room, Shape, Site, Tree
from switchagg.errors import AdmissionError
from switchagg.wire.header import MAX_TREE_WORKERS, MAX_WORKERS

Options = Mapping[int, frozenset[str]]
"""The switches that each rank may attach to."""


@dataclass(frozen=True, slots=True)
class Way:
    """A switch, or a tree of them, that could take a job were it empty.

    Attributes:
        root: the switch, or the tree's root.
        switches: all that it may use.
        count: how many it uses.
        options: None for a job on one switch.
    """

    root: str
    shape: Shape
    switches: tuple[str, ...]
    count: int = 1
    options: Options | None = None

    @property
    def slots(self) -> int:
        """Slots that it takes, on all switches together."""
        return self.count * self.shape.slots

    @property
    def memory(self) -> int:
        """Bytes of switch memory, likewise."""
        return self.count * self.shape.memory


def seat(options: Options, limits: Mapping[str, int], root: str = "") -> dict[str, tuple[int, ...]] | None:
    """Gives every rank one of its switches: of several the one with the fewest, `root` only if need be.

    A matching by augmenting paths (Kuhn's algorithm), so that it finds a way wherever there is one.

    Args:
        limits: how many ranks each switch takes; others take none.

    Returns:
        The ranks of each switch that has any, by the names of the switches; None where there is no way.
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


class Trees(Placement):
    """All switches of one controller, and how they are wired (`Room.attachment`)."""

    def __init__(self, rooms: Iterable[Room]) -> None:
        super().__init__(rooms)
        self.below: dict[str, tuple[str, ...]] = {}
        """The leaves of each root."""
        for room in self.rooms.values():
            if (parent := room.attachment.parent) is not None:
                self.below[parent] = (*self.below.get(parent, ()), room.name)

    def foreseen(self, switch: str | None) -> bool:
        """Returns whether a job's place does not depend on where its members are.

        Args:
            switch: the one that it must run on; None for any.
        """
        return not self.below or (switch is not None and switch not in self.below)

    # Where members are.

    def options(self, rank: int, address: str, wish: str | None, within: str | None) -> frozenset[str]:
        """Returns the switches that a member may attach to.

        Args:
            wish: the one that it asks for. within: the one that its job must run on, or below.

        Raises `AdmissionError` where there is none.
        """
        if wish is not None and wish not in self.rooms:
            known = ", ".join(self.rooms) or "none, there are no switches"
            raise AdmissionError(
                f"rank {rank} asks for switch {wish[:128]!r}; accepted: {known}", "bad_request"
            )
        inside = self.rooms.keys() if within is None else {within, *self.below.get(within, ())}
        found = frozenset(
            name
            for name, room in self.rooms.items()
            if name in inside and wish in (None, name) and room.attachment.takes(address)
        )
        if not found and self.rooms:
            which = "no switch" if within is None else f"no switch of those of switch {within!r}"
            asked = "" if wish is None else f", and asks for switch {wish!r}"
            hosts = "; ".join(f"{name}: {self.rooms[name].attachment.shown}" for name in self.rooms)
            raise AdmissionError(
                f"rank {rank} at {address} attaches to {which}{asked}; hosts of workers are {hosts}",
                "no_switch",
            )
        return found

    # What could be.

    def outlook(
        self, switch: str | None, words: int | None, slots: int | None, workers: int
    ) -> Sequence[Way]:
        """Returns the ways of a job whose members are not known yet. Raises `AdmissionError` for none."""
        roots = [root for root in self.below if switch in (None, root)]
        trees = list(filter(None, (self._roomy(root, words, slots, workers) for root in roots)))
        try:
            return [*self._singles(self.possible(switch, words, slots, workers)), *trees]
        except AdmissionError as error:
            if trees:
                return trees
            if error.code != "world_size":
                raise
            named = self.rooms if switch is None else (switch,)
            alone = max(self.rooms[name].capacity.workers for name in named)
            most = max((self._most(root) for root in roots), default=alone)
            raise AdmissionError(
                f"world_size is {workers}; accepted: 1..{most} ({error})", error.code
            ) from None

    def ways(
        self, switch: str | None, words: int | None, slots: int | None, options: Options
    ) -> Sequence[Way]:
        """Returns the ways of a job with these members. Raises `AdmissionError` where there is none."""
        common = frozenset.intersection(*options.values()) if options else frozenset(self.rooms)
        if switch is not None:
            common &= {switch}
        refusals: list[AdmissionError] = []
        shapes: dict[str, Shape] = {}
        for name in self.rooms:
            if name in common:
                try:
                    shapes[name] = self.rooms[name].shape(words, slots, len(options))
                except AdmissionError as error:
                    refusals.append(error)
        if shapes:
            return self._singles(shapes)
        found: list[Way] = []
        for root in self.below:
            if switch in (None, root):
                try:
                    found.append(self._tree(root, words, slots, options))
                except AdmissionError as error:
                    refusals.append(error)
        if found:
            return found
        if not refusals:
            refusals.append(AdmissionError(_apart(options), "no_switch"))
        raise AdmissionError("; ".join(dict.fromkeys(map(str, refusals))), refusals[0].code)

    @staticmethod
    def _singles(shapes: Mapping[str, Shape]) -> list[Way]:
        return [Way(name, shape, (name,)) for name, shape in shapes.items()]

    def _most(self, root: str) -> int:
        most = sum(self.rooms[name].capacity.workers for name in self.below[root])
        return min(most, MAX_TREE_WORKERS)

    def _roomy(self, root: str, words: int | None, slots: int | None, workers: int) -> Way | None:
        leaves = self.below[root]
        if workers > self._most(root):
            return None
        try:
            shape = self._shape((root, *leaves), words, slots)
        except AdmissionError:
            return None
        return Way(root, shape, (root, *leaves), 1 + -(-workers // MAX_WORKERS), {})

    def _shape(self, switches: Collection[str], words: int | None, slots: int | None) -> Shape:
        """The shape of a job on all of these. Raises `AdmissionError` where they have none in common."""
        rooms = [self.rooms[name] for name in switches]
        if words is None:
            exact = [room.capacity.exact_words for room in rooms if room.capacity.exact_words is not None]
            words = exact[0] if exact else min(room.words or 0 for room in rooms)
        if slots is None:
            slots = min(room.slots or 0 for room in rooms)
        for room in rooms:
            shape = room.shape(words, slots)
        return shape

    def _tree(self, root: str, words: int | None, slots: int | None, options: Options) -> Way:
        """Raises `AdmissionError` where the members do not fit below this root."""
        leaves = self.below[root]
        inside = {rank: mine & {root, *leaves} for rank, mine in options.items()}
        if outside := [rank for rank, mine in inside.items() if not mine]:
            raise AdmissionError(
                f"{_ranks(outside)} to {_named(options[outside[0]])}, which "
                f"{'is' if len(options[outside[0]]) == 1 else 'are'} not below switch {root!r}",
                "no_switch",
            )
        switches = (root, *(name for name in leaves if any(name in mine for mine in inside.values())))
        shape = self._shape(switches, words, slots)
        seats = self._seats(root, inside, switches)
        if seats is None:
            raise AdmissionError(self._crowded(root, inside), "world_size")
        return Way(root, shape, switches, len({root, *seats}), inside)

    def _seats(
        self, root: str, inside: Options, usable: Collection[str]
    ) -> dict[str, tuple[int, ...]] | None:
        limits = {name: self.rooms[name].capacity.workers for name in usable}
        seats = seat(inside, limits, root)
        if seats is None:
            return None
        leaves = len(seats.keys() - {root})
        return seats if leaves + len(seats.get(root, ())) <= limits[root] else None

    def _crowded(self, root: str, inside: Options) -> str:
        """Says which of its switches takes too few."""
        for name in (*self.below[root], root):
            only = [rank for rank, mine in inside.items() if mine == {name}]
            limit = self.rooms[name].capacity.workers
            if len(only) > limit:
                return f"{len(only)} workers attach to switch {name!r}, which takes {limit} in a job"
        used = {name for mine in inside.values() for name in mine} - {root}
        return (
            f"{len(inside)} workers; switch {root!r} and those of its leaves that they attach to "
            f"({', '.join(sorted(used))}) take fewer: each {MAX_WORKERS} workers, or leaves"
        )

    # What can be now.

    def settle(
        self, ways: Iterable[Way], *, without: Iterable[str] = (), held: Tree | None = None
    ) -> Tree | None:
        """Takes ranges on all switches of the best of these ways; on none where no way has room now.

        Args:
            without: switches that are not to be used.
            held: ranges that are the job's already. Those that it can keep are in the answer too.
        """
        best = self._best(ways, without, held)
        if best is None:
            return None
        mine = _ranges(held)
        return self._take(*best, lambda name, shape: mine.get(name) or self.rooms[name].take(shape))

    def resettle(self, ways: Iterable[Way], held: Tree, *, without: Iterable[str] = ()) -> Tree | None:
        """Gives ranges back and takes those of the best way, perhaps the same; or keeps them all."""
        best = self._best(ways, without, held)
        if best is None:
            return None
        self.give_back(held)
        return self._take(*best, lambda name, shape: self.rooms[name].take(shape))

    def _best(
        self, ways: Iterable[Way], without: Iterable[str], held: Tree | None
    ) -> tuple[Way, dict[str, tuple[int, ...]]] | None:
        """The way that has room now and takes the fewest switches more, or smallest holes; who is where."""
        shut = set(without)
        mine = _ranges(held)

        def usable(name: str, shape: Shape) -> bool:
            room = self.rooms[name]
            if name in mine:  # what it has there is there to be had, also where no new jobs are taken
                return name not in shut and room.up
            return name not in shut and not room.lacks(shape)

        found = []
        for way in ways:
            there = [name for name in way.switches if usable(name, way.shape)]
            if way.root in there:
                seats = {} if way.options is None else self._seats(way.root, way.options, there)
                if seats is not None:
                    more = {way.root, *seats} - mine.keys()
                    holes = [self._rank(self.rooms[name], way.shape) for name in more]
                    cost = (len(more) if mine else 0, max(holes, default=(0, 0.0, way.root)))
                    found.append((cost, way, seats))
        if not found:
            return None
        _, way, seats = min(found, key=lambda each: each[0])
        return way, seats

    @staticmethod
    def _take(way: Way, seats: dict[str, tuple[int, ...]], take: Callable[[str, Shape], Site]) -> Tree:
        leaves = tuple(take(name, way.shape) for name in sorted(seats.keys() - {way.root}))
        return Tree(take(way.root, way.shape), leaves, tuple(sorted(seats.items())))

    def give_back(self, tree: Tree, kept: Tree | None = None) -> None:
        """Gives the ranges of `tree` back, except those that `kept` has too."""
        for site in tree.sites:
            if kept is None or site not in kept.sites:
                self.free(site)

    def lacking(self, ways: Iterable[Way]) -> str:
        """Says, for people, why none of these ways is open now."""
        texts = [self.rooms[name].lacks(way.shape) for way in ways for name in way.switches]
        return "; ".join(dict.fromkeys(filter(None, texts)))


def singles(ways: Iterable[Way]) -> dict[str, Shape]:
    """Returns the switches that could take the job alone, and its shape there."""
    return {way.root: way.shape for way in ways if way.options is None}


def _ranges(tree: Tree | None) -> dict[str, Site]:
    return {} if tree is None else {site.switch: site for site in tree.sites}


def crossing(blocked: Callable[[str], bool], ways: Iterable[Way]) -> bool:
    """Returns whether any of these ways uses a blocked switch."""
    return any(blocked(name) for way in ways for name in way.switches)


def _ranks(ranks: Sequence[int]) -> str:
    one = len(ranks) == 1
    return f"{'rank' if one else 'ranks'} {', '.join(map(str, ranks))} {'attaches' if one else 'attach'}"


def _named(names: Iterable[str]) -> str:
    return " or ".join(map(repr, sorted(names)))


def _apart(options: Options) -> str:
    groups: dict[frozenset[str], list[int]] = {}
    for rank, mine in sorted(options.items()):
        groups.setdefault(mine, []).append(rank)
    said = "; ".join(f"{_ranks(ranks)} to {_named(mine)}" for mine, ranks in groups.items())
    return f"{said}; and no switch is the parent of these: give them one in their specs"
