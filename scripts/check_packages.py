"""Builds the sdist and the wheels, installs them into fresh environments, and uses them from another folder.

    python scripts/check_packages.py python3.11 python3.12 python3.13

For each Python: the wheel from the sdist, alone: `pip check`, a job, the demo, the web page, and a rack of
native switches (as root, where Mininet is installed); with the extra p4runtime: `switchagg p4 check` and a
rack with p4. Python 3.12 and newer share one wheel. Prints a line a step; exit status 1 where one fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

JOB = """
import numpy as np, worker_lib
with worker_lib.connect() as session:
    x = np.full(1000, session.rank + 1, np.float32)
    session.allreduce(x)
    assert (x == 3).all() and worker_lib.__version__
"""
PAGE = """
import urllib.request
from switchagg.control.embedded import EmbeddedController
with EmbeddedController() as controller:
    assert b"<title>switchagg" in urllib.request.urlopen(controller.url + "/").read()
"""
INSIDE = (
    "switchagg/p4program/p4/switchagg_v1model.p4",
    "switchagg/p4program/p4/include/constants.p4",
    "switchagg/control/page/index.html",
    "switchagg/py.typed",
    "mininet_topos/custom.py",
    "worker_lib/c/switchagg.h",
    "worker_lib/c/libswitchagg.so",
    "dist-info/licenses/LICENSE",
)
REPOSITORY = Path(__file__).resolve().parents[1]


def _run(*line: str | Path, cwd: Path) -> None:
    """Runs a command. Ends the program with its output where it fails."""
    done = subprocess.run(
        list(map(str, line)),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'}  {' '.join(map(str, line))[:150]}", flush=True)
    if done.returncode:
        sys.exit(done.stdout[-4000:])


def _environment(python: str, folder: Path) -> Path:
    _run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin"


def _wheel(python: str, sdist: Path, folder: Path) -> Path:
    """Returns the wheel for a Python, which an earlier one may have made."""
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    minor = int(version.split(".")[1])
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    if not (found := sorted(folder.glob(f"*{tag}*.whl"))):
        _run(python, "-m", "pip", "wheel", "--no-deps", "-w", folder, sdist, cwd=folder)
        found = sorted(folder.glob(f"*{tag}*.whl"))
    with zipfile.ZipFile(found[0]) as wheel:
        names = wheel.namelist()
    missing = [each for each in INSIDE if not any(name.endswith(each) for name in names)]
    if missing or any(name.startswith("switchagg/native/") for name in names):
        sys.exit(f"{found[0].name} lacks {missing}, or has the sources of its native modules")
    return found[0]


def _check(python: str, wheel: Path, folder: Path) -> None:
    print(f"---- {python}: {wheel.name}", flush=True)
    place = folder / python.replace("/", "_")
    place.mkdir()
    binaries = _environment(python, place / "env")
    own, command = binaries / "python", binaries / "switchagg"
    _run(own, "-m", "pip", "install", "-q", wheel, cwd=place)
    _run(own, "-m", "pip", "check", cwd=place)
    _run(command, "run", "-n", "2", "--", own, "-c", JOB, cwd=place)
    _run(command, "demo", "--workers", "2", "--steps", "10", "--out", place / "report", cwd=place)
    _run(own, "-c", PAGE, cwd=place)
    racks = os.geteuid() == 0 and shutil.which("mn") is not None and shutil.which("unshare") is not None
    alone = ("unshare", "-rnpfm", "--mount-proc", command, "topo", "rack", "--workers", "2", "--rounds", "1")
    if racks:
        _run(own, "-m", "pip", "install", "-q", "setuptools", cwd=place)  # Mininet 2.3 asks for distutils
        _run(*alone, cwd=place)
    else:
        print("----  no racks: that needs root and Mininet", flush=True)
    _run(own, "-m", "pip", "install", "-q", f"{wheel}[p4runtime]", cwd=place)
    _run(own, "-m", "pip", "check", cwd=place)
    for name in ("v1model", "tna"):
        _run(command, "p4", "check", name, cwd=place)
    if racks:
        _run(*alone, cwd=place)
        _run(*alone, "--elements", "2000", "--switch", "p4", cwd=place)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the sdist and the wheels there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="switchagg-packages-") as name:
        folder = Path(name)
        dist = folder / "dist"
        dist.mkdir()
        builder = _environment(args.pythons[0], folder / "builder") / "python"
        _run(builder, "-m", "pip", "install", "-q", "build", cwd=folder)
        _run(builder, "-m", "build", "--sdist", "--outdir", dist, REPOSITORY, cwd=folder)
        (sdist,) = dist.glob("*.tar.gz")
        for python in args.pythons:
            _check(python, _wheel(python, sdist, dist), folder)
        if args.keep is not None:
            shutil.copytree(dist, args.keep, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
