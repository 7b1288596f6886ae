"""Networks that are built, used, broken and taken down, with real switches and workers. See `scenarios`."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from tests.mininet_topos.available import why_no_networks
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.rack import in_namespace

pytestmark = pytest.mark.skipif(bool(why_no_networks()), reason=why_no_networks())
SCENARIOS = "tests.mininet_topos.scenarios"


def _exact(seen: dict[str, Any], workers: int) -> bool:
    """Returns True if every sum at every worker was exact."""
    right = len(seen["sums"]) == workers and all(exact == sums > 5 for exact, sums in seen["sums"])
    return right and seen["alike"] and not seen["errors"] and seen["status"] == 0


LONG = os.environ.get("SWITCHAGG_TOPO_LONG") == "1"


def _kinds(*always: str) -> list[Any]:
    """Returns the kinds of switch to test: these, and all in the long form."""
    long = pytest.mark.skipif(not LONG, reason="in the long form: make topo-test")
    return [pytest.param(each, marks=[] if each in always else [long]) for each in ("native", "p4", "bmv2")]


def _run(scenario: str, kind: str, *arguments: str) -> dict[str, Any]:
    """Runs a scenario with a kind of switch, or skips the test."""
    if kind == "bmv2":
        if not (shutil.which("simple_switch_grpc") and shutil.which("p4c-bm2-ss")):
            pytest.skip("simple_switch_grpc or p4c-bm2-ss is not on PATH")
        kind = "bmv2,words=16"
    seen: dict[str, Any] = in_namespace(SCENARIOS, scenario, kind, *arguments, timeout=300)
    return seen


@pytest.fixture(scope="module", params=_kinds("native", "p4"))
def rack(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A rack."""
    return _run("rack", request.param, "1000000" if request.param == "native" else "30000")


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


@pytest.fixture(scope="module", params=_kinds("native"))
def tree(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Two leaves under a root."""
    return _run("tree", request.param, "2", "2", "2000", "0.02")


def test_sums_are_made_in_two_levels(tree: dict[str, Any]) -> None:
    assert _exact(tree["clean"], 4)
    assert _exact(tree["lossy"], 4)
    assert tree["lost"] > 0
    before, after = tree["left"]
    assert before == after


def _levels(seen: dict[str, Any], leaves: int, workers: int) -> None:
    """The root takes a contribution of each leaf for a result, not one of each worker."""
    root = seen["switches"][f"s{leaves + 1}"]
    assert root["accepted"] == leaves * root["results"] > 0
    for leaf in range(1, leaves + 1):
        assert seen["switches"][f"s{leaf}"]["accepted"] == workers * root["results"]


def test_the_root_has_contributions_of_leaves_only(tree: dict[str, Any]) -> None:
    _levels(tree, 2, 2)


@pytest.mark.skipif(not LONG, reason="in the long form: make topo-test")
def test_sixty_four_workers() -> None:
    seen = _run("tree", "native", "4", "16", "20000")
    assert _exact(seen["clean"], 64)
    _levels(seen, 4, 16)
    of_leaves = sum(seen["up"][f"s{leaf}-s5"] for leaf in range(1, 5))
    of_a_worker = min(count for name, count in seen["up"].items() if name.startswith("h"))
    # Those of four workers, and what was sent again: a slow computer makes many repeats.
    root = seen["switches"]["s5"]
    again = 1514 * (root["received"] - root["accepted"])
    assert 0 < of_leaves < 1.02 * 4 * of_a_worker + again


@pytest.mark.skipif(not LONG, reason="in the long form: make topo-test")
def test_two_jobs_at_one_switch_and_links_that_differ() -> None:
    seen: dict[str, Any] = in_namespace(SCENARIOS, "others")
    assert seen["jobs"] == ["a", "a", "b", "b"]
    assert seen["shared"] == [True, True]
    assert _exact(seen["asymmetric"], 3)
    assert seen["lost"]["h1"] == 0 < seen["lost"]["h2"]
    assert "h3" not in seen["lost"]
    assert seen["mbits"] < 5.1


@pytest.fixture(scope="module", params=_kinds("native"))
def ended(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Networks that end in other ways."""
    return _run("ended", request.param, "SIGTERM", *(["SIGINT"] if LONG else []))


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_network_that_is_told_to_end_leaves_nothing(ended: dict[str, Any], name: str, status: int) -> None:
    if name not in ended:
        pytest.skip("in the long form: make topo-test")
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


@pytest.fixture(scope="module", params=_kinds("native"))
def typed(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A session with `mn`."""
    return _run("mn", request.param)


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


@pytest.fixture(scope="module", params=_kinds("native"))
def foreign(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Other hosts at the same switch."""
    elements = "20000" if request.param == "native" else "2000"
    return _run("intruder", request.param, elements, str(seed_of_this_run()))


def test_conventional_hosts_talk_while_a_job_runs(foreign: dict[str, Any]) -> None:
    if not shutil.which("ping"):
        pytest.skip("ping is not on PATH")
    assert _exact(foreign["talking"], 2)
    assert " 5 received" in foreign["ping"]
    if "iperf3" in foreign:
        assert foreign["iperf3"] > 10_000


def test_a_foreign_host_changes_no_sum(foreign: dict[str, Any]) -> None:
    from_outside = foreign["h3"]
    assert from_outside["sent"]["contributions"] > 5
    assert from_outside["sent"]["results"] > 5
    assert from_outside["counters"]["source"] > 0
    assert _exact(from_outside, 2)


def test_the_same_packets_from_a_workers_own_port_would(foreign: dict[str, Any]) -> None:
    assert foreign["h1"]["sent"]["contributions"] > 5
    # They are let in; whether one comes before the worker's own, and so into a sum, is a matter of luck.
    assert foreign["h1"]["let_in"] or not _exact(foreign["h1"], 2)
