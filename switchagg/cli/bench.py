"""`switchagg bench allreduce`: this project's all-reduce beside gloo's, OpenMPI's and the floor under UDP."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchagg.cli import bench_ddp, bench_policy
from switchagg.errors import UsageError
from switchagg.launch.signals import sigterm_exits

if TYPE_CHECKING:
    from switchagg.bench.grid import Settings

_EPILOG = """\
Every parameter of the first group takes a list, such as --workers 2,4,8 --bits 32,16; all combinations are
measured. Without options the run takes about three minutes. Exit status: 0 all measured and right, 1
something failed or was wrong, 2 a parameter that cannot work.
"""


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the commands of an argparse parser."""
    bench = subparsers.add_parser("bench", help="measure, beside what you would use instead")
    kinds = bench.add_subparsers(dest="benchmark", required=True, metavar="WHAT")
    parser = kinds.add_parser(
        "allreduce",
        help="all-reduce of one tensor, results checked",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lists = parser.add_argument_group("lists")
    lists.add_argument("--workers", default="4", help="worker processes, 2 to 32 (%(default)s)")
    lists.add_argument("--size", default="4K,64M", help="bytes of a worker's tensor (%(default)s)")
    lists.add_argument("--density", default="1,0.01", help="share of non-zero blocks (%(default)s)")
    lists.add_argument(
        "--overlap", default="random", help="of the workers' non-zero blocks: all, random, none (%(default)s)"
    )
    lists.add_argument("--bits", help="lanes of switchagg: 32, 16, 8, 64 (all that the dtype has)")
    lists.add_argument(
        "--transport",
        default="shm,udp",
        help="of switchagg: shm (shared memory with the switch), udp (%(default)s)",
    )
    lists.add_argument("--loss", default="0", help="share of packets lost, either way (%(default)s)")
    lists.add_argument(
        "--dtype",
        default="float32",
        help="float32, float64, float16, bfloat16, int32, int64 (%(default)s)",
    )
    lists.add_argument(
        "--compare",
        help="gloo, gloo-fp16, openmpi-tcp, openmpi-shm, udp-floor, or none (all that are installed)",
    )
    parser.add_argument("--repeat", type=int, default=7, help="timed rounds (%(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them (%(default)s)")
    parser.add_argument(
        "--mask", action="store_true", help="pass the block masks to switchagg; do not scan for zero blocks"
    )
    parser.add_argument("--block-size", type=int, default=64, help="elements to a block (%(default)s)")
    parser.add_argument("--words", type=int, help="words to a packet (the controller's choice)")
    parser.add_argument("--slots", type=int, help="slots of the job (the controller's choice)")
    parser.add_argument("--duplicate", type=float, default=0.0, help="share that the switch duplicates (0)")
    parser.add_argument("--reorder", type=float, default=0.0, help="share that the switch reorders (0)")
    parser.add_argument(
        "--rate", help="of each worker's link to the switch, each way, such as 1Gbit (as fast as it goes)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of data and faults (%(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one call (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.set_defaults(run=run)
    bench_ddp.add_parser(kinds)
    bench_policy.add_parser(kinds)


def settings_from(args: argparse.Namespace) -> Settings:
    """The settings that the command line asks for.

    Raises:
        UsageError: a value that cannot work.
    """
    from switchagg.bench.grid import Overlap, Settings, parse_list, parse_size
    from switchagg.bench.peers.registry import check_names

    compare: tuple[str, ...] | None = None
    if args.compare is not None:
        compare = () if args.compare == "none" else parse_list(args.compare, "compare", str)
        check_names(compare)
    return Settings(
        workers=parse_list(args.workers, "workers", int),
        sizes=parse_list(args.size, "size", parse_size),
        densities=parse_list(args.density, "density", float),
        overlaps=parse_list(args.overlap, "overlap (accepted are all, random, none)", Overlap),
        bits=None if args.bits is None else parse_list(args.bits, "bits", int),
        losses=parse_list(args.loss, "loss", float),
        transports=parse_list(args.transport, "transport", str),
        dtypes=parse_list(args.dtype, "dtype", str),
        compare=compare,
        repeat=args.repeat,
        warmup=args.warmup,
        mask=args.mask,
        block_size=args.block_size,
        words=args.words,
        slots=args.slots,
        duplicate=args.duplicate,
        reorder=args.reorder,
        rate=args.rate,
        seed=args.seed,
        timeout=args.timeout,
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; the exit status as the command's help says it.

    Raises:
        UsageError: a parameter that cannot work, or nothing to measure.
    """
    if args.benchmark == "ddp":
        return bench_ddp.run(args)
    if args.benchmark == "policy":
        return bench_policy.run(args)
    from switchagg.bench import allreduce
    from switchagg.bench.report import LEGEND, TerminalProgress, table, to_json

    settings = settings_from(args)
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise UsageError(f"json {args.json}: there is no folder {args.json.absolute().parent}")
    with sigterm_exits(), TerminalProgress() as progress:
        outcome = allreduce.run(settings, progress)
    print(table(outcome))
    print()
    print(LEGEND)
    if args.json is not None:
        args.json.write_text(json.dumps(to_json(settings, outcome), indent=1) + "\n")
        print(f"Figures in {args.json}")
    return 0 if outcome.ok else 1
