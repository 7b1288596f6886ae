"""Networks that are built, used, broken and taken down, with real switches and workers. See `plays`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from switchagg.errors import UsageError
from switchagg.topo import mininet_module
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.rack import has_namespaces, in_namespace


def _why_not() -> str:
    if not has_namespaces():
        return "no network namespaces with bridges here (unshare, nsenter, ip, ethtool)"
    try:
        mininet_module.load()
    except UsageError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
PLAYS = "tests.mininet_topos.plays"


def _exact(seen: dict[str, Any], workers: int) -> bool:
    """Whether every sum was, at every worker, and there were any."""
    right = len(seen["sums"]) == workers and all(exact == sums > 5 for exact, sums in seen["sums"])
    return right and seen["alike"] and not seen["errors"] and seen["status"] == 0


@pytest.fixture(scope="module")
def rack() -> dict[str, Any]:
    """A rack on the P4 model."""
    seen: dict[str, Any] = in_namespace(PLAYS, "rack", "p4", "40000")
    return seen


def test_sums_are_exact(rack: dict[str, Any]) -> None:
    assert _exact(rack["clean"], 2)


def test_sums_are_exact_when_links_lose(rack: dict[str, Any]) -> None:
    assert _exact(rack["lossy"], 2)
    assert rack["lost"] > 0


def test_a_link_goes_down_and_comes_back_in_the_middle(rack: dict[str, Any]) -> None:
    down, still, after = rack["passed"]
    assert down == still < after
    assert _exact(rack["flapped"], 2)


def test_nothing_is_left_of_a_network(rack: dict[str, Any]) -> None:
    before, after = rack["left"]
    assert before == after


@pytest.fixture(scope="module")
def ended() -> dict[str, Any]:
    """Networks that end in other ways."""
    seen: dict[str, Any] = in_namespace(PLAYS, "ended", "p4")
    return seen


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_network_that_is_told_to_end_leaves_nothing(ended: dict[str, Any], name: str, status: int) -> None:
    seen, (before, after) = ended[name]
    assert seen == status
    assert before == after


def test_a_network_that_is_killed_leaves_nothing(ended: dict[str, Any]) -> None:
    before, after = ended["SIGKILL"]
    assert before == after


def test_what_is_left_without_a_guardian_is_refused_and_cleaned(ended: dict[str, Any]) -> None:
    status, said = ended["refused"]
    assert status == 2
    assert "`switchagg topo clean`" in said
    status, said = ended["cleaned"]
    assert status == 0
    assert said.startswith("removed of process ")
    assert ended["again"] == [0, "nothing is left of any run that has ended"]
    before, after = ended["after"]
    assert before == after


def test_cleaning_spares_what_is_not_ours(ended: dict[str, Any]) -> None:
    assert ended["bystanders"] == [None, True, True]


def test_a_name_that_is_taken_is_refused_and_kept(ended: dict[str, Any]) -> None:
    status, said = ended["taken"]
    assert status == 2
    assert "s1-eth2 is there already and is not ours" in said
    assert ended["kept"]


@pytest.fixture(scope="module")
def typed() -> dict[str, Any]:
    """A session with `mn`."""
    seen: dict[str, Any] = in_namespace(PLAYS, "mn", "p4")
    return seen


def test_mn_runs_a_job_as_its_user_types_it(typed: dict[str, Any]) -> None:
    assert typed["status"] == 0
    said = typed["said"].replace("\r", "")
    assert "1\n2\n10.0.0.2\ns1\n" in said
    for rank in (0, 1):
        assert f"[h{rank + 1}] rank {rank}: 19 of 19 sums exact" in said
    assert "failed: h2 (1)\n" in said
    assert "usage: workers CMD" in said
    before, after = typed["left"]
    assert before == after


@pytest.fixture(scope="module")
def foreign() -> dict[str, Any]:
    """Other hosts at the same switch."""
    seen: dict[str, Any] = in_namespace(PLAYS, "intruder", "p4", "2000", str(seed_of_this_run()))
    return seen


def test_conventional_hosts_talk_while_a_job_runs(foreign: dict[str, Any]) -> None:
    if not shutil.which("ping"):
        pytest.skip("ping is not on PATH")
    assert _exact(foreign["talking"], 2)
    assert " 5 received" in foreign["ping"]
    if "iperf3" in foreign:
        assert foreign["iperf3"] > 10_000


def test_a_foreign_host_changes_no_sum(foreign: dict[str, Any]) -> None:
    from_outside = foreign["h3"]
    assert from_outside["sent"]["contributions"] > 100
    assert from_outside["sent"]["results"] > 100
    assert from_outside["counters"]["source"] > 100
    assert _exact(from_outside, 2)


def test_the_same_packets_from_a_workers_own_port_would(foreign: dict[str, Any]) -> None:
    assert foreign["h1"]["sent"]["contributions"] > 100
    assert not _exact(foreign["h1"], 2)
