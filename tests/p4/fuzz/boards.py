"""Opens the boards that are fuzzed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from switchagg.p4program.program import tna, v1model
from tests.p4.board import Board
from tests.p4.conftest import SLOTS, close_board, make_board
from tests.p4.model import Model


@contextmanager
def opened(
    name: str, words: int, folder: Path, *, pipe: int = 0, program: Path | None = None
) -> Iterator[Board]:
    """A board by its name in `tests.p4.conftest.BOARDS`, for a `with` statement.

    Args:
        folder: for what it writes.
        pipe: of a Tofino, where jobs are.
        program: for a model, instead of the program in the repository.
    """
    board: Board
    if name == "model-tna":
        target = tna(words=words, slots=SLOTS, pipe=pipe)
        board = Model(program or "switchagg_tna.p4", target)
    elif program is not None:
        board = Model(program, v1model(words=words, slots=SLOTS))
    else:
        board = make_board(name, words, folder)
    try:
        yield board
    finally:
        close_board(board)
