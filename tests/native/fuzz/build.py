"""Builds the fuzzer."""

from __future__ import annotations

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
HERE: Final = Path(__file__).parent
TARGETS: Final = ("slots", "frames", "hub", "link", "engine")

_PRODUCT: Final = {
    "shared": ("shared_memory", "udp_port"),
    "switch": ("slot_table", "slot_kernels", "frame", "hub_port"),
    "worker": (
        "window", "limbs", "refinement", "sequence", "plan", "stream", "stream_limbs", "density", "link_port",
        "engine", "lane_kernels",
    ),
}  # fmt: skip
_FLAGS: Final = (
    "-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off", f"-I{ROOT}", "-pthread",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip
_COVERAGE: Final = "-fsanitize-coverage=trace-pc"


def build(folder: Path) -> Path:
    """Compiles what has changed and links it; returns the program.

    Args:
        folder: for objects and the program.

    Raises:
        subprocess.CalledProcessError: the compiler has found a mistake, or has no sanitizers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs: list[tuple[Path, Path, tuple[str, ...]]] = []
    for part, names in _PRODUCT.items():
        for name in names:
            kernels = (f"-DKERNELS={name}_base",) if name.endswith("_kernels") else ()
            source = ROOT / "switchagg" / "native" / part / f"{name}.cpp"
            jobs.append((source, folder / f"{name}.o", (_COVERAGE, *kernels)))
    jobs += [(HERE / f"{name}.cpp", folder / f"fuzz_{name}.o", ()) for name in ("main", *TARGETS)]
    newest = max(
        path.stat().st_mtime for where in (ROOT / "switchagg" / "native", HERE) for path in where.rglob("*.h")
    )

    def compile_one(job: tuple[Path, Path, tuple[str, ...]]) -> None:
        source, target, more = job
        if target.exists() and target.stat().st_mtime > max(newest, source.stat().st_mtime):
            return
        _run("-c", source, "-o", target, *more)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    program = folder / "fuzz"
    _run(*(target for _, target, _ in jobs), "-o", program)
    return program


def _run(*words: str | Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    subprocess.run([*compiler, *_FLAGS, *map(str, words)], check=True)
