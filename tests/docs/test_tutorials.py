"""The tutorials, block by block, each in one folder: files are written, commands run, output is compared.

A page runs up to its line `<!-- long -->`, and in `make test-long` to its end; three pages run there only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mininet_topos.available import why_no_networks
from tests.switchagg.control.drivers.rack import ALONE

REPOSITORY = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in sorted((REPOSITORY / "docs" / "tutorials").glob("*.md"))}
LONG = "<!-- long -->\n"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BINARIES = Path(sys.executable).parent
MODULES = {"first-hour": "lark", "rack": "finsy", "pytorch-job": "torch", "p4-change": "lark"}
SLOW = ("p4-change", "pytorch-job", "compressor")
PROGRAMS = {"pytorch-job": "git", "p4-change": "git"}


def _skip_without_what_it_needs(page: str) -> None:
    if not (BINARIES / "switchagg").exists():
        pytest.skip("switchagg is not installed beside this Python")
    if page in MODULES and importlib.util.find_spec(MODULES[page]) is None:
        pytest.skip(f"{MODULES[page]} is not installed here")
    if page in PROGRAMS and shutil.which(PROGRAMS[page]) is None:
        pytest.skip(f"{PROGRAMS[page]} is not on PATH")
    if page == "rack" and why_no_networks():
        pytest.skip(why_no_networks())


def _follow(page: str, text: str, folder: Path) -> None:
    """Does what a page says. Networks of Mininet are built in a namespace, beside those of other tests."""
    _skip_without_what_it_needs(page)
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks].count("sh") > 1
    environment = os.environ | {"PATH": f"{BINARIES}:{os.environ['PATH']}", "CHECKOUT": str(REPOSITORY)}
    shell = [*(["unshare", *ALONE] if page == "rack" else []), "bash", "-e", "-o", "pipefail", "-c"]
    said = ""
    try:
        for kind, content in blocks:
            match kind:
                case "python":
                    name = re.match(r"# (\w+\.py)\n", content)
                    assert name, content
                    (folder / name[1]).write_text(content)
                case "sh":
                    with (folder / "said").open("wb") as out:
                        run = subprocess.run(
                            [*shell, content],
                            cwd=folder,
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=out,
                            check=False,
                            timeout=240,
                        )
                    said = (folder / "said").read_text()
                    assert run.returncode == 0, f"{content}\n{said}"
                case "text":
                    for line in content.splitlines():
                        assert line in said, f"{line!r} is not in\n{said}"
                case _:
                    assert kind == "console"
    finally:
        if (folder / "host.pid").exists():
            subprocess.run(
                ["kill", (folder / "host.pid").read_text().strip()], check=False, capture_output=True
            )


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page in SLOW else []) for page in PAGES]
)
def test_every_block(page: str, tmp_path: Path) -> None:
    _follow(page, PAGES[page].partition(LONG)[0], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if LONG in text])
def test_every_block_to_the_end(page: str, tmp_path: Path) -> None:
    _follow(page, PAGES[page], tmp_path)


def test_tutorials_are_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text()
    assert [page for page in PAGES if f": tutorials/{page}.md\n" not in navigation] == []
