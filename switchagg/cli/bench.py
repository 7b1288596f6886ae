"""`switchagg bench`, a parser and a function each benchmark: measurements beside other systems."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchagg.cli.options import chosen
from switchagg.errors import UsageError
from switchagg.launch.signals import stop_signals_exit
from switchagg.report.progress import working

if TYPE_CHECKING:
    from switchagg.bench.grid import Settings

_STDOUT: Final = Path("-")
_Outcome = tuple[str, object, bool]  # text for the terminal, figures for JSON, all measured and right

_ALLREDUCE_EPILOG = """\
Every parameter of the first group takes a list, such as --workers 2,4,8 --bits 32,16; all combinations are
measured. Without options the run takes about three minutes. Exit status: 0 all measured and right, 1
something failed or was wrong, 2 a parameter that cannot work.
"""
_POLICY_EPILOG = """\
In each phase the job's calls name no block size, and the controller chooses block size and sparse or dense.
The same calls are timed with each fixed setting on the same tensors. Times are milliseconds a call; * marks
the best fixed setting of a phase. Without options the run takes about seven minutes. Exit status: 0 measured
and every result the same to the bit, 1 something failed, 2 a parameter that cannot work.
"""


def add_parser(subparsers: Any) -> None:
    bench = subparsers.add_parser("bench")
    kinds = bench.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for add, measure in (
        (_add_allreduce, _allreduce), (_add_ddp, _ddp), (_add_fsdp, _fsdp), (_add_policy, _policy),
        (_add_io, _io), (_add_loops, _loops), (_add_peers, _peers),
    ):  # fmt: skip
        parser = add(kinds)
        parser.set_defaults(measure=measure)
        parser.add_argument(
            "--json",
            type=Path,
            nargs="?",
            const=_STDOUT,
            metavar="FILE",
            help="print the figures as JSON, and no table; with a FILE, write them there too",
        )


def _add_allreduce(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "allreduce",
        help="all-reduce of one tensor, results checked",
        description="This project's all-reduce beside gloo's, MPI's, oneCCL's and the floor under UDP.",
        epilog=_ALLREDUCE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    lists = parser.add_argument_group("lists")
    lists.add_argument("--workers", default="4", help="worker processes, 2 to 32 (%(default)s)")
    lists.add_argument("--size", default="4K,64M", help="bytes of a worker's tensor (%(default)s)")
    lists.add_argument("--density", default="1,0.01", help="share of non-zero blocks (%(default)s)")
    lists.add_argument(
        "--overlap", default="random", help="of the workers' non-zero blocks: all, random, none (%(default)s)"
    )
    lists.add_argument(
        "--bits", help="of switchagg: default, lanes of 32, 16, 8, 64, exact (all but the last)"
    )
    lists.add_argument(
        "--transport",
        help="of switchagg: slots (that the ranks share), shm (shared memory with the switch), udp "
        "(slots,udp; with losses or rates shm,udp)",
    )
    lists.add_argument("--loss", default="0", help="share of packets lost, either way (%(default)s)")
    lists.add_argument(
        "--dtype", default="float32", help="float32, float64, float16, bfloat16, int32, int64 (%(default)s)"
    )
    lists.add_argument(
        "--compare",
        help="gloo, gloo-fp16, openmpi-tcp, openmpi-shm, mpich, intelmpi, intelmpi-sleep, oneccl, udp-floor, "
        "or none (all that are installed; `switchagg bench peers` installs)",
    )
    option("--repeat", type=int, default=7, help="timed rounds (%(default)s)")
    option("--warmup", type=int, default=2, help="rounds before them (%(default)s)")
    option(
        "--mask", action="store_true", help="pass the block masks to switchagg; do not scan for zero blocks"
    )
    option("--block-size", type=int, default=64, help="elements to a block (%(default)s)")
    option("--words", type=int, help="words to a packet (the controller's choice)")
    option("--slots", type=int, help="slots of the job (the controller's choice)")
    option("--duplicate", type=float, default=0.0, help="share that the switch duplicates (0)")
    option("--reorder", type=float, default=0.0, help="share that the switch reorders (0)")
    option("--rate", help="of each worker's link to the switch, each way, such as 1Gbit (as fast as it goes)")
    option("--seed", type=int, default=1, help="of data and faults (%(default)s)")
    option("--timeout", type=float, default=60.0, help="seconds for one call (%(default)s)")
    return parser


def _add_ddp(kinds: Any) -> argparse.ArgumentParser:
    from switchagg.bench.ddp import DEVICES, MODELS, SYSTEMS, DdpSettings

    default = DdpSettings()
    parser: argparse.ArgumentParser = kinds.add_parser(
        "ddp",
        help="training under PyTorch's DistributedDataParallel",
        description="Steps a second and time in communication, under DDP, through the switch and gloo.",
        epilog="Every system trains the same models on the same batches, in turns, in the same processes. "
        "Exit status: 0 all measured, ranks the same; 1 something failed; 2 a parameter that cannot work.",
    )
    parser.add_argument("--model", default=",".join(MODELS), help="list (%(default)s)")
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="of the models (%(default)s)")
    _add_training(parser, default, SYSTEMS)
    return parser


def _add_fsdp(kinds: Any) -> argparse.ArgumentParser:
    from switchagg.bench.fsdp import SYSTEMS, FsdpSettings

    parser: argparse.ArgumentParser = kinds.add_parser(
        "fsdp",
        help="training with PyTorch's FSDP2 (fully_shard)",
        description="Steps a second, added time and bytes of sharded training, through the switch and gloo.",
        epilog="Every system trains the same model on the same batches, in turns, in the same processes. "
        "Exit status: 0 all measured and right; 1 something failed; 2 a parameter that cannot work.",
    )
    default = FsdpSettings()
    _add_training(parser, default, SYSTEMS)
    parser.add_argument(
        "--replicas",
        type=int,
        default=default.replicas,
        help="of the model: HSDP, if 2 or more (%(default)s)",
    )
    return parser


def _add_training(parser: argparse.ArgumentParser, default: Any, systems: Iterable[str]) -> None:
    """Adds the options that `bench ddp` and `bench fsdp` share."""
    option = parser.add_argument
    option("--workers", default=",".join(map(str, default.workers)), help="list (%(default)s)")
    option("--system", default=",".join(default.systems), help=f"list of {', '.join(systems)} (%(default)s)")
    option("--steps", type=int, default=default.steps, help="a round (%(default)s)")
    option("--repeat", type=int, default=default.repeat, help="timed rounds (%(default)s)")
    option("--warmup", type=int, default=default.warmup, help="rounds before (%(default)s)")
    option("--parameters", type=int, default=default.parameters, help="of a model, about (%(default)s)")
    option("--batch", type=int, default=default.batch, help="samples a rank (%(default)s)")
    option("--timeout", type=float, default=default.timeout, help="seconds for a step (%(default)s)")


def _add_policy(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "policy",
        help="the skip policy that the controller tunes, against fixed ones",
        description="A drifting density, tuned by the controller, against every fixed setting.",
        epilog=_POLICY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--workers", type=int, default=4, help="worker processes, 2 to 32 (%(default)s)")
    option("--size", default="64M", help="bytes of a worker's tensor (%(default)s)")
    option(
        "--density",
        default="1,0.5,0.1,0.03,0.01,0.03,0.1,0.5,1",
        help="of the phases, one after the other (%(default)s)",
    )
    option(
        "--layout", default="random,clustered", help="of non-zero elements: random, clustered (%(default)s)"
    )
    option("--blocks", default="16,64,256,1024", help="block sizes of the fixed settings (%(default)s)")
    option(
        "--phase-seconds",
        type=float,
        default=8.0,
        help="length of a phase under its best fixed setting (%(default)s)",
    )
    option(
        "--share",
        type=float,
        default=0.25,
        help="share of a phase's calls that measures each fixed setting (%(default)s)",
    )
    option(
        "--deadline",
        type=float,
        default=2.5,
        help="of the job, seconds; heartbeats are sent every fifth of it, at least each second (%(default)s)",
    )
    option("--transport", default="shm", help="shm or udp (%(default)s)")
    option("--seed", type=int, default=1, help="of the data (%(default)s)")
    option("--timeout", type=float, default=60.0, help="seconds for one call (%(default)s)")
    return parser


def settings_from(args: argparse.Namespace) -> Settings:
    """Returns the settings of `bench allreduce` that the command line asks for. Raises `UsageError`."""
    from switchagg.bench.grid import Overlap, Settings, parse_bits, parse_list, parse_size
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
        bits=None
        if args.bits is None
        else parse_list(args.bits, "bits (accepted are default, exact, 32, 16, 8, 64)", parse_bits),
        losses=parse_list(args.loss, "loss", float),
        transports=None if args.transport is None else parse_list(args.transport, "transport", str),
        dtypes=parse_list(args.dtype, "dtype", str),
        compare=compare,
        **chosen(args, "repeat", "warmup", "mask", "block_size", "words", "slots"),
        **chosen(args, "duplicate", "reorder", "rate", "seed", "timeout"),
    )


def _add_io(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "io",
        help="packets a second of each transport, with the floor beside it",
        description="Packets, bytes and processor time of each transport, each way, between two network "
        "namespaces of this host; beside each a bare loop without our code. Needs root.",
    )
    option = parser.add_argument
    option("--transport", default="", help="a list: udp-single,udp,xdp,dpdk-af_packet,dpdk-memif (all)")
    option("--words", type=int, default=352, help="of a packet, 16 to 364 (%(default)s)")
    option("--seconds", type=float, default=0.5, help="of each measurement (%(default)s)")
    option("--repeat", type=int, default=3, help="of everything, in turns; medians are shown (%(default)s)")
    return parser


def _add_loops(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "loops",
        help="GB/s of the loops over elements, beside memcpy",
        description="Every native loop that touches every element, in one thread, at each instruction set of "
        "this processor, beside a memcpy that reads and writes as many bytes.",
    )
    option = parser.add_argument
    option("--size", default="256K", help="bytes of a tensor of float32 (%(default)s)")
    option("--loop", default="", metavar="NAMES", help="a list of names or beginnings of names (all)")
    option("--level", default="", help="a list of base, v3 (AVX2), v4 (AVX-512) (all of this processor)")
    option("--repeat", type=int, default=21, help="timed samples of each, in turns (%(default)s)")
    option("--seed", type=int, default=1, help="of the data (%(default)s)")
    return parser


def _add_peers(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "peers",
        help="the systems that `bench allreduce` can compare with: what is installed, what is missing",
        description="Lists the systems for --compare. --install puts some, from their wheels, in "
        "environments of their own below XDG_CACHE_HOME (~/.cache), since their files have the same names.",
    )
    parser.add_argument(
        "--install", default="", metavar="NAMES", help="a list of openmpi, mpich, intelmpi, oneccl; or all"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON.

    Raises `UsageError` where nothing can be measured, `SwitchAggError` where a rank failed.
    """
    if args.json not in (None, _STDOUT) and not (folder := args.json.absolute().parent).is_dir():
        raise UsageError(f"json {args.json}: there is no folder {folder}")
    with stop_signals_exit():
        text, figures, right = args.measure(args)
    if args.json == _STDOUT:
        print(json.dumps(figures, indent=1))
        return 0 if right else 1
    print(text)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"Figures in {args.json}")
    return 0 if right else 1


