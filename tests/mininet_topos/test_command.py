"""What `switchagg topo` says to what cannot work. Nothing is built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.switchagg.control.drivers.rack import has_namespaces

TOPO = [sys.executable, "-m", "switchagg.cli.main", "topo"]
# Mininet's setup needs root and nothing more to find out that what is asked for cannot be.
AS_ROOT = ["unshare", "-rn"]


def _said(*words: str, root: bool = False, **environment: str) -> tuple[int, str]:
    ran = subprocess.run(
        [*(AS_ROOT if root else []), *TOPO, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ring"], "topology is 'ring'; accepted: rack, two_level, shared, asymmetric, clean, check"),
        (["rack", "--loss", "2"], "loss is 2.0; accepted: a probability"),
        (["rack", "--delay", "soon"], "delay is 'soon'; accepted: seconds such as 5ms"),
        (["rack", "--bw", "-5"], "rate is -5.0; accepted"),
        (["rack", "--leaves", "3"], "--leaves is for two_level, not for rack"),
        (["rack", "--plot", "x.gif"], "plot is 'x.gif'; accepted: a file that ends in .png"),
        (["rack", "--plot", "/nowhere/x.png"], "there is no folder /nowhere"),
        (["rack", "--", "no-such-program", "-x"], "command 'no-such-program' is not found"),
    ],
)
def test_what_cannot_be_asked_for(words: list[str], named: str) -> None:
    status, said = _said(*words)
    assert (status, named in said) == (2, True), said
    assert "Traceback" not in said


def test_it_needs_root() -> None:
    # The interpreter may be where nobody else can read; what is asked is who we are, before anything is done.
    code = (
        "import os, sys; os.geteuid = lambda: 1000\n"
        "from switchagg.cli.main import main; sys.exit(main(['topo', 'rack']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "needs root: `sudo` this command" in ran.stderr


@pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here")
@pytest.mark.skipif(not shutil.which("mnexec"), reason="Mininet is not installed")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["rack", "--switch", "ovs"], "switch is 'ovs'; accepted: native, p4, bmv2"),
        (["rack", "--workers", "0"], "workers is 0; accepted: 1 to 32"),
        (["rack", "--workers", "33"], "workers is 33; accepted: 1 to 32"),
        (["two_level", "--leaves", "40"], "leaves is 40; accepted: 1 to 32"),
        (["rack,depth=3"], "a link has no 'depth'; accepted: delay, jitter"),
        (["rack", "--switch", "p4,program=/no/such.p4"], "there is no program /no/such.p4"),
        (["rack", "--switch", "p4,colour=red"], "switch p4 has no 'colour'; accepted: address, defines"),
        (["rack", "--switch", "p4,16"], "switch p4 has no 16; accepted: address, defines"),
    ],
)
def test_what_no_network_has(words: list[str], named: str) -> None:
    status, said = _said(*words, root=True)
    assert (status, named in said) == (2, True), said
    assert "Traceback" not in said


@pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here")
@pytest.mark.skipif(not shutil.which("mnexec"), reason="Mininet is not installed")
def test_a_switch_that_is_not_installed() -> None:
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(each for each in folders if not Path(each, "simple_switch_grpc").exists())
    status, said = _said("rack", "--switch", "bmv2", root=True, PATH=path)
    assert status == 2
    assert "simple_switch_grpc is not on PATH" in said
    assert "take --switch p4" in said
