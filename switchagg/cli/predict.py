"""`switchagg predict`: time and bytes of one all-reduce, beside ring and tree, where the links are the limit.

    tensor: size, density of its blocks (or a .npy file)  -->  packets up and down each worker's link
    workers, link, round trip                             -->  time = bytes / rate + latency

The formulas are printed. They know links, not processors: two cores do not fill a link of 10 Gbit/s, in any
way; `switchagg bench allreduce` measures that.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from switchagg.control.switch_specs import size
from switchagg.emulator.rates import Rate, wire_bytes
from switchagg.errors import UsageError, require
from switchagg.rules.planner import DEFAULT_BLOCK, DEFAULT_WORDS, elements_per_packet
from switchagg.wire.header import HEADER_BYTES

_CHUNK: Final = 65_536  # elements that share a scale in 32-bit lanes
_EXPONENTS: Final = 32  # bytes of a chunk's one-hot exponents in the plan
_TCP: Final = 1448 / 1538  # payload of a full TCP segment, and what it takes of the link
_LANES: Final = {8: 1024, 16: 1024, 32: _CHUNK}
_FORMULAS: Final = """\
U = 1 - (1 - d)^n of the blocks are non-zero anywhere, where workers' are random (d where they are the same)
switch   up, down: plan of N/B bits and 32 bytes a chunk, ceil(U N / E) packets of K words; a worker without a
         block in one sends {skip} bytes instead of {packet}; time = max(up, down) / rate + 3 round trips
ring     2 (n - 1)/n S each way, dense; time = that / rate + 2 (n - 1) round trips / 2
tree     2 S each way, up and down pipelined: time = 2 S / rate + 2 ceil(log2 n) round trips / 2"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One way of reducing: bytes of each worker's link, each way, headers included; and seconds."""

    way: str
    sent: float
    received: float
    seconds: float


def predictions(
    *,
    elements: int,
    element_bytes: int,
    density: float,
    overlap: str,
    workers: int,
    rate: float,
    round_trip: float,
    bits: int = 32,
    words: int = DEFAULT_WORDS,
    block: int = DEFAULT_BLOCK,
) -> list[Prediction]:
    """Returns the predictions for the switch, a ring and a tree, in this order.

    Args:
        elements, element_bytes: of the tensor.
        density: share of a worker's blocks of `block` elements that are not zero.
        overlap: "all": the same blocks at every worker; "random".
        rate: bits a second of each worker's link, each way.
        round_trip: seconds, without queues.
        bits, words: width of lanes, K.
    """
    union = density if overlap == "all" else 1 - (1 - density) ** workers
    per_packet = elements_per_packet(words, bits)
    packets = math.ceil(union * elements / per_packet)
    plan = elements / block / 8 + elements / _LANES[bits] * _EXPONENTS
    plan_packets = math.ceil(plan / (4 * words))
    packet, skip = wire_bytes(HEADER_BYTES + 4 * words), wire_bytes(HEADER_BYTES)
    # A worker has each of the union's blocks with probability density / union.
    empty = (1 - density / union) ** max(1.0, per_packet / block) if union else 1.0
    down = float((packets + plan_packets) * packet)
    up = plan_packets * packet + packets * ((1 - empty) * packet + empty * skip)
    whole = elements * element_bytes
    ring, tree = 2 * (workers - 1) / workers * whole / _TCP, 2 * whole / _TCP
    hop = round_trip / 2
    return [
        Prediction("switch", up, down, max(up, down) * 8 / rate + 3 * round_trip),
        Prediction("ring", ring, ring, ring * 8 / rate + 2 * (workers - 1) * hop),
        Prediction("tree", tree, tree, tree * 8 / rate + 2 * math.ceil(math.log2(workers)) * hop),
    ]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "predict", description=__doc__, epilog="Bytes are those that packets take of an Ethernet link."
    )
    option = parser.add_argument
    option("--size", default="64M", metavar="BYTES", help="of the tensor, such as 64M (%(default)s)")
    option("--dtype", choices=("float32", "float16"), default="float32", help="(%(default)s)")
    option("--density", type=float, default=1.0, metavar="D", help="share of blocks that are not zero (1)")
    option("--gradient", type=Path, metavar="FILE.npy", help="take size, dtype and density of this array")
    option(
        "--overlap", choices=("all", "random"), default="random", help="of the workers' blocks (%(default)s)"
    )
    option("--workers", type=int, default=4, metavar="N", help="2 to 32 (%(default)s)")
    option("--link", default="10Gbit", metavar="RATE", help="of each worker, each way (%(default)s)")
    option("--round-trip", type=float, default=50.0, metavar="US", help="microseconds (%(default)g)")
    option("--bits", type=int, choices=(8, 16, 32), default=32, help="lanes (%(default)s)")
    option("--words", type=int, default=DEFAULT_WORDS, metavar="K", help="in a packet (%(default)s)")
    option("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the predictions. Raises `UsageError` for values that cannot be."""
    require(2 <= args.workers <= 32, "workers", args.workers, "2 to 32")
    require(0 <= args.density <= 1, "density", args.density, "0 to 1")
    require(0 <= args.round_trip <= 1e7, "round-trip", args.round_trip, "microseconds, 0 to 10,000,000")
    require(16 <= args.words <= 16_000, "words", args.words, "16 to 16000")
    element = {"float32": 4, "float16": 2}[args.dtype]
    elements, density = size("size", args.size) // element, args.density
    if args.gradient is not None:
        elements, element, density = _gradient(args.gradient)
    require(elements >= 1, "size", args.size, "one element at least")
    rate = Rate.parse(args.link).bits_per_second
    found = predictions(
        elements=elements,
        element_bytes=element,
        density=density,
        overlap=args.overlap,
        workers=args.workers,
        rate=rate,
        round_trip=args.round_trip * 1e-6,
        bits=args.bits,
        words=args.words,
    )
    if args.json:
        said = {"elements": elements, "density": density, "ways": [asdict(each) for each in found]}
        print(json.dumps(said, indent=1))
        return 0
    from switchagg.report.format import size as shown
    from switchagg.report.table import listing

    print(f"{elements:,} elements, {density:.2%} of blocks of {DEFAULT_BLOCK} non-zero at a worker\n")
    first = found[0].seconds
    rows = [
        (
            each.way,
            shown(each.sent),
            shown(each.received),
            f"{each.seconds * 1e3:.2f} ms",
            f"{each.seconds / first:.1f}",
        )
        for each in found
    ]
    print(listing(("way", "sent a worker", "received", "time", "x switch"), rows))
    full = wire_bytes(HEADER_BYTES + 4 * args.words)
    print(f"\n{_FORMULAS.format(skip=wire_bytes(HEADER_BYTES), packet=full)}")
    return 0


def _gradient(path: Path) -> tuple[int, int, float]:
    """Returns elements, bytes of one, and the share of non-zero blocks of an array in a file."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"gradient {path}: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.name not in ("float32", "float16") or not array.size:
        name = getattr(getattr(array, "dtype", None), "name", type(array).__name__)
        raise UsageError(f"gradient {path} is {name}; accepted: an array of float32 or float16")
    flat = array.ravel() != 0
    padded = np.pad(flat, (0, -flat.size % DEFAULT_BLOCK)).reshape(-1, DEFAULT_BLOCK)
    return flat.size, array.itemsize, float(padded.any(axis=1).mean())
