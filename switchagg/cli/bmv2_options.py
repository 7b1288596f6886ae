"""Options of bmv2's simple_switch_grpc that `switchagg switch` accepts.

    simple_switch_grpc --no-p4 -i 0@veth0 --device-id 1 --log-console -- --grpc-server-addr 127.0.0.1:9559
    switchagg switch   --no-p4 -i 0@veth0 --device-id 1 --log-console -- --grpc-server-addr 127.0.0.1:9559

Options that have a meaning here mean the same. Options of a log, Thrift or nanomsg have no effect, and a line
on standard error says so. Options that would change the switch's behaviour, and cannot here, are refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from switchagg.errors import UsageError, require

DEFAULT_ADDRESS: Final = "127.0.0.1:9559"

_IGNORED: Final = {
    "--thrift-port": "PORT",
    "--nanolog": "ADDRESS",
    "--notifications-addr": "ADDRESS",
    "--debugger-addr": "ADDRESS",
    "--log-file": "FILE",
    "--log-level": "LEVEL",
    "--log-file-max-size": "N",
    "--log-file-max-files": "N",
    "--dump-packet-data": "N",
    "--max-port-count": "N",
    "--priority-queues": "N",
    "--max-mc-groups": "N",
    "--max-l1-entries": "N",
    "--max-l2-entries": "N",
}
_IGNORED_FLAGS: Final = ("--log-console", "--log-flush", "--debugger", "--disable-swap")
_REFUSED: Final = {
    "--packet-in": "packets come by interfaces (-i), not by a nanomsg socket",
    "--use-files": "packets come by interfaces (-i); `switchagg p4 run` takes files",
    "--restore-state": "there is no saved state to begin with; a controller reconciles",
    "--dp-grpc-server-addr": "packets come by interfaces (-i), not by gRPC",
}
_DROP_PORT: Final = 511


def add_bmv2_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("as simple_switch_grpc", "with the same meaning, before or after a --")
    option = group.add_argument
    option("--no-p4", action="store_true", help="wait for a client's program")
    option("--input-config", metavar="FILE.p4", help=argparse.SUPPRESS)
    option("--drop-port", type=int, default=_DROP_PORT, help="511, and nothing else")
    option("--grpc-server-ssl", action="store_true", help="serve P4Runtime over TLS, with the files below")
    option("--grpc-server-cert", type=Path, metavar="FILE", help="the server's certificate")
    option("--grpc-server-key", type=Path, metavar="FILE", help="its key")
    option("--grpc-server-cacert", type=Path, metavar="FILE", help="who vouches for clients")
    option(
        "--grpc-server-with-client-auth", action="store_true", help="let in only clients with a certificate"
    )
    for name, value in _IGNORED.items():
        short = ("-L",) if name == "--log-level" else ()
        option(*short, name, metavar=value, dest=_ignored(name), help=argparse.SUPPRESS)
    for name in _IGNORED_FLAGS:
        option(name, action="store_true", dest=_ignored(name), help=argparse.SUPPRESS)
    for name in _REFUSED:
        option(name, dest=_refused(name), help=argparse.SUPPRESS)


def arranged(line: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns a command line in which options stand on either side of a --, and a program by itself.

    Args:
        line: what follows the command.
        parser: knows the options that take a value.
    """
    if line and line[0] in ("-h", "--help"):
        return list(line)
    actions: dict[str, Any] = parser._option_string_actions
    made: list[str] = []
    words = iter([word for place, word in enumerate(line) if word != "--" or "--" in line[:place]])
    for word in words:
        if word.startswith("-") and word != "-":
            made.append(word)
            action = actions.get(word)
            if action is not None and action.nargs is None:
                made += [value] if (value := next(words, None)) is not None else []
        else:
            made += ["--input-config", word]
    return made


def settle(args: argparse.Namespace) -> None:
    """Translates the options into our own. Raises `UsageError` for those that have no equivalent."""
    for name, why in _REFUSED.items():
        if getattr(args, _refused(name)) is not None:
            raise UsageError(f"{name} is simple_switch_grpc's, and is not here: {why}")
    require(args.drop_port == _DROP_PORT, "drop-port", args.drop_port, f"{_DROP_PORT}, v1model's")
    ignored = [name for name in (*_IGNORED, *_IGNORED_FLAGS) if getattr(args, _ignored(name))]
    if ignored:
        print(
            f"switchagg switch: {', '.join(ignored)}: taken for simple_switch_grpc's sake, without effect",
            file=sys.stderr,
        )
    given = args.input_config
    if given is not None:
        if args.no_p4:
            raise UsageError(f"--no-p4 is for a switch without a program, and {given} is one")
        if args.program is not None:
            raise UsageError(f"two programs: {args.program} and {given}")
        if not given.endswith(".p4"):
            raise UsageError(
                f"{given}: this switch runs P4 sources, not what a compiler makes of them; "
                "accepted: a .p4 file"
            )
        args.program = Path(given)
    if given is not None or args.no_p4 or args.bmv2_interface:
        args.engine = args.engine or "p4"
        args.p4runtime = args.p4runtime or DEFAULT_ADDRESS
    args.engine = args.engine or "native"


def _ignored(name: str) -> str:
    return "ignored_" + name.strip("-").replace("-", "_")


def _refused(name: str) -> str:
    return "refused_" + name.strip("-").replace("-", "_")
