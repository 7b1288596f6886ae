"""`--json` of every command that ends with a result: standard output is JSON and nothing else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from switchagg.cli.completion import words_of_commands
from tests.switchagg.cli.processes import outcome

# `host` prints JSON always; a shell is talked to; a completion script is what it is.
WITHOUT = {"host", "shell", "completion"}


def test_every_command_has_it() -> None:
    commands = dict(words_of_commands())
    ends = {name: command for name, command in commands.items() if not command.verbs}
    assert len(ends) > 30
    assert {name for name, command in ends.items() if "--json" not in command.options} == WITHOUT


def _json(*words: str, status: int = 0) -> tuple[Any, str]:
    got, out, err = outcome(*words, seconds=200)
    assert got == status, out + err
    return json.loads(out), err


def test_run_tells_how_the_ranks_ended() -> None:
    program = "import os, sys; print('out', flush=True); sys.exit(3 * int(os.environ['RANK']))"
    told, err = _json(
        "run", "-n", "2", "--job", "mine", "--json", "--", sys.executable, "-c", program, status=3
    )
    assert (told["job"], told["status"]) == ("mine", 3)
    assert {each["rank"]: each["status"] for each in told["ranks"]} == {0: 0, 1: 3}
    assert all(0 < each["seconds"] < 200 for each in told["ranks"])
    assert {"[0] out", "[1] out"} < set(err.splitlines())


def test_run_without_prefix_keeps_standard_output_for_itself() -> None:
    told, err = _json("run", "-n", "1", "--no-prefix", "--json", "--", sys.executable, "-c", "print('out')")
    assert told["status"] == 0
    assert err == "out\n"


def test_run_tells_which_signal_killed_a_rank() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    told, _ = _json("run", "-n", "1", "--json", "--", sys.executable, "-c", program, status=137)
    assert told["ranks"][0]["status"] == 137


def test_demo(tmp_path: Path) -> None:
    size = ["--embedding", "2048x8", "--corpus-bytes", "200000", "--batch", "16"]
    told, err = _json("demo", "--workers", "2", "--steps", "3", *size, "--out", str(tmp_path), "--json")
    assert told["weights_identical"]
    assert Path(told["report"]) == tmp_path / "index.html"
    assert len(told["runs"][0]["steps"]) == 3
    assert "step 3/3" in err


@pytest.mark.long
def test_chaos() -> None:
    options = ["--site", "inside", "--jobs", "1", "--workers", "2", "--fault", "worker-stop"]
    told, _ = _json("chaos", "--seconds", "2", "--seed", "5", "--quiet", "--json", *options)
    assert (told["seed"], told["wrong"]) == (5, [])
    assert {each["name"] for each in told["faults"]} == {"worker-stop"}
    assert told["collectives"] > 0


def test_topo() -> None:
    told, _ = _json("topo", "custom", "--json")
    assert Path(told["path"]).name == "custom.py"


def test_bench() -> None:
    line = ["bench", "allreduce", "--workers", "2", "--size", "4K", "--density", "1", "--bits", "32"]
    line += ["--compare", "none", "--transport", "udp", "--repeat", "1", "--warmup", "0"]
    told, _ = _json(*line, "--json")
    assert told["runs"]


@pytest.mark.skipif(importlib.util.find_spec("lark") is None, reason='needs the extra "p4model"')
def test_p4(tmp_path: Path) -> None:
    told, err = _json("p4", "check", "v1model", "--json")
    assert told["program"].endswith("switchagg_v1model.p4")
    assert told["warnings"] == err.splitlines()
    (tmp_path / "wrong.stf").write_text("packet 0 00\nexpect 1 00\n")
    told, _ = _json("p4", "stf", "v1model", str(tmp_path / "wrong.stf"), "--json", status=1)
    assert (told["passed"], told["packets"]) == (False, 1)
    assert len(told["problems"]) == 1
