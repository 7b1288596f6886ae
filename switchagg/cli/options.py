"""Options that several commands share, and what follows from them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchagg.errors import UsageError
from switchagg.rules.planner import (
    DEFAULT_SLOTS,
    DEFAULT_WORDS,
    LARGE_SLOTS,
    LARGE_WORDS,
    MANY_WORKERS,
)
from switchagg.rules.switch import MAX_THREADS

if TYPE_CHECKING:
    from switchagg.control.client import ControllerClient
    from switchagg.emulator.faults import Faults
    from switchagg.emulator.rates import Rate

REPEATABLE: Final[dict[str, Any]] = {"action": "append", "default": []}
_EXTRAS: Final = {
    "lark": "p4model",
    "pcpp": "p4model",
    "grpc": "p4runtime",
    "google": "p4runtime",
    "finsy": "p4runtime",
}
_FAULTS = (
    ("loss", "probability that a packet is lost"),
    ("duplicate", "probability that it arrives twice"),
    ("reorder", "probability that later ones overtake it"),
    ("corrupt", "probability that one of its bits is flipped"),
    ("delay", "seconds added to the way of every packet"),
    ("jitter", "at most so many seconds more, at random"),
)


def add_topics(parser: argparse.ArgumentParser, topics: Mapping[str, str]) -> None:
    """Adds ``-h`` and ``--help [TOPIC]``: help by topics, for a command whose whole help is long.

    Args:
        parser: made with ``add_help=False``.
        topics: titles of its groups of options, by the name of the topic.
    """

    class Help(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, _: object, values: Any, *__: object) -> None:
            groups = {each.title: each for each in parser._action_groups}
            formatter = parser._get_formatter()
            if values is None:
                parser.usage = f"{parser.prog} [options]"
                shown = [each for title, each in groups.items() if title not in topics.values()]
                listed = "".join(
                    f"  --help {name:<12}{groups[title].description}\n" for name, title in topics.items()
                )
                formatter.add_usage(parser.usage, [], [])
                formatter.add_text(parser.description)
            elif values == "all":
                parser.print_help()
                parser.exit()
            elif values in topics:
                shown, listed = [groups[topics[values]]], ""
            else:
                parser.error(f"topic is {values!r}; accepted: {', '.join((*topics, 'all'))}")
            for group in shown:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
            if listed:
                listed = f"\nmore options, by topics:\n{listed}  --help {'all':<12}all of them\n"
            parser._print_message(formatter.format_help() + listed, sys.stdout)
            parser.exit()

    parser.add_argument(
        "-h", "--help", nargs="?", action=Help, metavar="TOPIC", help="show this help, or that of a topic"
    )


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Adds the faults that a switch injects, ``--seed``, the links' rate and ``--pcap``."""
    group = parser.add_argument_group(
        "network", "what the switch does to packets, in each direction independently"
    )
    for name, meaning in _FAULTS:
        group.add_argument(f"--{name}", type=float, default=0.0, metavar="X", help=f"{meaning} (0)")
    group.add_argument("--seed", type=int, metavar="N", help="of these random decisions (any)")
    add_rate_options(group)
    group.add_argument("--pcap", type=Path, metavar="FILE", help="write all packets there")


def add_rate_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds the rate of the workers' links and the length of their queues."""
    group.add_argument(
        "--rate", metavar="RATE", help="of each worker's link, each way, such as 1Gbit (no limit)"
    )
    group.add_argument(
        "--queue", type=int, metavar="BYTES", help="at most, at one end of a link with a --rate (1048576)"
    )
    group.add_argument(
        "--mark",
        type=int,
        metavar="BYTES",
        help="mark packets that find more in such a queue, by ECN (no)",
    )


def add_transport_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--transport``, the way of packets from other hosts, and the options of DPDK."""
    group = parser.add_argument_group("transport")
    group.add_argument(
        "--transport",
        choices=("udp", "xdp", "dpdk"),
        default="udp",
        help="the kernel's sockets, AF_XDP on the interface of --host, or DPDK (%(default)s)",
    )
    group.add_argument(
        "--dpdk", metavar="ARGUMENTS", help="of DPDK's EAL, such as '-a 0000:01:00.0'; --host is its address"
    )
    group.add_argument("--dpdk-mtu", type=int, metavar="BYTES", help="to give its ports (their own)")
    group.add_argument("--dpdk-poll", action="store_true", help="never sleep; takes a whole core")
    group.add_argument(
        "--threads",
        default="1",
        metavar="N|auto",
        help="that move packets, each with slots and a socket of its own; auto: a core each (%(default)s)",
    )


def transport_from(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments `transport`, `dpdk` and `threads` of a switch. Raises `UsageError`."""
    from switchagg.devices.dpdk import DpdkSettings

    dpdk = None
    if args.dpdk is not None:
        dpdk = DpdkSettings(args.dpdk, args.dpdk_mtu, args.dpdk_poll)
    elif args.dpdk_mtu is not None or args.dpdk_poll:
        raise UsageError("--dpdk-mtu and --dpdk-poll are for --dpdk")
    if (dpdk is not None) != (args.transport == "dpdk"):
        raise UsageError("--transport dpdk and --dpdk ARGUMENTS go together")
    return {"transport": args.transport, "dpdk": dpdk, "threads": _threads(args.threads)}


