"""`switchagg topo`: a network in Mininet, a switch of one's choice, and a job across it."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mininet_topos
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from switchagg.topo.network import Network, NetworkSettings, RunResult

_TOPOLOGIES: Final = ("rack", "two_level", "shared", "asymmetric")
_EPILOG = """\
topologies, as `mn --topo` writes them too (rack,4 or two_level,leaves=4,workers=16):
  rack         n workers at one switch
  two_level    racks of workers, a leaf each, under one root
  shared       two jobs and two hosts of other traffic at one switch
  asymmetric   a rack in which h1's link is slow and h2's loses
or
  clean        remove what runs that were killed have left, and nothing else
  custom       print the path of the file for `mn --custom`
  check        on a worker host: are sums exact, and how fast (what runs without a command)

Needs root and Mininet (apt install mininet). Every worker host runs the command with RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT, SWITCHAGG_CONTROLLER, SWITCHAGG_TOKEN, SWITCHAGG_JOB and SWITCHAGG_ADDRESS set.
Everything is removed at the end, also after Ctrl-C or a crash. Exit status: 0; that of the rank that failed
first; 1 something does not start, or a sum is wrong; 2 a value that cannot work; 128 + n after signal n.

  sudo switchagg topo rack --workers 4 --switch p4 --loss 0.01
  sudo switchagg topo rack --switch native --pcap captures --plot rack.png -- python train.py
  sudo switchagg topo two_level --leaves 4 --workers 16 --switch native --cli
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "topo",
        usage="switchagg topo TOPOLOGY [options] [-- command [argument ...]]",
        description="Builds a network of namespaces with Mininet, starts its switches and their controller, "
        "and runs a command on every worker host.",
        epilog=_EPILOG,
    )
    option = parser.add_argument
    option("topology", metavar="TOPOLOGY", help="see below")
    option("--workers", type=int, metavar="N", help="of the rack, of each leaf, of each job")
    option("--leaves", type=int, metavar="N", help="of two_level")
    option(
        "--switch",
        default="native",
        metavar="KIND",
        help="native, p4 or bmv2, with options as mn has them: bmv2,words=16 (%(default)s)",
    )
    links = parser.add_argument_group("links", "faults of every link, each way")
    links.add_argument("--loss", metavar="P", help="probability that a frame is lost")
    links.add_argument("--delay", metavar="TIME", help="such as 5ms")
    links.add_argument("--jitter", metavar="TIME", help="at most this much more, at random")
    links.add_argument("--bw", dest="rate", metavar="MBIT", help="rate of the wire, Mbit/s")
    links.add_argument("--queue", metavar="FRAMES", help="limit of a link's queue, with --bw (1000)")
    links.add_argument("--seed", metavar="N", help="of these random decisions (0)")
    option("--words", type=int, metavar="K", help="words in a packet of jobs that ask for none")
    option("--slots", type=int, metavar="P", help="slots of jobs that ask for none")
    check = parser.add_argument_group("check", "without a command")
    check.add_argument("--elements", type=int, default=65_536, metavar="N", help="int32 a sum (%(default)s)")
    check.add_argument("--rounds", type=int, default=5, metavar="N", help="timed all-reduces (%(default)s)")
    option("--cli", action="store_true", help="open Mininet's shell, after the command if there is one")
    option("--pcap", type=Path, metavar="DIR", help="capture the frames of each port of each switch")
    option("--plot", type=Path, metavar="FILE", help="draw the network with the figures (.png, .svg)")
    option("--no-prefix", action="store_true", help="do not mark lines with their rank")
    option("--json", action="store_true", help="print the result as JSON")
    option("-v", "--verbose", action="store_true", help="show Mininet's steps")
    parser.set_defaults(command_line=[])


