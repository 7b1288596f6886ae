"""Wanted against present contents of a switch, without a switch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from switchagg.errors import SwitchError
from switchagg.p4program.program import MAX_JOBS, MulticastGroup, Station
from switchagg.p4runtime.client.layout import Difference, Found, Layout
from switchagg.p4runtime.client.pipeline import describe
from switchagg.p4runtime.client.rows import Row, Schema
from switchagg.p4runtime.program_source import source_of
from switchagg.rules.switch import Reconciled
from tests.switchagg.control.drivers import model_switch
from tests.switchagg.control.drivers.model_switch import STATIONS, TNA, V1MODEL, job


@pytest.fixture(scope="module")
def infos() -> dict[str, Any]:
    """The P4Infos of our programs."""
    return {
        "v1model": source_of(V1MODEL, (), ["AGG_WORDS=16"]).p4info,
        "tna": source_of(TNA, (), ["AGG_WORDS=16", "AGG_P4RUNTIME=1"]).p4info,
    }


def _layout(p4info: Any, **more: Any) -> Layout:
    spec = model_switch.spec("127.0.0.1:9559", **more)
    return Layout(spec, describe(spec, p4info), Schema(p4info))


def _written(layout: Layout, made: Difference) -> Found:
    """A switch that had nothing, after a difference."""
    rows = {row.key: row for row in made.insert}
    groups = {group.group: group for group in made.insert_groups}
    flood = layout.schema.row(layout.flood)
    return Found(rows, groups, flood)


NOTHING = Found({}, {}, None)


def test_a_second_look_finds_nothing_to_write(infos: dict[str, Any]) -> None:
    layout = _layout(infos["v1model"])
    entries = [job(n, base=32 * n, workers=n) for n in range(1, 4)]
    made = layout.difference(NOTHING, entries, {2: 0b10})
    assert made.outcome == Reconciled(missing=(1, 2, 3))
    again = layout.difference(_written(layout, made), entries, {2: 0b10})
    assert again.outcome == Reconciled(kept=(1, 2, 3))
    for each in (again.delete, again.modify, again.insert, again.modify_groups, again.insert_groups):
        assert each == []
    assert not again.set_default


def test_indices_are_read_back(infos: dict[str, Any]) -> None:
    layout = _layout(infos["v1model"])
    entries = [job(n, base=32 * n) for n in range(1, 5)]
    found = _written(layout, layout.difference(NOTHING, entries, {}))
    # 1 and 3 have gone, 9 has come: the others stay where they are, it takes the first place.
    left = [entries[1], entries[3], job(9, base=512)]
    made = layout.difference(found, left, {})
    assert {number: each.place.index for number, each in made.jobs.items()} == {2: 1, 4: 3, 9: 0}
    assert made.outcome == Reconciled(kept=(2, 4), missing=(9,), removed=(1, 3))
    assert [each.group for each in made.delete_groups] == [3]
    assert [each.group for each in made.modify_groups] == []


def test_an_index_that_is_said_twice_counts_once(infos: dict[str, Any]) -> None:
    layout = _layout(infos["v1model"])
    entries = [job(1, base=32), job(2, base=64)]
    found = _written(layout, layout.difference(NOTHING, entries, {}))
    rows = dict(found.rows)
    counter_index = layout._counter_index
    for key, row in found.rows.items():
        if layout.job_of(row) == 2 and row.param(counter_index) == 32 and row.action == layout._initialise:
            rows[key] = _with_param(row, counter_index, 0)
    made = layout.difference(Found(rows, found.groups, found.default), entries, {})
    assert sorted(each.place.index for each in made.jobs.values()) == [0, 1]
    assert len(made.outcome.kept) == 1


def _with_param(row: Row, number: int, value: int) -> Row:
    params = tuple((each, value if each == number else old) for each, old in row.params)
    return replace(row, params=params)


def test_what_is_somebody_elses_stays(infos: dict[str, Any]) -> None:
    layout = _layout(infos["v1model"])
    found = _written(layout, layout.difference(NOTHING, [], {}))
    station = next(row for row in found.rows.values() if row.table == layout._stations)
    other = replace(station, matches=((station.matches[0][0], type(station.matches[0][1])(0x0A)),))
    group = MulticastGroup(300, ((1, 1),))
    made = layout.difference(
        Found({**found.rows, other.key: other}, {**found.groups, 300: group}, found.default), [], {}
    )
    assert (made.delete, made.delete_groups) == ([], [])
    ours = MulticastGroup(3, ((1, 1),))
    made = layout.difference(Found(found.rows, {**found.groups, 3: ours}, found.default), [], {})
    assert made.delete_groups == [ours]


def test_indices_run_out(infos: dict[str, Any]) -> None:
    layout = _layout(infos["v1model"])
    assert layout.free_index([0, 1, 3]) == 2
    with pytest.raises(SwitchError, match="there are 256 jobs already"):
        layout.free_index(range(MAX_JOBS))


def test_a_tofinos_jobs_are_in_one_pipe(infos: dict[str, Any]) -> None:
    stations = ["10.0.0.1,02:00:00:00:00:01,130", "10.0.0.2,02:00:00:00:00:02,258"]
    layout = _layout(infos["tna"], stations=stations, target="tofino")
    one = job(1, workers=1)
    assert layout.holding(one, 0).place.stations == {0: Station(130, STATIONS["10.0.0.1"].mac)}
    with pytest.raises(
        SwitchError, match=r"station 10\.0\.0\.2 is on port 258, in pipe 2; jobs run in pipe 1"
    ):
        layout.holding(job(1, workers=2), 0)
