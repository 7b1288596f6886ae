"""The tutorial, block by block, in one folder: files are written, commands run, their output is compared."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-hour.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BINARIES = Path(sys.executable).parent


def test_every_block(tmp_path: Path) -> None:
    if not (BINARIES / "switchagg").exists():
        pytest.skip("switchagg is not installed beside this Python")
    if importlib.util.find_spec("lark") is None:
        pytest.skip('needs the extra: pip install "switchagg[p4model]"')
    blocks = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _ in blocks].count("sh") > 8
    environment = os.environ | {"PATH": f"{BINARIES}:{os.environ['PATH']}"}
    said = ""
    try:
        for kind, text in blocks:
            match kind:
                case "python":
                    name = re.match(r"# (\w+\.py)\n", text)
                    assert name, text
                    (tmp_path / name[1]).write_text(text)
                case "sh":
                    with (tmp_path / "said").open("wb") as out:
                        run = subprocess.run(
                            ["bash", "-e", "-c", text],
                            cwd=tmp_path,
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=out,
                            check=False,
                            timeout=240,
                        )
                    said = (tmp_path / "said").read_text()
                    assert run.returncode == 0, f"{text}\n{said}"
                case "text":
                    for line in text.splitlines():
                        assert line in said, f"{line!r} is not in\n{said}"
                case _:
                    assert kind == "console"
    finally:
        if (tmp_path / "host.pid").exists():
            subprocess.run(
                ["kill", (tmp_path / "host.pid").read_text().strip()], check=False, capture_output=True
            )
