"""examples/first_steps.ipynb, its cells run one after another in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


def test_the_cells_run_in_order() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code"), "clear the outputs"
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=False, timeout=280
    )
    assert run.returncode == 0, run.stderr
    assert "[ 0 10 20 30 40 50 60 70]" in run.stdout
