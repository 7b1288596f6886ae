"""Compiles the product's C++ into programs of the tests."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NATIVE: Final = ROOT / "switchagg" / "native"


@dataclass(frozen=True)
class Unit:
    """One file to compile.

    Attributes:
        source: the file.
        flags: of this file only.
    """

    source: Path
    flags: tuple[str, ...] = ()


def product(parts: Mapping[str, Iterable[str]], *flags: str) -> list[Unit]:
    """Units of the product's files.

    Args:
        parts: names without ".cpp", by folder of `switchagg/native`.
        flags: of all of them.
    """
    return [
        Unit(
            NATIVE / part / f"{name}.cpp",
            (*flags, f"-DKERNELS={name}_base") if name.endswith("_kernels") else flags,
        )
        for part, names in parts.items()
        for name in names
    ]


def build(
    folder: Path,
    name: str,
    units: Sequence[Unit],
    flags: Sequence[str],
    headers: Iterable[Path],
    *,
    shared: bool = False,
) -> Path:
    """Compiles what has changed and links it; returns the program.

    Args:
        folder: for objects and the program.
        name: of the program.
        units: files of different names.
        flags: of the compiler and the linker.
        headers: folders; where a header in them has changed, all is compiled.
        shared: makes a shared library instead; the flags have -fPIC then.

    Raises:
        subprocess.CalledProcessError: the compiler has found a mistake, or lacks what a flag asks for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for where in headers for path in where.rglob("*.h"))

    def compile_one(unit: Unit) -> Path:
        target = folder / f"{unit.source.parent.name}_{unit.source.stem}.o"
        if not target.exists() or target.stat().st_mtime <= max(newest, unit.source.stat().st_mtime):
            _run(flags, target, "-c", unit.source, *unit.flags)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        targets = list(pool.map(compile_one, units))
    program = folder / name
    _run(flags, program, *(["-shared"] if shared else []), *targets)
    return program


def _run(flags: Sequence[str], target: Path, *words: str | Path) -> None:
    """Compiles or links. Others that load the target, or make it too, never find half of it."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    made = target.with_name(f"{target.name}.{os.getpid()}")
    subprocess.run([*compiler, *flags, *map(str, words), "-o", str(made)], check=True)
    made.replace(target)
