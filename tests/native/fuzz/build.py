"""Builds the fuzzer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.native import building
from tests.native.building import NATIVE, ROOT, Unit

HERE: Final = Path(__file__).parent
TARGETS: Final = ("slots", "frames", "hub", "link", "engine")

_PRODUCT: Final = {
    "shared": ("frame", "ip_address", "shared_memory", "shared_slots", "slot_kernels", "udp_port"),
    "switch": ("slot_table", "hub_port"),
    "worker": (
        "aes_kernel", "window", "check", "seal", "limbs", "refinement", "sequence", "plan", "stream",
        "stream_limbs", "density",
        "link_port", "engine", "engine_change", "engine_stripes", "engine_sums", "engine_threads", "deal",
        "lane_kernels",
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
    units = building.product(_PRODUCT, _COVERAGE)
    units += [Unit(HERE / f"{name}.cpp") for name in ("main", *TARGETS)]
    return building.build(folder, "fuzz", units, _FLAGS, (NATIVE, HERE))
