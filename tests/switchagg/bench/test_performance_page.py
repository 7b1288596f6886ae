"""Tables of all-reduce say what a run measured, and name the best peer of each row, whoever is faster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import performance_page
from scripts.performance_page import RESULTS, best_peer, take_in
from tests.switchagg.cli.processes import outcome

MACHINE = {"cpu": "a processor", "cores": 2, "kernel": "6.1"}


def _run(system: str, ms: float, *, transport: str | None = None, bits: object = 32, **others: Any) -> Any:
    seconds = {"call_p50": ms / 1e3, "call_p99": 2 * ms / 1e3}
    cell = {"workers": 4, "bytes": 4096, "dtype": "float32", "density": 1.0, "loss": 0.0, "exact": True}
    return (
        {"system": system, "transport": transport, "bits": bits, "seconds": seconds, "cpu_seconds": 0}
        | cell
        | others
    )


def _file(folder: Path, runs: list[Any], **others: Any) -> Path:
    file = folder / "run.json"
    file.write_text(json.dumps({"machine": MACHINE, "failed": [], "runs": runs} | others))
    return file


def _pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = []
    for name in ("PAGE", "README"):
        made.append(folder / name)
        made[-1].write_text("before\n" + "former\n".join(performance_page.MARKS) + "after\n")
        monkeypatch.setattr(performance_page, name, made[-1])
    monkeypatch.setattr(performance_page, "RESULTS", folder / "allreduce.json")
    return made[0], made[1]


def _script(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["performance_page", *map(str, words)])
    performance_page.main()


@pytest.mark.long
def test_a_real_run_becomes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="gloo is torch's")
    file = tmp_path / "real.json"
    words = [
        "--workers",
        "2",
        "--size",
        "4K",
        "--density",
        "1",
        "--bits",
        "32",
        "--compare",
        "gloo,udp-floor",
    ]
    status, out, err = outcome(
        "bench", "allreduce", *words, "--repeat", "2", "--json", str(file), seconds=120
    )
    assert status == 0, out + err
    page, _ = _pages(tmp_path, monkeypatch)
    _script(monkeypatch, file)
    [computer] = json.loads((tmp_path / "allreduce.json").read_text())
    [row] = computer["rows"]
    assert {each["system"] for each in row["runs"]} == {"switchagg", "gloo"}
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "former" not in text
    [cells] = [line.split(" | ") for line in text.splitlines() if line.startswith("| 4KB, 2 workers | - |")]
    assert cells[5].startswith("gloo: ")
    _script(monkeypatch, "--check")
    page.write_text(text.replace("gloo: ", "gloo: 1"))
    with pytest.raises(SystemExit, match="differs"):
        _script(monkeypatch, "--check")


def test_the_best_peer_is_named_also_where_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = _run("switchagg", 2.0, transport="slots")
    small = [ours, _run("gloo", 9.0), _run("mpich", 0.5), _run("oneccl", 0.7)]
    large = [each | {"bytes": 1 << 26} for each in (ours, _run("gloo", 9.0), _run("mpich", 10.0))]
    page, readme = _pages(tmp_path, monkeypatch)
    _script(monkeypatch, _file(tmp_path, small + large))
    for text in (page.read_text(), readme.read_text()):
        rows = [line for line in text.splitlines() if " workers | - |" in line]
        assert [row.split(" | ")[-2:] for row in rows] == [
            ["mpich: 0.5 / 1", "0.25 |"],
            ["gloo: 9 / 18", "4.5 |"],
        ]
    assert "| 4KB, 4 workers | 9 / 18 | 0.5 / 1 | 0.7 / 1.4 |" in page.read_text()


def test_a_later_run_replaces_a_row_as_a_whole(tmp_path: Path) -> None:
    told = take_in([], _file(tmp_path, [_run("gloo", 9.0), _run("mpich", 1.0), _run("gloo", 1.0, workers=2)]))
    [computer] = take_in(told, _file(tmp_path, [_run("gloo", 8.0)]))
    assert [(row["workers"], len(row["runs"])) for row in computer["rows"]] == [(2, 1), (4, 1)]
    peer = best_peer(computer["rows"][1])
    assert peer is not None
    assert peer["p50"] == 0.008


def test_computers_have_tables_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, readme = _pages(tmp_path, monkeypatch)
    for cpu, ms in (("one", 8.0), ("two", 9.0), ("three", 7.0), ("two", 5.0)):
        _script(monkeypatch, _file(tmp_path, [_run("gloo", ms)], machine=MACHINE | {"cpu": cpu}))
    tables = page.read_text().split("On 2 cores (")[1:]
    found = [(table.split(",")[0], table.split("gloo: ")[1].split(" |")[0]) for table in tables]
    assert found == [("two", "5 / 10"), ("three", "7 / 14"), ("one", "8 / 16")]
    assert "2 cores (two," in readme.read_text()
    assert "three" not in readme.read_text()


@pytest.mark.parametrize(
    ("runs", "others", "message"),
    [
        ([_run("gloo", 1.0, exact=False)], {}, "gloo gave wrong sums"),
        (
            [_run("gloo", 1.0)],
            {"failed": [{"system": "mpich", "error": "a rank ended"}]},
            "mpich failed: a rank",
        ),
        ([_run("gloo", 1.0, loss=0.1)], {}, "no sums of float32 without losses"),
    ],
)
def test_runs_that_no_table_may_show(tmp_path: Path, runs: Any, others: Any, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        take_in([], _file(tmp_path, runs, **others))


@pytest.mark.skipif(not RESULTS.exists(), reason="docs/results has no run of all-reduce yet")
def test_the_pages_are_made_from_the_results() -> None:
    command = [sys.executable, "-m", "scripts.performance_page", "--check"]
    done = subprocess.run(command, cwd=performance_page.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
