"""Action profiles and selectors: actions that many table entries share, alone or as groups to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from switchagg.p4model.runtime.matches import TableError

if TYPE_CHECKING:
    from switchagg.p4model.runtime.tables import Action


class Deed:
    """An action with its arguments, as translated code runs it."""

    __slots__ = ("action", "args", "hit", "index", "run")

    def __init__(self, action: Action, args: tuple[int, ...], *, hit: bool = True) -> None:
        self.hit = hit
        self.set_action(action, args)

    def set_action(self, action: Action, args: tuple[int, ...]) -> None:
        """Replaces what is done."""
        self.action = action
        self.args = args
        self.index = action.index
        self.run = action.run


class Choice(Deed):
    """A member of a profile."""

    __slots__ = ()


@dataclass(slots=True)
class ProfileChoice:
    """What an entry of a table with a profile names: one member, or a group and the profile that picks."""

    members: dict[int, Choice]
    order: list[int]
    group: int | None = None

    def pick(self, number: int) -> Choice | None:
        """The member for this hash; none of an empty group."""
        if not self.order:
            return None
        return self.members[self.order[number % len(self.order)]]


@dataclass(slots=True)
class ActionProfile:
    """A profile or a selector. `select` hashes a selector's key: (value, width) to a number."""

    name: str
    size: int
    selector: bool = False
    select: Callable[[int, int], int] | None = None
    actions: dict[str, Action] = field(default_factory=dict)
    members: dict[int, Choice] = field(default_factory=dict)
    groups: dict[int, ProfileChoice] = field(default_factory=dict)

    def add_member(self, member: int, action: str, arguments: Mapping[str, int] | Sequence[int] = ()) -> None:
        """Adds a member under an id that is free. Raises TableError."""
        if member in self.members:
            raise TableError(f"action profile {self.name} has a member {member} already")
        if len(self.members) >= self.size > 0:
            raise TableError(f"action profile {self.name} is full: it holds {self.size} members")
        chosen = self._action(action)
        self.members[member] = Choice(chosen, chosen.bind(arguments))

    def modify_member(
        self, member: int, action: str, arguments: Mapping[str, int] | Sequence[int] = ()
    ) -> None:
        """Replaces what a member does. Raises TableError."""
        chosen = self._action(action)
        self._member(member).set_action(chosen, chosen.bind(arguments))

    def remove_member(self, member: int) -> None:
        """Removes a member that no group has. Raises TableError."""
        self._member(member)
        for group, choice in self.groups.items():
            if member in choice.order:
                raise TableError(f"action profile {self.name}: member {member} is in group {group}")
        del self.members[member]

    def set_group(self, group: int, members: Sequence[int]) -> None:
        """Creates a group, or gives it other members. Raises TableError."""
        if not self.selector:
            raise TableError(f"action profile {self.name} is no selector: it has no groups")
        for member in members:
            self._member(member)
        if group in self.groups:
            self.groups[group].order[:] = members
        else:
            self.groups[group] = ProfileChoice(self.members, list(members), group)

    def remove_group(self, group: int) -> None:
        """Removes a group; entries that name it must be gone. Raises TableError if there is none."""
        if group not in self.groups:
            raise TableError(f"action profile {self.name} has no group {group}")
        del self.groups[group]

    def choice(self, member: int | None, group: int | None) -> ProfileChoice:
        """What an entry holds that names this member or this group. Raises TableError."""
        if (member is None) == (group is None):
            raise TableError(f"action profile {self.name}: name either a member or a group")
        if member is not None:
            self._member(member)
            return ProfileChoice(self.members, [member])
        if group not in self.groups:
            raise TableError(f"action profile {self.name} has no group {group}")
        return self.groups[group]

    def rebind(self) -> None:
        """Takes up the actions' functions anew, after translation has set them."""
        for choice in self.members.values():
            choice.run = choice.action.run

    def _action(self, name: str) -> Action:
        if name not in self.actions:
            listed = ", ".join(sorted(self.actions)) or "none"
            raise TableError(f"action profile {self.name} has no action {name}; it has {listed}")
        return self.actions[name]

    def _member(self, member: int) -> Choice:
        if member not in self.members:
            raise TableError(f"action profile {self.name} has no member {member}")
        return self.members[member]


__all__ = ["ActionProfile", "Choice", "ProfileChoice"]
