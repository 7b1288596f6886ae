"""The commands of docs/deploy/compose.yaml, run here in the order that it gives, on addresses of loopback.

No image is built: that takes a registry. What the image's RUN lines do, scripts/check_packages.py does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (pip install 'switchagg[dev]')")
pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def _here(text: str, state: Path) -> str:
    """Returns a text of the file with addresses and folders of this computer."""
    block = 128 + os.getpid() % 127  # other tests' copies have others
    text = text.replace("172.30.0.", f"127.30.{block}.").replace("/job/", f"{DEPLOY}/").replace("$$", "$")
    return text.replace("/state", str(state))


def _start(name: str, words: list[str], state: Path) -> subprocess.Popen[str]:
    service = SERVICES[name]
    line = [_here(word, state) for word in service.get("entrypoint", ["switchagg"]) + words]
    binaries = Path(sys.executable).parent
    environment = {key: _here(str(value), state) for key, value in service.get("environment", {}).items()}
    return subprocess.Popen(
        line,
        env=os.environ | environment | {"PATH": f"{binaries}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_services_do_a_job_together(tmp_path: Path) -> None:
    if shutil.which("switchagg", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("switchagg is not installed beside this Python")
    running = []
    try:
        running.append(_start("switch", SERVICES["switch"]["command"], tmp_path))
        tenant = _start("tenant", SERVICES["tenant"]["command"], tmp_path)
        assert tenant.wait(60) == 0
        running.append(_start("controller", SERVICES["controller"]["command"], tmp_path))
        check = [_here(word, tmp_path) for word in SERVICES["controller"]["healthcheck"]["test"][1:]]
        end = time.monotonic() + 60
        while subprocess.run([sys.executable, *check[1:]], capture_output=True, check=False).returncode:
            assert time.monotonic() < end
            time.sleep(0.2)
        workers = [_start(name, SERVICES[name]["command"], tmp_path) for name in ("worker0", "worker1")]
        running += workers
        for rank, worker in enumerate(workers):
            said, _ = worker.communicate(timeout=60)
            assert (worker.returncode, said) == (0, f"rank {rank} of 2: the sum is right\n")
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(30)
            assert each.stdout is not None
            each.stdout.close()


def test_the_image_is_built_from_what_is_here() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith(("#", " "))]
    assert {name for name, _ in instructions} == {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}
    assert shlex.split(next(rest for name, rest in instructions if name == "ENTRYPOINT"))[0] == "[switchagg]"
    for name, service in SERVICES.items():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file(), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), name
