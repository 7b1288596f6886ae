"""The election of the primary, without I/O."""

from __future__ import annotations

import pytest

from switchagg.p4runtime.server.arbitration import Arbitration, Notice
from switchagg.p4runtime.server.errors import Code, StatusError


def test_the_largest_election_id_is_primary() -> None:
    clients = Arbitration()
    assert clients.update("a", 5) == [Notice("a", Code.OK, 5)]
    assert clients.update("b", 3) == [Notice("b", Code.ALREADY_EXISTS, 5)]
    assert clients.update("c", 8) == [
        Notice("a", Code.ALREADY_EXISTS, 8),
        Notice("b", Code.ALREADY_EXISTS, 8),
        Notice("c", Code.OK, 8),
    ]
    assert clients.primary == "c"
    assert clients.is_primary(8)
    assert not clients.is_primary(5)


def test_nobody_follows_a_primary_that_goes_until_an_id_as_large_comes() -> None:
    clients = Arbitration()
    clients.update("a", 8)
    clients.update("b", 7)
    assert clients.leave("a") == [Notice("b", Code.NOT_FOUND, 8)]
    assert not clients.is_primary(8)
    assert clients.update("b", 7) == [Notice("b", Code.NOT_FOUND, 8)]
    assert clients.update("b", 8) == [Notice("b", Code.OK, 8)]


def test_a_primary_steps_down_by_a_smaller_id() -> None:
    clients = Arbitration()
    clients.update("a", 8)
    clients.update("b", 2)
    assert clients.update("a", 1) == [Notice("a", Code.NOT_FOUND, 8), Notice("b", Code.NOT_FOUND, 8)]
    assert clients.primary is None


def test_an_election_id_belongs_to_one_client() -> None:
    clients = Arbitration()
    clients.update("a", 8)
    with pytest.raises(StatusError, match="belongs to another"):
        clients.update("b", 8)
    assert clients.update("a", 8) == [Notice("a", Code.OK, 8)]


def test_without_an_election_id_nobody_is_primary() -> None:
    clients = Arbitration()
    assert clients.update("a", None) == [Notice("a", Code.NOT_FOUND, None)]
    assert clients.update("b", None) == [Notice("b", Code.NOT_FOUND, None)]
    assert not clients.is_primary(None)
    # Zero is an election id; none at all is not.
    assert clients.update("c", 0)[-1] == Notice("c", Code.OK, 0)


def test_a_backup_that_goes_is_not_news() -> None:
    clients = Arbitration()
    clients.update("a", 2)
    clients.update("b", 1)
    assert clients.leave("b") == []
    assert clients.leave("error") == []
    assert clients.is_primary(2)