def arranged(line: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns our own arguments; everything behind -- is the command to run."""
    if "--" not in line:
        return line
    end = line.index("--")
    parser.set_defaults(command_line=line[end + 1 :])
    return line[:end]


def run(args: argparse.Namespace) -> int:
    """Builds the network and runs the command. Raises `UsageError` and `SwitchError`."""
    command: list[str] = args.command_line
    if args.topology == "check":
        from switchagg.topo.check import run as check

        return check(args.elements, args.rounds, int(args.seed or 1))
    if args.topology == "clean":
        return _clean(args)
    if args.topology == "custom":
        path = str(Path(mininet_topos.__file__).with_name("custom.py"))
        print(json.dumps({"path": path}) if args.json else path)
        return 0
    plan = _plan(args)
    if command and shutil.which(command[0]) is None:
        raise UsageError(f"command {command[0]!r} is not found")
    if args.plot is not None:
        from switchagg.topo import picture

        picture.check(args.plot)
    from switchagg.report.progress import working
    from switchagg.topo.capture import captured
    from switchagg.topo.network import running_network

    with contextlib.ExitStack() as stack:
        with contextlib.nullcontext() if args.verbose else working("building the network"):
            network = stack.enter_context(running_network(plan, verbose=args.verbose))
        if args.pcap is not None:
            stack.enter_context(captured(args.pcap, network.interfaces()))
        status = 0
        if command or not args.cli:
            status = _measured(args, network, plan, command)
        if args.cli:
            _shell(network)
    return status


def _clean(args: argparse.Namespace) -> int:
    """Removes what is left of runs whose process is gone."""
    from mininet_topos import marks

    removed = [marks.remove(each.mark) for each in marks.stale()]
    if args.json:
        print(json.dumps({"removed": removed}))
        return 0
    for each in removed:
        print(f"removed {each}")
    if not removed:
        print("nothing is left of any run that has ended")
    return 0


def _plan(args: argparse.Namespace) -> NetworkSettings:
    from switchagg.topo.link_faults import link_faults
    from switchagg.topo.network import NetworkSettings

    name, comma, more = args.topology.partition(",")
    accepted = ", ".join((*_TOPOLOGIES, "clean", "custom", "check"))
    require(name in _TOPOLOGIES, "topology", repr(name), accepted)
    if args.leaves is not None and name != "two_level":
        raise UsageError(f"--leaves is for two_level, not for {name}")
    given = {key: getattr(args, key) for key in ("loss", "delay", "jitter", "rate", "queue", "seed")}
    faults = {key: value for key, value in given.items() if value is not None}
    checked = link_faults(**faults)
    if name == "asymmetric":
        # Its own rate and loss are of one link each.
        faults = {f"all_{key}" if key in ("rate", "loss") else key: value for key, value in faults.items()}
    options = faults if checked.any or name == "asymmetric" else {}
    sizes = {"leaves": args.leaves, "workers": args.workers}
    options = {key: value for key, value in sizes.items() if value is not None} | options
    words = [name, *([more] if comma else []), *(f"{key}={value}" for key, value in options.items())]
    return NetworkSettings(",".join(words), args.switch, args.words, args.slots)


def _measured(args: argparse.Namespace, network: Network, plan: NetworkSettings, command: list[str]) -> int:
    from switchagg.report.progress import working
    from switchagg.topo import result as results

    line = command or [
        sys.executable, "-m", "switchagg.cli.main", "topo", "check",
        "--elements", str(args.elements), "--rounds", str(args.rounds),
    ]  # fmt: skip
    with contextlib.nullcontext() if command else working("checking and timing sums"):
        came: RunResult = network.run(line, prefix=not args.no_prefix, to_stderr=args.json)
    if came.status >= 128:
        return came.status
    result = results.record(plan.topology, plan.switch, came, network.links(), network.counters())
    print(json.dumps(result) if args.json else results.lines(result), flush=True)
    if args.plot is not None:
        from switchagg.topo import picture

        picture.draw(result, args.plot)
    if not command and not result["exact"]:
        return came.status or 1
    return came.status


def _shell(network: Network) -> None:
    """Runs Mininet's shell, with our command `workers CMD`."""
    from mininet.cli import CLI

    from mininet_topos.mininet_cli import install

    install()
    CLI(network.net)
