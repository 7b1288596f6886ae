"""A switch and its workers as threads, under the thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native.threads.build import build


@pytest.mark.long  # compiling takes half a minute of a core
def test_no_race_is_found(tmp_path: Path) -> None:
    found = subprocess.run([build(tmp_path), "12"], capture_output=True, text=True, timeout=400, check=False)
    assert found.returncode == 0, found.stderr
    assert [found.stdout.count(f"{way}: ") for way in ("UDP", "links", "shared slots", "threads")] == [3] * 4


@pytest.mark.long  # beside the one above
def test_a_race_is_seen(tmp_path: Path) -> None:
    """A program that found nothing because the sanitizer does not work would pass the test above."""
    source = tmp_path / "race.cpp"
    source.write_text(
        "#include <thread>\nint shared;\n"
        "int main() { std::thread other([] { shared = 1; }); shared = 2; other.join(); }"
    )
    compiled = tmp_path / "race"
    subprocess.run(
        ["c++", "-std=c++20", "-fsanitize=thread", "-g", "-pthread", source, "-o", compiled], check=True
    )
    found = subprocess.run([compiled], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "data race" in found.stderr