def _threads(text: str) -> int:
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(f"threads is {text!r}; accepted: 1..{MAX_THREADS}, or auto")
    return int(text)


def add_job_size_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--slots`` and ``--words`` of jobs that ask for none."""
    parser.add_argument(
        "--slots",
        type=int,
        metavar="P",
        help=f"of jobs that ask for none ({DEFAULT_SLOTS}; with large packets {LARGE_SLOTS}, or "
        f"halved if the ranks share them in memory, and again from {MANY_WORKERS} ranks on)",
    )
    parser.add_argument(
        "--words",
        type=int,
        metavar="K",
        help=f"in a packet of such jobs ({DEFAULT_WORDS}, or {LARGE_WORDS} on an interface that carries it)",
    )


def add_macro_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds the folders and macros of a P4 preprocessor."""
    parser.add_argument(
        "-I", dest="include_dirs", **REPEATABLE, metavar="FOLDER", help="look for includes here too"
    )
    parser.add_argument("-D", dest="defines", **REPEATABLE, metavar="NAME[=VALUE]", help="define a macro")


def faults_from(args: argparse.Namespace) -> Faults:
    """Returns the faults asked for. Raises `UsageError` for a value out of range."""
    from switchagg.emulator.faults import Faults

    return Faults(seed=args.seed, **{name: getattr(args, name) for name, _ in _FAULTS})


def rate_from(args: argparse.Namespace) -> Rate | None:
    """Returns the links' rate, None without --rate. Raises `UsageError` for a text that is no rate."""
    from switchagg.emulator.rates import Rate

    if args.rate is None:
        for name in ("queue", "mark"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} is of links with a --rate")
        return None
    return Rate.parse(args.rate, args.queue, args.mark)


def network_arguments(args: argparse.Namespace) -> list[str]:
    """Returns the network options as words of another command's line."""
    line = faults_from(args).options()
    if (rate := rate_from(args)) is not None:
        line += rate.options()
    if args.pcap is not None:
        line += ["--pcap", str(args.pcap.absolute())]
    return line


def add_controller_options(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Adds ``--controller``, ``--ca`` and ``--json``, and sets defaults such as the command's function."""
    parser.set_defaults(**defaults)
    option = parser.add_argument
    option("--controller", metavar="URL", help="http://host:port or https://host:port (SWITCHAGG_CONTROLLER)")
    option(
        "--ca",
        metavar="FILE",
        help="certificates to trust, for https:// with a private authority (SWITCHAGG_CA)",
    )
    option("--json", action="store_true", help="print JSON")
    # A token on a command line is seen by everybody who lists processes.
    parser.epilog = "The tenant's token, where the controller wants one, comes from SWITCHAGG_TOKEN."


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--id`` and ``--tenant``, which tell jobs of one name apart."""
    parser.add_argument("--id", type=int, metavar="N", help="its id, where several have the name")
    parser.add_argument("--tenant", metavar="NAME", help="the job's tenant, for administrators")


def client_from(args: argparse.Namespace, timeout: float = 10.0) -> ControllerClient:
    """Returns a client of the controller that the options name. Raises `UsageError` where none is named."""
    from switchagg.control.client import ControllerClient, controller_url

    return ControllerClient(controller_url(args.controller), timeout, ca=args.ca)


def chosen(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns the values of some options by name, for settings with the same names."""
    return {name: getattr(args, name) for name in names}


def print_answer(args: argparse.Namespace, answer: object, text: str) -> int:
    """Prints a controller's answer, as JSON where --json is given and as text otherwise. Returns 0."""
    print(json.dumps(answer, indent=1) if args.json else text)
    return 0


@contextlib.contextmanager
def extras() -> Iterator[None]:
    """Turns the error of a missing package into a `UsageError` that names its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise UsageError(f'{error.name} is missing: pip install "switchagg[{extra}]"') from None


def refuse_rate_and_capture(args: argparse.Namespace) -> None:
    """Raises `UsageError` for a rate or a capture, which the P4 engine does not have."""
    if rate_from(args) is not None:
        raise UsageError("--engine p4 has links of no particular --rate")
    if args.pcap is not None:
        raise UsageError("--engine p4 writes no capture")
