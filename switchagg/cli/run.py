"""`switchagg run`: n processes, here or on several hosts, with an embedded switch between them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchagg.cli.options import (
    add_job_size_options,
    add_network_options,
    chosen,
    faults_from,
    network_arguments,
    rate_from,
)
from switchagg.errors import UsageError, require
from switchagg.launch.signals import stop_signals
from switchagg.wire.header import MAX_WORKERS

if TYPE_CHECKING:
    from switchagg.launch.hosts import Answer, Host
    from worker_lib.secret import Secret

_EPILOG = """\
Each process finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment, as under torchrun, and SWITCHAGG_CONTROLLER and SWITCHAGG_JOB, which worker_lib.connect() reads.
OMP_NUM_THREADS is 1 where it is not set and there are several processes, PYTHONUNBUFFERED is 1 where it is
not set. Their standard input is empty.

Where ranks share slots, so that the switch needs no core (no -H, --hostfile or --controller, no faults, rates
or captures, no sealed or checked sums, no other SWITCHAGG_TRANSPORT), each is bound to its share of the cores
that this command may use, and so is what it starts. Give jobs of one computer cores of their own by taskset,
or give them --bind-to none.

With --seal the ranks seal their sums (docs/using.md), with the secret that SWITCHAGG_SEAL names here, or else
a fresh one. Each rank reads it from a pipe, which SWITCHAGG_SEAL names there; no file, command line or
environment has it. Processes leave no core files then.

With -H or --hostfile they run on these hosts, in the folder of the same path and with this environment, and
the switch on this computer. Each host needs switchagg and a login by ssh without a password; names that say
this computer, such as localhost, need no ssh. No token or secret is on a command line, here or there.

When a rank fails, the others have --grace seconds to end, then they get SIGTERM and after 5 more seconds
SIGKILL. Ctrl-C, SIGTERM and SIGHUP are passed on to all of them; a second one kills them.

