"""`switchagg topo` refuses arguments that cannot work. No network is built here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.cli.main import main
from tests.mininet_topos.available import why_no_networks

# These are found after the check for root and Mininet.
CASES: list[tuple[list[str], str]] = [
    (["rack", "--switch", "ovs"], "switch is 'ovs'; accepted: native, p4, bmv2"),
    (["rack", "--workers", "0"], "workers is 0; accepted: 1 to 32"),
    (["rack", "--workers", "33"], "workers is 33; accepted: 1 to 32"),
    (["two_level", "--leaves", "40"], "leaves is 40; accepted: 1 to 32"),
    (["rack,depth=3"], "a link has no 'depth'; accepted: delay, jitter"),
    (["rack", "--switch", "p4,program=/no/such.p4"], "there is no program /no/such.p4"),
    (["rack", "--switch", "p4,colour=red"], "switch p4 has no 'colour'; accepted: address, defines"),
    (["rack", "--switch", "p4,16"], "switch p4 has no 16; accepted: address, defines"),
    (["rack", "--switch", "bmv2"], "simple_switch_grpc is not on PATH"),
]
_RUN = """
import contextlib, io, json, sys
from switchagg.cli.main import main
found = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        found.append([main(["topo", *words]), said.getvalue()])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ring"], "topology is 'ring'; accepted: rack, two_level, shared, asymmetric, clean, custom, check"),
        (["rack", "--loss", "2"], "loss is 2.0; accepted: a probability"),
        (["rack", "--delay", "soon"], "delay is 'soon'; accepted: seconds such as 5ms"),
        (["rack", "--bw", "-5"], "rate is -5.0; accepted"),
        (["rack", "--leaves", "3"], "--leaves is for two_level, not for rack"),
        (["rack", "--plot", "x.gif"], "plot is 'x.gif'; accepted: a file that ends in .png"),
        (["rack", "--plot", "/nowhere/x.png"], "there is no folder /nowhere"),
        (["rack", "--", "no-such-program", "-x"], "command 'no-such-program' is not found"),
    ],
)
def test_what_cannot_be_asked_for(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", *words]) == 2
    assert named in capsys.readouterr().err


def test_it_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["topo", "rack"]) == 2
    assert "needs root: `sudo` this command" in capsys.readouterr().err


@pytest.fixture(scope="module")
def said() -> list[tuple[int, str]]:
    """Returns status and output of each of the cases, as root without bmv2."""
    if why := why_no_networks():
        pytest.skip(why)
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(each for each in folders if not Path(each, "simple_switch_grpc").exists())
    asked = json.dumps([words for words, _ in CASES])
    ran = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", _RUN, asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    return [(status, text) for status, text in json.loads(ran.stdout.splitlines()[-1])]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(words) for words, _ in CASES])
def test_what_no_network_has(said: list[tuple[int, str]], number: int) -> None:
    status, text = said[number]
    assert status == 2
    assert CASES[number][1] in text
