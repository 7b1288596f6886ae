"""The program as a whole."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import switchagg
from switchagg.cli.main import COMMANDS, main
from tests.switchagg.cli.processes import command, outcome


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for name, (_, meaning) in COMMANDS.items():
        assert re.search(rf"^    {name}\s", said, re.M)
        assert meaning.split()[0] in said


def test_help_by_topics(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["switch", *words])
        assert end.value.code == 0
        return capsys.readouterr().out

    short, p4, everything = said("-h"), said("--help", "p4"), said("--help", "all")
    assert "--engine" in short
    assert "--program FILE" not in short
    assert "--program FILE" in p4
    assert "--engine {" not in p4
    for topic in ("p4", "ethernet", "p4runtime", "bmv2", "network", "all"):
        assert re.search(rf"^  --help {topic} ", short, re.M)
    assert {"--engine", "--program", "--loss", "--p4runtime", "--no-p4", "--interface"} <= set(
        re.findall(r"--[a-z0-9-]+", everything)
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: switchagg {name}" in capsys.readouterr().out


def test_help_imports_no_command() -> None:
    program = """
import sys
from switchagg.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"numpy", "rich", "worker_lib", "http.client", "switchagg.cli.run"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_version() -> None:
    assert outcome("--version") == (0, f"switchagg {switchagg.__version__}\n", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "switchagg: the following arguments are required: COMMAND; see `switchagg --help`"),
        (["nonsense"], "switchagg: there is no command 'nonsense'; see `switchagg --help`"),
        (["jbos"], "switchagg: there is no command 'jbos', but 'jobs'; see `switchagg --help`"),
        (
            ["jobs", "--nonsense"],
            "switchagg jobs: unrecognized arguments: --nonsense; see `switchagg jobs --help`",
        ),
        (
            ["job", "create", "a"],
            "switchagg job create: the following arguments are required: --world-size; "
            "see `switchagg job create --help`",
        ),
        (
            ["switch", "--help", "colours"],
            "switchagg switch: topic is 'colours'; accepted: p4, ethernet, p4runtime, bmv2, network, all; "
            "see `switchagg switch --help`",
        ),
        (["bench", "policy", "--json", "/dev/null/a"], None),
        (["p4", "check", "/dev/null/a"], None),
        (["demo", "--report", "/dev/null/a"], None),
    ],
)
def test_a_mistake_is_one_line(line: list[str], said: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(line)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err == f"{said}\n" if said else err.startswith(f"switchagg {line[0]}: ")


def test_its_status_is_that_of_the_process() -> None:
    assert outcome("jobs", "--nonsense")[0] == 2
    assert outcome("p4", "check", "/dev/null/a")[0] == 2


def test_a_reader_that_goes_away() -> None:
    """As `head` does, before there is anything to read."""
    with command(["run", "-n", "1", "--", "sh", "-c", "yes"]) as running:
        assert running.process.stdout is not None
        running.process.stdout.readline()
        running.process.stdout.close()
        running.process.stdout = None
        status, _, err = running.finish()
    assert (status, err) == (141, "")
