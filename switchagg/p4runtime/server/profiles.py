"""Action profiles: `ActionProfileMember` and `ActionProfileGroup`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from switchagg.p4entities.tables import ActionProfile
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server import errors
from switchagg.p4runtime.server.codec import Change, check_presence, decode_action, encode_action
from switchagg.p4runtime.server.schema import Schema, TableView

_MOST_WEIGHT: Final = 65536


class Members:
    """Reads and writes the members of a switch's action profiles."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def write(self, change: Change, message: Any) -> None:
        """Does one update. Raises `StatusError`."""
        name, profile, tables = _opened(self._schema, message.action_profile_id)
        number = message.member_id
        what = f"action profile {name}: member {number}"
        check_presence(change, number in profile.members, what)
        if change is Change.DELETE:
            self._refuse_used(profile, tables, number, what)
            profile.remove_member(number)
            return
        if not message.HasField("action"):
            raise errors.invalid(f"{what}: there is no action")
        # All tables of a profile list the same actions.
        view, action = self._schema.listed_action(tables[0], message.action.action_id, default=False)
        arguments = decode_action(view, action, message.action, what)
        if change is Change.MODIFY:
            profile.modify_member(number, action.name, arguments)
            return
        if len(profile.members) >= profile.size > 0:
            raise errors.resource_exhausted(f"action profile {name} is full: it holds {profile.size}")
        profile.add_member(number, action.name, arguments)

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the members that are asked for. Raises `StatusError`."""
        for identity, profile in _asked(self._schema, message.action_profile_id):
            for number, member in profile.members.items():
                if message.member_id not in (0, number):
                    continue
                action = encode_action(self._schema, member.action, member.args)
                entry = {"action_profile_id": identity, "member_id": number, "action": action}
                yield p4runtime_pb2.Entity(action_profile_member=entry)

    def _refuse_used(self, profile: ActionProfile, tables: list[TableView], number: int, what: str) -> None:
        for group, choice in profile.groups.items():
            if number in choice.order:
                raise errors.failed_precondition(f"{what} is in group {group}")
        for table in tables:
            for entry in table.runtime.entries:
                used = entry.choice
                # An action set has members of its own, and groups are checked above.
                if used is None or used.members is not profile.members or used.group is not None:
                    continue
                if number in used.order:
                    raise errors.failed_precondition(f"{what} is in an entry of table {table.name}")


class Groups:
    """Reads and writes the groups of a switch's action selectors."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._sizes: dict[tuple[int, int], int] = {}

    def write(self, change: Change, message: Any) -> None:
        """Does one update. Raises `StatusError`."""
        name, profile, tables = _opened(self._schema, message.action_profile_id)
        number = message.group_id
        what = f"action profile {name}: group {number}"
        if not profile.selector:
            raise errors.invalid(f"{what}: this profile is no selector: it has members only")
        check_presence(change, number in profile.groups, what)
        if change is Change.DELETE:
            for table in tables:
                if any(entry.choice is profile.groups[number] for entry in table.runtime.entries):
                    raise errors.failed_precondition(f"{what} is in an entry of table {table.name}")
            profile.remove_group(number)
            self._sizes.pop((message.action_profile_id, number), None)
            return
        profile.set_group(number, self._order(profile, message, what))
        self._sizes[message.action_profile_id, number] = message.max_size

    def _order(self, profile: ActionProfile, message: Any, what: str) -> list[int]:
        order: list[int] = []
        for each in message.members:
            if each.WhichOneof("watch_kind") is not None:
                raise errors.unimplemented(f"{what}: watch ports are not supported")
            if each.member_id not in profile.members:
                raise errors.not_found(f"{what}: there is no member {each.member_id}")
            if each.member_id in order:
                raise errors.invalid(f"{what}: member {each.member_id} is there twice")
            if each.weight < 1:
                raise errors.invalid(
                    f"{what}: member {each.member_id} has weight {each.weight}; accepted: 1 or more"
                )
            order.append(each.member_id)
        limit = self._schema.info("action_profiles", message.action_profile_id).max_group_size
        return weighted(order, message.members, what, message.max_size, limit)

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the groups that are asked for. Raises `StatusError`."""
        for identity, profile in _asked(self._schema, message.action_profile_id):
            for number, choice in profile.groups.items():
                if message.group_id not in (0, number):
                    continue
                weights = Counter(choice.order)
                members = [{"member_id": member, "weight": weight} for member, weight in weights.items()]
                group = {"action_profile_id": identity, "group_id": number, "members": members}
                group["max_size"] = self._sizes.get((identity, number), 0)
                yield p4runtime_pb2.Entity(action_profile_group=group)


def weighted(order: list[int], messages: Iterable[Any], what: str, *limits: int) -> list[int]:
    """Returns each member as often as its weight says. Raises `StatusError` beyond a limit; 0 is no limit."""
    weights = [each.weight for each in messages]
    most = min(each for each in (*limits, _MOST_WEIGHT) if each)
    if sum(weights) > most:
        raise errors.resource_exhausted(f"{what}: weights of {sum(weights)} in all; accepted: {most}")
    return [member for member, weight in zip(order, weights, strict=True) for _ in range(weight)]


def _opened(schema: Schema, number: int) -> tuple[str, ActionProfile, list[TableView]]:
    """Returns a profile's name, its object, and the tables that have it. Raises `StatusError`."""
    name = schema.info("action_profiles", number).preamble.name
    tables = [table for table in schema.tables() if table.profile == number]
    if not tables or tables[0].runtime.profile is None:
        raise errors.unimplemented(f"action profile {name} has no table")
    return name, tables[0].runtime.profile, tables


def _asked(schema: Schema, number: int) -> Iterator[tuple[int, ActionProfile]]:
    used = {table.profile for table in schema.tables()}
    for each in schema.asked("action_profiles", number):
        if number or each in used:
            yield each, _opened(schema, each)[1]