def _allreduce(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import allreduce
    from switchagg.bench.report import LEGEND, TerminalProgress, table, to_json

    settings = settings_from(args)
    with TerminalProgress() as progress:
        outcome = allreduce.run(settings, progress)
    return f"{table(outcome)}\n\n{LEGEND}", to_json(settings, outcome), outcome.ok


def _ddp(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import ddp
    from switchagg.bench.grid import parse_list

    settings = ddp.DdpSettings(
        workers=parse_list(args.workers, "workers", int),
        models=parse_list(args.model, "model", str),
        systems=parse_list(args.system, "system", str),
        **chosen(args, "steps", "repeat", "warmup", "parameters", "batch", "timeout", "device"),
    )

    with working("measuring") as say:

        def progress(figures: ddp.Figures) -> None:
            say(f"{figures.workers} ranks, {figures.model}, {figures.system}: measured")

        found = ddp.run(settings, progress)
    right = all(figures.same is not False for figures in found)
    return f"{ddp.table(found)}\n\n{ddp.LEGEND}", ddp.to_json(settings, found), right


def _fsdp(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import fsdp
    from switchagg.bench.grid import parse_list

    settings = fsdp.FsdpSettings(
        workers=parse_list(args.workers, "workers", int),
        systems=parse_list(args.system, "system", str),
        **chosen(args, "steps", "repeat", "warmup", "parameters", "batch", "timeout", "replicas"),
    )

    with working("measuring") as say:

        def progress(figures: fsdp.Figures) -> None:
            say(f"{figures.workers} ranks, {figures.system}: measured")

        found = fsdp.run(settings, progress)
    right = all(figures.right for figures in found)
    return f"{fsdp.table(found)}\n\n{fsdp.LEGEND}", fsdp.to_json(settings, found), right


def _policy(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import policy
    from switchagg.bench.grid import parse_list, parse_size

    settings = policy.PolicySettings(
        workers=args.workers,
        size=parse_list(args.size, "size", parse_size)[0],
        densities=_numbers(args.density, "density"),
        layouts=parse_list(args.layout, "layout (accepted are random, clustered)", policy.Layout),
        blocks=parse_list(args.blocks, "blocks", int),
        seconds=args.phase_seconds,
        **chosen(args, "share", "deadline", "transport", "seed", "timeout"),
    )
    outcome = policy.run(settings, partial(print, file=sys.stderr, flush=True))
    if not outcome.exact:
        print("results differed between settings or ranks", file=sys.stderr)
    return policy.table(outcome), policy.to_json(settings, outcome), outcome.exact


def _io(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import io
    from switchagg.bench.grid import parse_list

    given = parse_list(args.transport, "transport", str) if args.transport else io.TRANSPORTS
    settings = io.Settings(given, **chosen(args, "words", "seconds", "repeat"))
    with working("measuring"):
        figures, missing = io.measure(settings)
    return io.table(figures, missing).text(), io.as_json(figures), bool(figures)


def _loops(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench import loops
    from switchagg.bench.grid import parse_list, parse_size

    settings = loops.Settings(
        parse_list(args.size, "size", parse_size)[0],
        parse_list(args.loop, "loop", str) if args.loop else (),
        parse_list(args.level, "level", str) if args.level else (),
        **chosen(args, "repeat", "seed"),
    )
    with working("measuring") as say:
        figures = loops.measure(settings, say)
    return loops.table(settings, figures).text(), loops.as_json(settings, figures), True


def _peers(args: argparse.Namespace) -> _Outcome:
    from switchagg.bench.grid import parse_list
    from switchagg.bench.peers import registry
    from switchagg.report.table import columns

    if args.install:
        everything = args.install == "all"
        registry.install(registry.INSTALLABLE if everything else parse_list(args.install, "install", str))
    found = registry.reasons()
    rows = [(name, reason or "installed") for name, reason in found.items()]
    return columns(rows, [False, False]), found, True


def _numbers(text: str, name: str) -> tuple[float, ...]:
    """Parses a list in which numbers may come twice."""
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is {text!r}; accepted: numbers such as 1,0.1,0.01") from None
