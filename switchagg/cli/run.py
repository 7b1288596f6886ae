"""`switchagg run`: n local processes with an embedded switch between them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import socket
import sys
import time
from typing import Any

from switchagg.cli.options import add_job_size_options, add_network_options, chosen, network_arguments
from switchagg.errors import UsageError, require
from switchagg.launch.signals import stop_signals
from switchagg.wire.header import MAX_WORKERS

_EPILOG = """\
Each process finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment, as under torchrun, and SWITCHAGG_CONTROLLER and SWITCHAGG_JOB, which worker_lib.connect() reads.
OMP_NUM_THREADS is 1 where it is not set and there are several processes, PYTHONUNBUFFERED is 1 where it is
not set. Their standard input is empty.

With --seal the ranks seal their sums (docs/using.md), with the secret that SWITCHAGG_SEAL names here, or else
a fresh one. Each rank reads it from a pipe, which SWITCHAGG_SEAL names there; no file, command line or
environment has it. Processes leave no core files then.

When a rank fails, the others have --grace seconds to end, then they get SIGTERM and after 5 more seconds
SIGKILL. Ctrl-C, SIGTERM and SIGHUP are passed on to all of them; a second one kills them.

Exit status: 0, or that of the first rank that failed (128 + n where signal n killed it); 126 the command
cannot be executed, 127 it does not exist, 128 + n after signal n.

  switchagg run -n 4 -- python train.py --epochs 3
  switchagg run -n 2 --loss 0.01 --seed 1 --pcap run.pcap -- python train.py
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        usage="switchagg run -n N [options] -- command [argument ...]",
        description="Starts a software switch with its controller, and N processes that find it.",
        epilog=_EPILOG,
    )
    option = parser.add_argument
    option("-n", "--workers", type=int, required=True, metavar="N", help="processes, 1 to 32")
    option("--job", default="default", help="SWITCHAGG_JOB of the processes (%(default)s)")
    option("--controller", metavar="URL", help="use the switch of this controller; start none")
    add_job_size_options(parser)
    option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="SWITCHAGG_TIMEOUT of the processes: the limit of connect() and of collectives (30)",
    )
    option(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time to end after a failure (%(default)g)",
    )
    option("--seal", action="store_true", help="seal sums, with a secret that only the ranks have")
    option("--no-prefix", action="store_true", help="do not mark lines with their rank")
    option(
        "--json",
        action="store_true",
        help="print how the ranks ended as JSON, and all that they print to standard error",
    )
    add_network_options(parser)
    option("command_line", nargs=argparse.REMAINDER, metavar="command ...", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Runs the processes. Returns the exit status of the command's help.

    Raises `UsageError` for an option that cannot work, `SwitchError` where the switch does not start.
    """
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    _check(args, command)
    if (status := _unusable(command[0])) is not None:
        return status
    from switchagg.launch.processes import CannotExecute, ending
    from switchagg.launch.ranks import run_ranks

    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(stop_signals())
        pipes = _sealed(args.workers, stack) if args.seal else []
        watched: dict[int, Any] = {}
        controller = args.controller
        if controller is None:
            from worker_lib.embedded import start_embedded

            embedded = stack.enter_context(start_embedded(arguments=_switch_arguments(args)))
            controller = embedded.controller
            descriptor = os.pidfd_open(embedded.pid)
            stack.callback(os.close, descriptor)

            def switch_ended() -> None:
                _say(f"the switch (pid {embedded.pid}) {ending(embedded.process.wait())}")

            watched[descriptor] = switch_ended
        environments = _environments(args, controller)
        for environment, pipe in zip(environments, pipes, strict=False):
            environment["SWITCHAGG_SEAL"] = f"fd:{pipe}"
        ends: list[dict[str, Any]] = []
        started = time.monotonic()

        def ended(rank: int, status: int) -> None:
            ends.append({"rank": rank, "status": status, "seconds": round(time.monotonic() - started, 3)})

        try:
            status = run_ranks(
                [command] * args.workers,
                environments,
                prefix=not args.no_prefix,
                grace=args.grace,
                say=_say,
                signals=signals,
                watched=watched,
                inherited=pipes,
                to_stderr=args.json,
                ended=ended,
            )
        except CannotExecute as error:
            _say(str(error))
            return 126
    if args.json:
        print(json.dumps({"job": args.job, "status": status, "ranks": ends}))
    return status


def _check(args: argparse.Namespace, command: list[str]) -> None:
    require(1 <= args.workers <= MAX_WORKERS, "-n", args.workers, f"1..{MAX_WORKERS} processes")
    if not command:
        raise UsageError("no command: switchagg run -n 4 -- python train.py")
    for name in ("timeout", "grace"):
        value = getattr(args, name)
        if value is not None and not 0 <= value <= 86_400:
            raise UsageError(f"{name} is {value}; accepted: 0..86400 seconds")
    if args.timeout == 0:
        raise UsageError("timeout is 0; accepted: more than 0 seconds")
    if not args.job:
        raise UsageError("job is empty; accepted: a name")
    if args.controller is not None and (own := _switch_arguments(args)):
        raise UsageError(f"{own[0]} is for a switch that this command starts; with --controller it does not")


def _unusable(program: str) -> int | None:
    """Returns the shell's exit status for a program that cannot be run, and prints why; else None."""
    if shutil.which(program) is not None:
        return None
    if os.path.sep in program and os.path.exists(program):
        _say(f"{program}: not an executable file")
        return 126
    _say(f"{program}: command not found")
    return 127


def _switch_arguments(args: argparse.Namespace) -> list[str]:
    """Returns the options of the switch that this command starts, as words of a command line."""
    line = network_arguments(args)
    for name, value in chosen(args, "slots", "words").items():
        line += [] if value is None else [f"--{name}", str(value)]
    return line


def _environments(args: argparse.Namespace, controller: str) -> list[dict[str, str]]:
    common = {name: value for name, value in os.environ.items() if name != "GROUP_WORLD_SIZE"}  # torchrun's
    common.setdefault("PYTHONUNBUFFERED", "1")
    if args.workers > 1:
        common.setdefault("OMP_NUM_THREADS", "1")
    if args.timeout is not None:
        common["SWITCHAGG_TIMEOUT"] = repr(args.timeout)
    common |= {
        "WORLD_SIZE": str(args.workers),
        "LOCAL_WORLD_SIZE": str(args.workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "SWITCHAGG_CONTROLLER": controller,
        "SWITCHAGG_JOB": args.job,
    }
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(args.workers)]


def _sealed(workers: int, stack: contextlib.ExitStack) -> list[int]:
    """Returns a pipe for each rank with the secret in it; this process and the ranks leave no core files."""
    from worker_lib.secret import Secret, hand_on, read_secret

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # 1 byte has room for no core file, and keeps the kernel from a handler's pipe too, as 0 does not.
    least = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (least, most))
    secret = read_secret(True) if os.environ.get("SWITCHAGG_SEAL") else Secret(os.urandom(32))
    pipes = [hand_on(secret) for _ in range(workers)]
    for pipe in pipes:
        stack.callback(os.close, pipe)
    return pipes


def _free_port() -> int:
    """Returns a TCP port that nobody listens at now, for the ranks' rendezvous."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(message: str) -> None:
    print(f"switchagg run: {message}", file=sys.stderr, flush=True)
