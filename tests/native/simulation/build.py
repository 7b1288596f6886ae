"""Builds the simulation, also with a mistake in the product."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.native import building
from tests.native.building import NATIVE, ROOT, Unit
from tests.native.simulation.mistakes import Mistake

HERE: Final = Path(__file__).parent

_PRODUCT: Final = {
    "shared": ("shared_memory", "shared_slots", "slot_kernels"),
    "switch": ("slot_table", "loop"),
    "worker": (
        "aes_kernel", "window", "check", "seal", "limbs", "refinement", "sequence", "plan", "stream",
        "stream_limbs", "density",
        "engine", "engine_change", "engine_stripes", "engine_sums", "engine_threads", "deal", "lane_kernels",
    ),
}  # fmt: skip
_OWN: Final = ("main", "draw", "run", "network")
_FLAGS: Final = ("-std=c++20", "-O2", "-g1", "-ffp-contract=off", "-fPIC", f"-I{ROOT}", "-pthread")


def build(folder: Path, mistake: Mistake | None = None, *, system: bool = False) -> Path:
    """Compiles what has changed and links it; returns the program.

    Args:
        folder: for objects and the program.
        mistake: put into the product's source first, in a copy.
        system: makes the library of `tests.simulation` instead.

    Raises:
        subprocess.CalledProcessError: the compiler has found an error.
        ValueError: the mistake's text is not in the source exactly once.
    """
    units = building.product(_PRODUCT)
    units += [Unit(HERE / f"{name}.cpp") for name in (("system", "network") if system else _OWN)]
    if system:
        units += building.product({"worker": ("heartbeat",), "shared": ("ip_address",)})
    name = "system.so" if system else "simulation"
    if mistake is not None and mistake.file:
        name = f"{mistake.name}.so" if system else mistake.name
        source = folder / "mistakes" / mistake.name / Path(mistake.file).name
        source.parent.mkdir(parents=True, exist_ok=True)
        wrong = mistake.put_into((NATIVE / mistake.file).read_text())
        if not source.exists() or source.read_text() != wrong:
            source.write_text(wrong)
        right = NATIVE / mistake.file
        units = [Unit(source, unit.flags) if unit.source == right else unit for unit in units]
    return building.build(folder, name, units, _FLAGS, (NATIVE, HERE), shared=system)
