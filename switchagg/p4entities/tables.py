"""Match-action tables: actions, entries, action profiles, and the look-up that translated code calls.

A table whose fields are all exact is a dict. Otherwise entries are grouped by their masks (tuple space
search): one dict a combination of masks, groups in falling order of their best entry, so that a look-up
ends at the first group that cannot better the entry found so far. Tables with range fields are searched
entry by entry. A cache holds the results for recent keys until the table changes: most tables see few
different keys.

Of several entries that match, the one with the longest prefix wins if the key has an lpm field and
otherwise only exact ones; else the one with the largest priority number, as in P4Runtime; of equal ones the
oldest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from switchagg.p4entities.matches import (
    Canonical,
    KeyField,
    Match,
    MatchKind,
    Parameter,
    TableError,
    Wildcard,
)

_T = TypeVar("_T")

DEFAULT_SIZE: Final = 1024
_CACHED_KEYS: Final = 4096

Arguments = Mapping[str, int] | Sequence[int]
"""Values of an action's parameters, by name or in order."""
Matches = Mapping[str, Match | int] | Sequence[Match | int]
"""Matches of an entry, by the name of the field or in order."""


@dataclass(slots=True, eq=False)
class Action:
    """An action as a table's entries know it.

    `run` is the translated function: it takes the control's frame and the parameters' values.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    index: int = 0
    in_entries: bool = True
    in_default: bool = True
    run: Callable[..., Any] = field(default=lambda *_: None)

    def bind(self, arguments: Arguments) -> tuple[int, ...]:
        """Returns the arguments in order, checked. Raises TableError."""
        names = [parameter.name for parameter in self.parameters]
        if isinstance(arguments, Mapping):
            problems = [f"no parameter {name}" for name in arguments if name not in names]
            problems += [f"parameter {name} is missing" for name in names if name not in arguments]
            if problems:
                raise TableError(f"action {self.name}: {problems[0]}; it takes {_listed(names)}")
            arguments = [arguments[name] for name in names]
        if len(arguments) != len(names):
            raise TableError(
                f"action {self.name} takes {len(names)} arguments ({_listed(names)}), not {len(arguments)}"
            )
        return tuple(p.checked(v, self.name) for p, v in zip(self.parameters, arguments, strict=True))


class BoundAction:
    """An action with its arguments, as translated code runs it."""

    __slots__ = ("action", "args", "hit", "index", "run")

    def __init__(self, action: Action, args: tuple[int, ...], *, hit: bool = True) -> None:
        self.hit = hit
        self.set_action(action, args)

    def set_action(self, action: Action, args: tuple[int, ...]) -> None:
        """Replaces action and arguments."""
        self.action = action
        self.args = args
        self.index = action.index
        self.run = action.run


@dataclass(slots=True)
class MemberChoice:
    """The members that an entry of a table with an action profile chooses from: one, or those of a group.

    Attributes:
        members: those of the profile, or of an action set, by id.
        order: ids to choose from, an id as often as its weight says.
        group: the id of the group, if the entry names one.
    """

    members: dict[int, BoundAction]
    order: list[int]
    group: int | None = None

    def pick(self, number: int) -> BoundAction | None:
        """Returns the member for this hash; None from an empty group."""
        if not self.order:
            return None
        return self.members[self.order[number % len(self.order)]]


@dataclass(slots=True)
class ActionProfile:
    """An action profile or selector: actions that many entries share, alone or as groups to choose from.

    `select` hashes a selector's key, (bits, value), to a number.
    """

    name: str
    size: int
    selector: bool = False
    select: Callable[[int, int], int] | None = None
    actions: dict[str, Action] = field(default_factory=dict)
    members: dict[int, BoundAction] = field(default_factory=dict)
    groups: dict[int, MemberChoice] = field(default_factory=dict)

    def add_member(self, member: int, action: str, arguments: Arguments = ()) -> None:
        """Adds a member under an id that is free. Raises TableError."""
        if member in self.members:
            raise TableError(f"action profile {self.name} has a member {member} already")
        if len(self.members) >= self.size > 0:
            raise TableError(f"action profile {self.name} is full: it holds {self.size} members")
        chosen = self._action(action)
        self.members[member] = BoundAction(chosen, chosen.bind(arguments))

    def modify_member(self, member: int, action: str, arguments: Arguments = ()) -> None:
        """Replaces a member's action. Raises TableError."""
        chosen = self._action(action)
        self._existing("member", self.members, member).set_action(chosen, chosen.bind(arguments))

    def remove_member(self, member: int) -> None:
        """Removes a member that is in no group. Raises TableError."""
        self._existing("member", self.members, member)
        for group, choice in self.groups.items():
            if member in choice.order:
                raise TableError(f"action profile {self.name}: member {member} is in group {group}")
        del self.members[member]

    def set_group(self, group: int, members: Sequence[int]) -> None:
        """Creates a group, or gives it other members. Raises TableError."""
        if not self.selector:
            raise TableError(f"action profile {self.name} is no selector: it has no groups")
        for member in members:
            self._existing("member", self.members, member)
        if group in self.groups:
            self.groups[group].order[:] = members
        else:
            self.groups[group] = MemberChoice(self.members, list(members), group)

    def remove_group(self, group: int) -> None:
        """Removes a group; the caller has removed the entries that name it.

        Raises TableError if there is none.
        """
        self._existing("group", self.groups, group)
        del self.groups[group]

    def choice(self, member: int | None, group: int | None) -> MemberChoice:
        """Returns the choice of an entry that names this member or this group. Raises TableError."""
        if (member is None) == (group is None):
            raise TableError(f"action profile {self.name}: name either a member or a group")
        if member is not None:
            self._existing("member", self.members, member)
            return MemberChoice(self.members, [member])
        return self._existing("group", self.groups, group)

    def _action(self, name: str) -> Action:
        if name not in self.actions:
            listed = _listed(sorted(self.actions))
            raise TableError(f"action profile {self.name} has no action {name}; it has {listed}")
        return self.actions[name]

    def _existing(self, what: str, things: dict[int, _T], number: int | None) -> _T:
        if number not in things:
            raise TableError(f"action profile {self.name} has no {what} {number}")
        return things[number]


