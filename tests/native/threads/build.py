"""Builds the program for the thread sanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.native import building
from tests.native.building import NATIVE, ROOT, Unit

HERE: Final = Path(__file__).parent

_PRODUCT: Final = {
    "shared": ("ip_address", "shared_memory", "shared_slots", "slot_kernels", "udp_port"),
    "switch": ("slot_table", "loop", "shards", "hub_port", "fault_port"),
    "worker": (
        "aes_kernel", "window", "check", "seal", "limbs", "refinement", "sequence", "plan", "stream",
        "stream_limbs", "density",
        "link_port", "slots_port", "engine", "engine_change", "engine_stripes", "engine_sums",
        "engine_threads", "deal", "lane_kernels",
    ),
}  # fmt: skip
_FLAGS: Final = (
    "-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off", f"-I{ROOT}", "-pthread",
    "-fsanitize=thread",
)  # fmt: skip


def build(folder: Path) -> Path:
    """Compiles what has changed and links it; returns the program.

    Args:
        folder: for objects and the program.

    Raises:
        subprocess.CalledProcessError: the compiler has found a mistake, or has no thread sanitizer.
    """
    units = [*building.product(_PRODUCT), Unit(HERE / "main.cpp")]
    return building.build(folder, "threads", units, _FLAGS, (NATIVE, HERE))