Exit status: 0, or that of the first rank that failed (128 + n where signal n killed it); 126 the command
cannot be executed, 127 it does not exist, 128 + n after signal n.

  switchagg run -n 4 -- python train.py --epochs 3
  switchagg run -H node1:2,node2:2 -- python train.py
  switchagg run -n 2 --loss 0.01 --seed 1 --pcap run.pcap -- python train.py
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        usage="switchagg run (-n N | -H HOSTS) [options] -- command [argument ...]",
        description="Starts a software switch with its controller, and N processes that find it.",
        epilog=_EPILOG,
    )
    option = parser.add_argument
    option("-n", "--workers", type=int, metavar="N", help="processes, 1 to 32; with -H all slots")
    several = parser.add_argument_group("several hosts")
    where = several.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="HOSTS", help="start them over ssh: node1:2,node2:2")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="the same, a line a host: node1 slots=2")
    several.add_argument("--address", metavar="ADDRESS", help="address of this computer that the hosts reach")
    several.add_argument("--ssh", metavar="COMMAND", help="in place of ssh -o BatchMode=yes")
    several.add_argument(
        "--python", metavar="PATH", help="Python of the hosts, with switchagg (that of this command)"
    )
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
    option(
        "--bind-to",
        choices=("auto", "cores", "none"),
        default="auto",
        help="cores: bind each rank to its share of those that may be used on its host; none: bind none; "
        "auto: bind where ranks share slots, as far as this command knows (%(default)s)",
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
    from switchagg.launch.processes import CannotExecute
    from switchagg.launch.ranks import free_port, rank_environments, run_ranks, sealed_pipes, unusable
    from worker_lib.secret import fresh_secret, read_secret

    hosts = _hosts(args)
    _check(args, command)
    if not hosts and (status := unusable(command[0], _say)) is not None:
        return status
    ends: list[dict[str, Any]] = []
    started = time.monotonic()

    def ended(rank: int, status: int) -> None:
        ends.append({"rank": rank, "status": status, "seconds": round(time.monotonic() - started, 3)})

    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(stop_signals())
        secret = None
        if args.seal:
            secret = read_secret(True) if os.environ.get("SWITCHAGG_SEAL") else fresh_secret()
        watched: dict[int, Callable[[], None]] = {}
        common: dict[str, Any] = {
            "prefix": not args.no_prefix, "grace": args.grace, "say": _say, "signals": signals,
            "watched": watched, "to_stderr": args.json, "ended": ended,
            "bind": args.bind_to == "cores" or (args.bind_to == "auto" and not _needs_switch(args)),
        }  # fmt: skip
        try:
            if hosts:
                status = _run_on_hosts(args, hosts, command, secret, stack, common)
            else:
                controller = args.controller or _start_switch(args, stack, watched)
                environment = _environment(args, os.environ, controller, "127.0.0.1", free_port())
                pipes = [] if secret is None else sealed_pipes(secret, args.workers, stack)
                environments = rank_environments(environment, args.workers, pipes)
                status = run_ranks([command] * args.workers, environments, inherited=pipes, **common)
        except CannotExecute as error:
            _say(str(error))
            return 126
    if args.json:
        print(json.dumps({"job": args.job, "status": status, "ranks": ends}))
    return status


def _run_on_hosts(
    args: argparse.Namespace,
    hosts: Sequence[Host],
    command: Sequence[str],
    secret: Secret | None,
    stack: contextlib.ExitStack,
    common: Mapping[str, Any],
) -> int:
    """Runs the ranks on hosts, with a switch here that all of them reach and others do not use."""
    from switchagg.launch.hosts import meeting_point, own_address, passed_on, run_hosts

    def prepare(answers: Sequence[Answer]) -> dict[str, str]:
        environment = passed_on(os.environ)
        controller = args.controller
        if controller is None:
            # Others reach this address too.
            environment["SWITCHAGG_TOKEN"] = token = secrets.token_urlsafe(24)
            own = args.address or own_address(answers)
            controller = _start_switch(args, stack, common["watched"], host=own, credential=token)
        return _environment(args, environment, controller, *meeting_point(answers, args.address))

    where = {"ssh": args.ssh, "python": args.python}
    given = {name: value for name, value in where.items() if value is not None}
    return run_hosts(hosts, command, prepare, secret=secret, **given, **common)


def _start_switch(
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
    watched: dict[int, Callable[[], None]],
    **settings: Any,
) -> str:
    """Starts the switch, to the end of `stack`, and returns its controller's URL. `watched` gets its end."""
    from switchagg.launch.processes import ending
    from worker_lib.embedded import start_embedded

    embedded = stack.enter_context(start_embedded(arguments=_switch_arguments(args), **settings))
    descriptor = os.pidfd_open(embedded.pid)
    stack.callback(os.close, descriptor)
    watched[descriptor] = lambda: _say(f"the switch (pid {embedded.pid}) {ending(embedded.process.wait())}")
    return embedded.controller


def _hosts(args: argparse.Namespace) -> list[Host]:
    """Returns the hosts with as many ranks as they get, and sets `workers` to their sum; or none."""
    if args.hosts is None and args.hostfile is None:
        for name in ("address", "ssh", "python"):
            if getattr(args, name) is not None:
                raise UsageError(f"{name} is for ranks on several hosts: give -H or --hostfile")
        if args.workers is None:
            raise UsageError("-n is not given; accepted: -n N, -H HOSTS, --hostfile FILE")
        return []
    from switchagg.launch.hosts import filled, parse_hosts, read_hostfile

    given = parse_hosts(args.hosts) if args.hosts is not None else read_hostfile(args.hostfile)
    if args.workers is not None:
        require(args.workers >= 1, "-n", args.workers, "1 process or more")
    hosts = filled(given, args.workers)
    args.workers = sum(each.slots for each in hosts)
    return hosts


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


def _needs_switch(args: argparse.Namespace) -> bool:
    """Packets go through a switch, as far as this command knows."""

    def asked(name: str, *idle: str) -> bool:
        return (os.environ.get(f"SWITCHAGG_{name}") or idle[0]) not in idle

    elsewhere = any(each is not None for each in (args.hosts, args.hostfile, args.controller))
    guarded = args.seal or asked("SEAL", "") or asked("CHECK", "0")
    faulty = faults_from(args).any or rate_from(args) is not None or args.pcap is not None
    return elsewhere or guarded or faulty or asked("TRANSPORT", "auto", "slots")


def _switch_arguments(args: argparse.Namespace) -> list[str]:
    """Returns the options of the switch that this command starts, as words of a command line."""
    line = network_arguments(args)
    for name, value in chosen(args, "slots", "words").items():
        line += [] if value is None else [f"--{name}", str(value)]
    return line


def _environment(
    args: argparse.Namespace, given: Mapping[str, str], controller: str, address: str, port: int
) -> dict[str, str]:
    """Returns the environment that all ranks have: `given`, and what they join with."""
    common = {name: value for name, value in given.items() if name != "GROUP_WORLD_SIZE"}  # torchrun's
    common.setdefault("PYTHONUNBUFFERED", "1")
    if args.workers > 1:
        common.setdefault("OMP_NUM_THREADS", "1")
    if args.timeout is not None:
        common["SWITCHAGG_TIMEOUT"] = repr(args.timeout)
    return common | {
        "WORLD_SIZE": str(args.workers),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "SWITCHAGG_CONTROLLER": controller,
        "SWITCHAGG_JOB": args.job,
    }


def _say(message: str) -> None:
    print(f"switchagg run: {message}", file=sys.stderr, flush=True)
