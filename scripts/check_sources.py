"""Checks what no general linter does: how docstrings open, how long files are. Part of `make lint`.

    python scripts/check_sources.py [PATH ...]

* No docstring, string below an attribute, or comment block opens with a question word: a first line states
  what the thing is or does.
* No source file is longer than 800 lines.

Without PATH it reads every file that git tracks. Prints a line per finding and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

QUESTION = re.compile(r"(What|Who|Whom|Whose|Which|How|Whether|Where|When|Why)\b")
COMMENT = re.compile(r"\s*(?:///?|/\*\*?|\*)\s*(.*)")
PYTHON_COMMENT = re.compile(r"\s*#\s*(.*)")
PYTHON = {".py", ".pyi"}
COMMENTED = {".cpp", ".h", ".js", ".p4", ".css"}
LINES = 800


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and text of every string that stands as a statement."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def comment_blocks(text: str, comment: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yields line and text of the first line of every run of comment lines."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        found = comment.match(line)
        if found and not inside:
            yield number, found[1]
        inside = found is not None


def findings(path: Path) -> Iterator[str]:
    """Yields a message for everything in one file that the rules forbid."""
    text = path.read_text(encoding="utf-8")
    count = text.count("\n")
    if count > LINES:
        yield f"{path}:{LINES}: {count} lines; accepted: {LINES}"
    if path.suffix in PYTHON:
        opened = [*strings(ast.parse(text)), *comment_blocks(text, PYTHON_COMMENT)]
    else:
        opened = [*comment_blocks(text, COMMENT)]
    for number, first in opened:
        if word := QUESTION.match(first.strip()):
            yield f'{path}:{number}: opens with "{word[0]}"; say what it is or does, as a statement'


def main(paths: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files", *paths], check=True, capture_output=True, text=True)
    sources = [Path(each) for each in listed.stdout.splitlines()]
    found = [
        message
        for path in sources
        if path.suffix in PYTHON | COMMENTED and path.exists()
        for message in findings(path)
    ]
    print("\n".join([*found, f"{len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
