"""The corpus is the same in every process, bounded, and split into training and held-out text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from switchagg.demo import corpus

LIMIT = 400_000
PRINT_DIGEST = (
    "import hashlib; from switchagg.demo import corpus; text = corpus.load(400_000); "
    "words = chr(0).join(text.words).encode(); "
    "print(hashlib.sha256(text.tokens.tobytes() + words).hexdigest(), text.training)"
)


def test_two_processes_read_the_same_tokens() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_load_is_bounded_and_ranked_by_frequency() -> None:
    text = corpus.load(LIMIT)
    assert LIMIT <= text.size < LIMIT + 1_000_000
    assert text.tokens.dtype == np.int32
    assert 0 < text.training < len(text.tokens)
    assert text.tokens.min() == 0
    assert text.tokens.max() == len(text.words) - 1
    counts = np.bincount(text.tokens[: text.training], minlength=len(text.words))
    assert (np.diff(counts) <= 0).all()


def test_words_spell_the_files(tmp_path: Path) -> None:
    sources = [f"def {name}(x):\n    return x + 12  # é\n" * 100 for name in "abcdefghijkl"]
    for index, source in enumerate(sources):
        (tmp_path / f"{index:02}.py").write_text(source)
    text = corpus.load(LIMIT, tmp_path)
    spelled = "".join(text.words[token] for token in text.tokens)
    # The eleventh file is held out: its words come last.
    assert spelled == "".join([*sources[:10], sources[11], sources[10]])
    assert "".join(text.words[token] for token in text.tokens[text.training :]) == sources[10]
    assert "\n    " in text.words


def test_tests_and_installed_packages_are_not_read() -> None:
    parts = {part for path in corpus.source_files() for part in path.parts}
    assert not parts & {"site-packages", "idle_test", "__pycache__"}


def test_a_python_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(corpus.CorpusError, match=f"0 files, 0 bytes, in {tmp_path}"):
        corpus.load(LIMIT, tmp_path)


def test_shared_tokens_are_the_tokens_and_read_only() -> None:
    tokens = np.arange(5000, dtype=np.int32)
    descriptor = corpus.share(tokens)
    try:
        attached = corpus.attach(descriptor)
        assert np.array_equal(attached, tokens)
        assert not attached.flags.writeable
    finally:
        os.close(descriptor)
