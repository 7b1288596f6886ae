"""The replication engine: multicast groups and clone sessions.

A group is a tree of two levels: nodes, each with a replication id (rid), and each node's ports. Every port
of every node gets a copy that carries the node's rid. A Tofino node may have an exclusion id of its own
(level 1), and a packet may name a rid whose copies are not sent to one port (level 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from switchagg.p4entities.matches import TableError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Node:
    """Ports that get a copy with replication id `rid`. `xid` is a Tofino's level-1 exclusion id."""

    rid: int
    ports: tuple[int, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class CloneSession:
    """The target of a session's clones: a port, a multicast group, or both; cut to `length` bytes."""

    port: int | None = None
    group: int | None = None
    length: int | None = None


@dataclass(slots=True)
class Replication:
    """The state of the engine. The target has groups `min_group` to `max_group`."""

    max_group: int = 0xFFFF
    min_group: int = 1
    _nodes: dict[int, Node] = field(default_factory=dict)
    _groups: dict[int, list[int]] = field(default_factory=dict)
    _sessions: dict[int, CloneSession] = field(default_factory=dict)
    _owned: dict[int, list[int]] = field(default_factory=dict)
    """Nodes that were made for one group, and go with it."""
    _next: int = 0

    def add_group(self, group: int) -> None:
        """Creates an empty group. Raises TableError if it exists, or the number is out of range."""
        if not self.min_group <= group <= self.max_group:
            raise TableError(f"multicast group {group} is not within {self.min_group}..{self.max_group}")
        if group in self._groups:
            raise TableError(f"multicast group {group} is there already")
        self._groups[group] = []

    def remove_group(self, group: int) -> None:
        """Removes a group. Raises TableError if there is none."""
        _existing(self._groups, group, "multicast group")
        del self._groups[group]
        for handle in self._owned.pop(group, ()):
            del self._nodes[handle]

    def add_node(self, rid: int, ports: Sequence[int], xid: int | None = None) -> int:
        """Creates a node. Returns its handle; handles count up from 0."""
        handle = self._next
        self._next += 1
        self._nodes[handle] = Node(rid, tuple(ports), xid)
        return handle

    def update_node(self, handle: int, ports: Sequence[int]) -> None:
        """Gives a node other ports. Raises TableError if there is no such node."""
        node = _existing(self._nodes, handle, "multicast node")
        self._nodes[handle] = replace(node, ports=tuple(ports))

    def associate(self, group: int, handle: int) -> None:
        """Puts a node into a group. Raises TableError."""
        _existing(self._nodes, handle, "multicast node")
        _existing(self._groups, group, "multicast group").append(handle)

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Creates or replaces a group by its (rid, port) pairs, as P4Runtime gives them."""
        if group in self._groups:
            self.remove_group(group)
        self.add_group(group)
        self._fill(group, replicas)

    def _fill(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._owned[group] = [self.add_node(rid, (port,)) for rid, port in replicas]
        self._groups[group] = list(self._owned[group])

    def has_group(self, group: int) -> bool:
        """Returns True if there is such a multicast group."""
        return group in self._groups

    def copies(self, group: int) -> Iterator[tuple[Node, int]]:
        """Yields the (node, port) of every copy; none for a group that does not exist."""
        for handle in self._groups.get(group, ()):
            node = self._nodes[handle]
            for port in node.ports:
                yield node, port

    def set_session(self, session: int, target: CloneSession) -> None:
        """Sets the target of a session's clones."""
        self._sessions[session] = target

    def set_session_replicas(
        self, session: int, replicas: Sequence[tuple[int, int]], length: int | None = None
    ) -> None:
        """Sends clones of a session to (rid, port) pairs, as P4Runtime gives them."""
        if session in self._sessions:
            self.remove_session(session)
        # A group of its own, with a number that no packet's metadata can hold.
        group = -1 - session
        self._fill(group, replicas)
        self._sessions[session] = CloneSession(group=group, length=length)

    def remove_session(self, session: int) -> None:
        """Removes a clone session. Raises TableError if there is none."""
        group = _existing(self._sessions, session, "clone session").group
        del self._sessions[session]
        if group is not None and group < 0:
            self.remove_group(group)

    def session(self, session: int) -> CloneSession | None:
        """Returns the target of a session's clones, if the session exists."""
        return self._sessions.get(session)


def _existing(things: dict[int, _T], number: int, what: str) -> _T:
    if number not in things:
        raise TableError(f"there is no {what} {number}")
    return things[number]
