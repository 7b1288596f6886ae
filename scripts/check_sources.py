"""Checks what no general linter does: docstrings' first words, files' length, clocks. Part of `make lint`.

    python scripts/check_sources.py [PATH ...]

* No docstring, string below an attribute, or comment block opens with a question word: a first line states
  what the thing is or does.
* No source file is longer than 800 lines.
* In the packages of `PURE`, only `SHELLS` read a clock, draw random numbers, start threads or wait. All
  others do so through a `switchagg.runtime.Runtime` that they are given.

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
PURE = ("worker_lib", "switchagg/control", "switchagg/rules", "switchagg/wire")
SHELLS = (
    "switchagg/control/drivers/p4runtime.py",  # a gRPC stream
    "switchagg/control/heartbeats.py",  # a UDP socket
    "switchagg/control/http",  # the HTTP server
    "switchagg/control/service.py",  # both servers
    "worker_lib/compress/base.py",  # a compressor without a seed draws one
    "worker_lib/embedded.py",  # a process
    "worker_lib/ray.py",  # meets in Ray's key-value store
    "worker_lib/join.py",  # the HTTP client
    "worker_lib/sparse.py",  # measures what an element and a row cost
    "worker_lib/torch",  # PyTorch's threads, stores and time-outs
)
WAITS = {"Barrier", "BoundedSemaphore", "Condition", "Event", "Semaphore", "Thread", "Timer"}
# Modules, and their members that are meant where not all are.
OUTSIDE: dict[str, set[str] | None] = {
    "asyncio": None,
    "concurrent.futures": {"ProcessPoolExecutor", "ThreadPoolExecutor", "wait"},
    "datetime": None,
    "os": {"eventfd", "getrandom", "urandom"},
    "random": None,
    "secrets": None,
    "select": None,
    "selectors": None,
    "threading": WAITS,
    "time": None,
    "uuid": None,
}


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


def is_pure(path: Path) -> bool:
    """Returns True for a module that must not reach outside."""
    where = path.as_posix()
    return where.startswith(tuple(f"{each}/" for each in PURE)) and not any(
        where == each or where.startswith(f"{each}/") for each in SHELLS
    )


def reaches_outside(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of every use of a clock, of random numbers, threads or waiting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in OUTSIDE and OUTSIDE[alias.name] is None:
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module in OUTSIDE:
            members = OUTSIDE[node.module]
            for alias in node.names:
                if members is None or alias.name in members:
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in (OUTSIDE.get(node.value.id) or ()):
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node).endswith("random.default_rng()"):
            yield node.lineno, "default_rng without a seed"


def findings(path: Path) -> Iterator[str]:
    """Yields a message for everything in one file that the rules forbid."""
    text = path.read_text(encoding="utf-8")
    count = text.count("\n")
    if count > LINES:
        yield f"{path}:{LINES}: {count} lines; accepted: {LINES}"
    if path.suffix in PYTHON:
        tree = ast.parse(text)
        opened = [*strings(tree), *comment_blocks(text, PYTHON_COMMENT)]
        if is_pure(path):
            for number, name in reaches_outside(tree):
                yield f"{path}:{number}: {name}; accepted here: a Runtime that is handed in"
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
