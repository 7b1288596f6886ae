"""Each example, small, as its users start it: under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from tests.waiting import eventually

pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
ROOT = Path(__file__).resolve().parents[2]


def torchrun(
    example: str,
    *arguments: str,
    ranks: int = 2,
    options: tuple[str, ...] = (),
    controller: str | None = None,
) -> str:
    """Runs an example to its end; returns what it printed, errors and all."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SWITCHAGG", "TORCHELASTIC"))}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    if controller is not None:
        environment["SWITCHAGG_CONTROLLER"] = controller
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
            *options, str(ROOT / "examples" / example), *arguments,
        ],
        env=environment, text=True, timeout=280, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.long
def test_digits() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'switchagg[examples]')")
    said = torchrun("ddp_digits.py", "--epochs", "3")
    found = re.search(r"accuracy on 360 test images: ([\d.]+)", said)
    assert found, said
    assert float(found[1]) > 0.8


@pytest.mark.long
def test_language_model() -> None:
    said = torchrun("language_model.py", "--steps", "60", "--width", "32", "--layers", "1")
    assert float(re.findall(r"step 60: loss ([\d.]+)", said)[0]) < 4  # 5.5 before it has learned anything
    assert re.search(r"through the switch: [\d.]+ MB", said), said


@pytest.mark.long
def test_recommender() -> None:
    said = torchrun("recommender.py", "--steps", "20")
    found = re.search(r"(\d+) KB sent a step; the tables are ([\d.]+) MB", said)
    assert found, said
    assert int(found[1]) * 1000 < float(found[2]) * 1e6 / 10


def test_lightning_takes_the_backend_by_configuration() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed (pip install 'switchagg[lightning]')")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'switchagg[examples]')")
    said = torchrun("lightning_digits.py", "--epochs", "4")
    found = re.search(r"over switchagg: .*'accuracy': ([\d.]+)", said)
    assert found, said
    assert float(found[1]) > 0.8


def test_accelerate_takes_over_the_group() -> None:
    pytest.importorskip(
        "accelerate", reason="accelerate is not installed (pip install 'switchagg[accelerate]')"
    )
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'switchagg[examples]')")
    found = re.search(
        r"over switchagg: ([\d.]+) of 360 test images", torchrun("accelerate_digits.py", "--epochs", "4")
    )
    assert found
    assert float(found[1]) > 0.8


@pytest.mark.long
def test_elastic(tmp_path: Path) -> None:
    with EmbeddedController() as host:
        controller = ControllerClient(host.url)
        free = controller.slots()["free"]
        said = torchrun(
            "elastic.py", str(tmp_path / "checkpoint.pt"), "--steps", "30", "--die-at", "15",
            ranks=3, options=("--max-restarts", "1"), controller=host.url,
        )  # fmt: skip
        assert "life 1: from step 0" in said
        assert "life 2: from step 10" in said
        assert "done: 30 steps" in said
        eventually(lambda: controller.slots()["free"] == free)
