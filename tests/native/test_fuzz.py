"""The native parsers under sanitizers, with the inputs that were found to reach most of them and some new
ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.fuzz.build import HERE, TARGETS, build
from tests.seeds import seed_of_this_run


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.long  # compiling takes a minute of a core
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(program: Path, target: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(HERE / "corpus" / target, corpus)
    before = len(list(corpus.iterdir()))
    assert before > 10
    seed = seed_of_this_run()
    words = [program, target, corpus, "--executions", "3000", "--seed", str(seed)]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr
    assert "3000 executions" in found.stdout


def test_a_mistake_is_seen(tmp_path: Path) -> None:
    """A program that found nothing because no sanitizer works would pass the test above."""
    source = tmp_path / "mistake.cpp"
    source.write_text("int main(int n, char**) { int* const p = new int[2]; return p[n + 1]; }")
    compiled = tmp_path / "mistake"
    subprocess.run(["c++", "-fsanitize=address", "-g", source, "-o", compiled], check=True)
    found = subprocess.run([compiled], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "heap-buffer-overflow" in found.stderr
