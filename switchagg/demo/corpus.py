"""The text that the demo learns: the Python standard library, present wherever the demo can run.

    *.py files, sorted, up to a bound -> words by one regular expression -> ranks by frequency, int32
                                                                            (0 is the most frequent word)

Every twentieth file, from the eleventh, is held out: its words stand at the end of the token array, and are
never trained on. The same Python installation gives the same tokens in every process and every run.
"""

from __future__ import annotations

import mmap
import os
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import SwitchAggError

# A line break carries the indentation that follows it, so that a model can learn where blocks begin and end.
_WORD = re.compile(r"\n *|[A-Za-z_][A-Za-z_0-9]*|\d+| +|[^\w\s]|\S|\s")
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_HELD_OUT_EVERY, _HELD_OUT_FIRST = 20, 10


class CorpusError(SwitchAggError):
    """The standard library's source is not where Python says it is."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Words of the corpus.

    Attributes:
        tokens: int32[length], the frequency rank of each word; training text first, held-out text after it.
        training: number of tokens that are training text.
        words: the word of each rank.
        files: number of files that were read.
        size: bytes of text that were read.
    """

    tokens: NDArray[np.int32]
    training: int
    words: tuple[str, ...]
    files: int
    size: int


def source_files(root: Path | None = None) -> list[Path]:
    """The standard library's modules, without its tests, sorted by path.

    Args:
        root: folder to search; by default the running Python's standard library.
    """
    folder = Path(sysconfig.get_path("stdlib")) if root is None else root
    found = (path for path in folder.rglob("*.py") if path.is_file())
    return sorted(
        (path for path in found if not _SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts[:-1])),
        key=lambda path: path.relative_to(folder).as_posix(),
    )


def load(limit: int, root: Path | None = None) -> Corpus:
    """Reads and ranks the corpus.

    Args:
        limit: bytes to read; the file that crosses the limit is the last.
        root: folder of source files; by default the running Python's standard library.

    Raises:
        CorpusError: there are too few words to train on.
    """
    texts: list[str] = []
    size = 0
    for path in source_files(root):
        data = path.read_bytes()
        size += len(data)
        texts.append(data.decode("utf-8", "replace"))
        if size >= limit:
            break
    training: list[str] = []
    held_out: list[str] = []
    for index, text in enumerate(texts):
        part = held_out if index % _HELD_OUT_EVERY == _HELD_OUT_FIRST else training
        part += _WORD.findall(text)
    counts = Counter(training)
    counts.update(dict.fromkeys(held_out, 0))
    if len(training) < 1000 or len(held_out) < 100:
        folder = sysconfig.get_path("stdlib") if root is None else root
        raise CorpusError(
            f"the demo trains on the Python standard library's source, but found only {len(texts)} files, "
            f"{size:,} bytes, in {folder}; use a Python that comes with its .py files"
        )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    rank = {word: index for index, word in enumerate(ranked)}
    tokens = np.fromiter((rank[word] for word in chain(training, held_out)), dtype=np.int32)
    return Corpus(tokens, len(training), tuple(ranked), len(texts), size)


def share(tokens: NDArray[np.int32]) -> int:
    """Copies tokens into anonymous memory and returns its file descriptor, which child processes may inherit.

    The caller closes the descriptor. Nothing appears in any file system.
    """
    descriptor = os.memfd_create("switchagg-demo-corpus")
    os.truncate(descriptor, tokens.nbytes)
    with mmap.mmap(descriptor, tokens.nbytes) as memory:
        memory[:] = tokens.tobytes()
    return descriptor


def attach(descriptor: int) -> NDArray[np.int32]:
    """The tokens behind a descriptor that `share` made, read-only and not copied."""
    memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    return np.frombuffer(memory, dtype=np.int32)
