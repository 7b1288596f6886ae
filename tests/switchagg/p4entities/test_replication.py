"""Multicast groups and clone sessions as P4Runtime sets them."""

from __future__ import annotations

import pytest

from switchagg.p4entities.matches import TableError
from switchagg.p4entities.replication import CloneSession, Replication


def _copies(engine: Replication, group: int) -> list[tuple[int, int]]:
    return [(node.rid, port) for node, port in engine.copies(group)]


def test_a_group_that_is_set_again_leaves_no_nodes_behind() -> None:
    engine = Replication()
    for port in range(100):
        engine.set_group(7, [(1, port), (2, port)])
    assert _copies(engine, 7) == [(1, 99), (2, 99)]
    assert engine.has_group(7)
    engine.remove_group(7)
    assert not engine.has_group(7)
    assert engine._nodes == {}


def test_nodes_of_their_own_outlive_a_group() -> None:
    engine = Replication()
    handle = engine.add_node(5, (1, 2))
    engine.add_group(3)
    engine.associate(3, handle)
    engine.remove_group(3)
    engine.add_group(4)
    engine.associate(4, handle)
    assert _copies(engine, 4) == [(5, 1), (5, 2)]


def test_a_session_with_replicas_is_no_group_that_packets_can_name() -> None:
    engine = Replication()
    engine.set_session_replicas(9, [(1, 4), (2, 5)], 64)
    session = engine.session(9)
    assert session is not None
    assert session.group is not None
    assert (session.group < 0, session.length) == (True, 64)
    assert _copies(engine, session.group) == [(1, 4), (2, 5)]
    assert not any(engine.has_group(group) for group in range(1, 10))
    engine.set_session_replicas(9, [(3, 6)])
    assert _copies(engine, session.group) == [(3, 6)]
    engine.remove_session(9)
    assert engine.session(9) is None
    assert engine._nodes == {}
    with pytest.raises(TableError, match="no clone session 9"):
        engine.remove_session(9)


def test_replication() -> None:
    engine = Replication()
    engine.add_group(1)
    first = engine.add_node(400, [6, 7])
    second = engine.add_node(401, [8], xid=3)
    assert (first, second) == (0, 1)
    engine.associate(1, first)
    engine.associate(1, second)
    assert [(node.rid, port) for node, port in engine.copies(1)] == [(400, 6), (400, 7), (401, 8)]
    engine.update_node(first, [9])
    assert [port for _, port in engine.copies(1)] == [9, 8]
    assert list(engine.copies(2)) == []
    engine.set_group(1, [(1, 2), (3, 4)])
    assert [(node.rid, port) for node, port in engine.copies(1)] == [(1, 2), (3, 4)]
    with pytest.raises(TableError, match="group 1 is there already"):
        engine.add_group(1)
    with pytest.raises(TableError, match="group 0 is not within"):
        engine.add_group(0)
    with pytest.raises(TableError, match="no multicast group 2"):
        engine.associate(2, 0)
    with pytest.raises(TableError, match="no multicast node 99"):
        engine.associate(1, 99)
    with pytest.raises(TableError, match="no clone session 5"):
        engine.remove_session(5)
    engine.set_session(5, CloneSession(port=3))
    assert engine.session(5) == CloneSession(port=3)