class Entry(BoundAction):
    """A table entry, or the default. Direct counters, meters and registers live in it."""

    __slots__ = ("bytes", "cells", "choice", "matches", "meter", "packets", "priority", "rank")

    def __init__(
        self,
        action: Action,
        args: tuple[int, ...],
        *,
        hit: bool = True,
        matches: tuple[Canonical, ...] = (),
        priority: int = 0,
        rank: tuple[int, int] = (0, 0),
        choice: MemberChoice | None = None,
    ) -> None:
        super().__init__(action, args, hit=hit)
        self.matches = matches
        self.priority = priority
        self.rank = rank
        self.choice = choice
        self.packets = 0
        self.bytes = 0
        self.meter: Any = None
        self.cells: dict[tuple[str, int], Any] = {}


class Table:
    """A table. Translated code uses `find` and `miss`; the rest is for the control plane."""

    def __init__(
        self,
        name: str,
        keys: Sequence[KeyField],
        actions: Iterable[Action],
        default: tuple[str, Sequence[int]],
        *,
        size: int | None = None,
        const_entries: bool = False,
        const_default: bool = False,
        profile: ActionProfile | None = None,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.actions = {action.name: action for action in actions}
        self.size = DEFAULT_SIZE if size is None else size
        self.const_entries = const_entries
        self.const_default = const_default
        self.profile = profile
        kinds = [key.kind for key in self.keys]
        self._by_prefix = kinds.count(MatchKind.LPM) == 1 and kinds.count(MatchKind.EXACT) == len(kinds) - 1
        self._prefixed = kinds.index(MatchKind.LPM) if self._by_prefix else -1
        self._exact = all(kind is MatchKind.EXACT for kind in kinds)
        self._ranged = MatchKind.RANGE in kinds
        self._serial = 0
        self._entries: dict[tuple[object, ...], Entry] = {}
        self._bucket: dict[tuple[int, ...], Entry] = {}
        self._groups: list[tuple[tuple[int, int], tuple[int, ...], dict[tuple[int, ...], Entry]]] = []
        self._scan: list[Entry] = []
        self._recent: dict[tuple[int, ...], Entry | None] = {}
        self.find: Callable[[tuple[int, ...]], Entry | None]
        if self._exact:
            self.find = self._bucket.get
        else:
            self._search = self._find_ranged if self._ranged else self._find_masked
            self.find = self._find_recent
        # The entry whose action runs: direct externs use it.
        self.current: Entry
        self._initial_default = default
        self.reset_default()

    # ---- look-up ----

    def _find_recent(self, key: tuple[int, ...]) -> Entry | None:
        try:
            return self._recent[key]
        except KeyError:
            if len(self._recent) >= _CACHED_KEYS:
                self._recent.clear()
            found = self._recent[key] = self._search(key)
            return found

    def _find_masked(self, key: tuple[int, ...]) -> Entry | None:
        best = None
        for rank, masks, bucket in self._groups:
            if best is not None and best.rank >= rank:
                break
            entry = bucket.get(tuple(map(operator.and_, key, masks)))
            if entry is not None and (best is None or entry.rank > best.rank):
                best = entry
        return best

    def _find_ranged(self, key: tuple[int, ...]) -> Entry | None:
        for entry in self._scan:
            for (low, high), value, spec in zip(entry.matches, key, self.keys, strict=True):
                if spec.kind is MatchKind.RANGE:
                    if not low <= value <= high:
                        break
                elif value & high != low:
                    break
            else:
                return entry
        return None

    # ---- control plane ----

    @property
    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return list(self._entries.values())

    def action(self, name: str) -> Action:
        """Returns the action of this name, or the only one whose name ends in it. Raises TableError."""
        if name in self.actions:
            return self.actions[name]
        ending = [each for full, each in self.actions.items() if full.endswith("." + name)]
        if len(ending) == 1:
            return ending[0]
        raise TableError(f"table {self.name} has no action {name}; it has {_listed(sorted(self.actions))}")

    def add(self, matches: Matches, action: str, arguments: Arguments = (), priority: int = 0) -> Entry:
        """Adds an entry. Fields that a mapping leaves out match anything, unless they are exact.

        Raises:
            TableError: the table is constant or full, or has this entry, or the entry does not suit it.
        """
        self._refuse_constant()
        chosen = self.action(action)
        if not chosen.in_entries:
            raise TableError(f"table {self.name}: action {action} is for the default only")
        if self.profile is not None:
            raise TableError(
                f"table {self.name} takes members and groups of {self.profile.name}, not actions"
            )
        return self.insert(matches, chosen, chosen.bind(arguments), priority)

    def add_choice(
        self, matches: Matches, *, member: int | None = None, group: int | None = None, priority: int = 0
    ) -> Entry:
        """Adds an entry that names a member or a group of the table's action profile. Raises TableError."""
        self._refuse_constant()
        if self.profile is None:
            raise TableError(f"table {self.name} has no action profile")
        choice = self.profile.choice(member, group)
        return self.insert(matches, next(iter(self.actions.values())), (), priority, choice)

    def insert(
        self,
        matches: Matches,
        action: Action,
        args: tuple[int, ...],
        priority: int = 0,
        choice: MemberChoice | None = None,
    ) -> Entry:
        """Adds an entry whose arguments are checked already, also to a constant table. Raises TableError."""
        canonical = self.canonical(matches)
        identity = self._identity(canonical, priority)
        if identity in self._entries:
            raise TableError(f"table {self.name} has this entry already: {self.show(canonical)}")
        if len(self._entries) >= self.size:
            raise TableError(f"table {self.name} is full: it holds {self.size} entries")
        self._serial += 1
        first = canonical[self._prefixed][1].bit_count() if self._by_prefix else priority
        rank = first, -self._serial
        entry = Entry(action, args, matches=canonical, priority=priority, rank=rank, choice=choice)
        self._entries[identity] = entry
        self._index(entry)
        return entry

    def lookup(self, matches: Matches, priority: int = 0) -> Entry | None:
        """Returns the entry with exactly these matches, if it exists."""
        return self._entries.get(self._identity(self.canonical(matches), priority))

    def get(self, matches: Matches, priority: int = 0) -> Entry:
        """Returns the entry with exactly these matches. Raises TableError if there is none."""
        found = self.lookup(matches, priority)
        if found is None:
            raise TableError(f"table {self.name} has no entry {self.show(self.canonical(matches))}")
        return found

    def modify(self, entry: Entry, action: str, arguments: Arguments = ()) -> None:
        """Replaces the action of an entry. Raises TableError."""
        self._refuse_constant()
        chosen = self.action(action)
        entry.set_action(chosen, chosen.bind(arguments))

    def remove(self, entry: Entry) -> None:
        """Removes an entry. Raises TableError if it is not in the table, or the table is constant."""
        self._refuse_constant()
        identity = self._identity(entry.matches, entry.priority)
        if self._entries.get(identity) is not entry:
            raise TableError(f"table {self.name} does not hold that entry")
        del self._entries[identity]
        self._unindex(entry)

    def clear(self) -> None:
        """Removes all entries. Raises TableError if the table is constant."""
        self._refuse_constant()
        self._entries.clear()
        self._rebuild()

    def set_default(self, action: str, arguments: Arguments = ()) -> None:
        """Sets the action for a miss. Raises TableError."""
        if self.const_default:
            raise TableError(f"table {self.name} has a constant default action")
        chosen = self.action(action)
        if not chosen.in_default:
            raise TableError(f"table {self.name}: action {action} is not for the default")
        self.miss = Entry(chosen, chosen.bind(arguments), hit=False)

    def reset_default(self) -> None:
        """Sets the default that the program declares."""
        name, arguments = self._initial_default
        self.miss = Entry(self.actions[name], tuple(arguments), hit=False)
        self.current = self.miss

    def rebind(self) -> None:
        """Copies the actions' functions into the entries, after translation has set them."""
        for entry in [*self._entries.values(), self.miss]:
            entry.run = entry.action.run

    def canonical(self, matches: Matches) -> tuple[Canonical, ...]:
        """Returns the canonical form of an entry's matches, in the order of the key. Raises TableError."""
        names = [key.name for key in self.keys]
        if isinstance(matches, Mapping):
            for name in matches:
                if name not in names:
                    raise TableError(f"table {self.name} has no key field {name}; it has {_listed(names)}")
            for key in self.keys:
                if key.name not in matches and key.kind is MatchKind.EXACT:
                    raise TableError(f"table {self.name}: exact key field {key.name} is missing")
            matches = [matches.get(name, Wildcard()) for name in names]
        if len(matches) != len(names):
            raise TableError(
                f"table {self.name} has {len(names)} key fields ({_listed(names)}), not {len(matches)}"
            )
        return tuple(key.canonical(match, self.name) for key, match in zip(self.keys, matches, strict=True))

    def show(self, matches: Sequence[Canonical]) -> str:
        """Returns canonical matches as text for a message."""
        shown = []
        for (first, second), key in zip(matches, self.keys, strict=True):
            if key.kind is MatchKind.RANGE:
                second_shown = f"..{second:#x}"
            else:
                second_shown = "" if second == key.full else f"&&&{second:#x}"
            shown.append(f"{key.name}={first:#x}{second_shown}")
        return ", ".join(shown) or "(no key)"

    def _refuse_constant(self) -> None:
        if self.const_entries:
            raise TableError(f"table {self.name} has constant entries")
        if not self.keys:
            raise TableError(f"table {self.name} has no key: it has a default action only")

    def _identity(self, canonical: tuple[Canonical, ...], priority: int) -> tuple[object, ...]:
        return canonical if self._exact or self._by_prefix else (*canonical, priority)

    # ---- the index that look-ups use ----

    def _index(self, entry: Entry) -> None:
        self._recent.clear()
        values = tuple(value for value, _ in entry.matches)
        if self._exact:
            self._bucket[values] = entry
        elif self._ranged:
            self._scan.append(entry)
            self._scan.sort(key=lambda other: other.rank, reverse=True)
        else:
            masks = tuple(mask for _, mask in entry.matches)
            for position, (rank, group_masks, bucket) in enumerate(self._groups):
                if group_masks == masks:
                    if values not in bucket or bucket[values].rank < entry.rank:
                        bucket[values] = entry
                    self._groups[position] = (max(rank, entry.rank), masks, bucket)
                    break
            else:
                self._groups.append((entry.rank, masks, {values: entry}))
            self._groups.sort(key=lambda group: group[0], reverse=True)

    def _unindex(self, entry: Entry) -> None:
        self._recent.clear()
        values = tuple(value for value, _ in entry.matches)
        if self._exact:
            del self._bucket[values]
        elif self._ranged or any(other.matches == entry.matches for other in self._entries.values()):
            # The next best entry with the same matches takes its place.
            self._rebuild()
        else:
            masks = tuple(mask for _, mask in entry.matches)
            position = next(i for i, group in enumerate(self._groups) if group[1] == masks)
            _, _, bucket = self._groups.pop(position)
            del bucket[values]
            if bucket:
                self._groups.append((max(other.rank for other in bucket.values()), masks, bucket))
                self._groups.sort(key=lambda group: group[0], reverse=True)

    def _rebuild(self) -> None:
        self._recent.clear()
        self._bucket.clear()
        self._groups.clear()
        self._scan.clear()
        for entry in self._entries.values():
            self._index(entry)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
