"""Parts that the forms of `switchagg switch` share: interfaces, extras, TLS, the loop until it stops."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from switchagg.cli.options import faults_from, rate_from
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from switchagg.p4runtime.server.server import Tls

_EXTRAS: Final = {
    "lark": "p4model",
    "pcpp": "p4model",
    "grpc": "p4runtime",
    "google": "p4runtime",
    "finsy": "p4runtime",
}


class Serving(Protocol):
    """A switch that runs until it is stopped, or fails."""

    @property
    def failure(self) -> str | None:
        """The reason that it ended by itself; None while it runs."""
        ...


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


def refuse_faults(args: argparse.Namespace) -> None:
    """Raises `UsageError` for faults, a rate or a capture, which the P4 engine does not have."""
    if rate_from(args) is not None:
        raise UsageError("--engine p4 has links of no particular --rate")
    if faults_from(args).any or args.pcap is not None:
        raise UsageError("--engine p4 injects no faults and writes no capture")


def interfaces(ours: Iterable[str], bmv2: Iterable[str] = ()) -> dict[int, str]:
    """Returns names of interfaces by port.

    Args:
        ours: PORT=NAME, as --interface has it.
        bmv2: PORT@NAME, or the same, as -i has it.

    Raises `UsageError` for another form, a port that no switch has, or one that is given twice.
    """
    with extras():
        from switchagg.p4model.runtime.switch import check_port
    given = [
        (
            each if "=" in each else each.replace("@", "=", 1),
            f"--interface takes PORT=NAME such as 0=eth0, not {each}",
        )
        for each in ours
    ]
    given += [(each.replace("@", "=", 1), f"-i takes PORT@NAME such as 0@eth0, not {each}") for each in bmv2]
    found: dict[int, str] = {}
    for text, wrong in given:
        port, _, name = text.partition("=")
        if not (port.isascii() and port.isdigit()) or not name:
            raise UsageError(wrong)
        number = check_port(int(port[:9]))  # longer numbers are no port of any switch
        if number in found:
            raise UsageError(f"port {port} is given twice")
        found[number] = name
    return found


def watch(
    args: argparse.Namespace,
    switch: Serving,
    wait: Callable[[float], bool],
    counters: Callable[[], dict[str, int]],
) -> None:
    """Returns when `wait(seconds)` says so or the switch has failed; prints counters as the options ask."""
    while not wait(args.stats_interval or 1.0) and not switch.failure:
        if args.stats_interval:
            print_counters("stats", counters(), args.json)


def print_counters(event: str, port: dict[str, int], as_json: bool, **more: object) -> None:
    """Prints counters as one line: an object of this event, with `more` in it, or text."""
    if as_json:
        print(json.dumps({"event": event, "port": port, **more}), flush=True)
    else:
        print(", ".join(f"{name} {count}" for name, count in port.items()), flush=True)


def print_stopped(switch: Serving, port: dict[str, int], as_json: bool, **more: object) -> None:
    """Prints that the switch has stopped, why if it was by itself, and its counters."""
    if not as_json:
        print(f"switch stopped{': ' + switch.failure if switch.failure else ''}", flush=True)
    print_counters("stopped", port, as_json, failure=switch.failure, **more)


def tls(args: argparse.Namespace) -> Tls | None:
    """Returns the TLS files that the options name, None for no encryption. Raises `UsageError`."""
    files = args.grpc_server_cert, args.grpc_server_key, args.grpc_server_cacert
    if not args.grpc_server_ssl:
        if any(files) or args.grpc_server_with_client_auth:
            raise UsageError("--grpc-server-cert and its like are for --grpc-server-ssl")
        return None
    if args.grpc_server_cert is None or args.grpc_server_key is None:
        raise UsageError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if args.grpc_server_with_client_auth and args.grpc_server_cacert is None:
        raise UsageError("--grpc-server-with-client-auth needs --grpc-server-cacert, who vouches for clients")
    from switchagg.p4runtime.server.server import Tls

    clients = args.grpc_server_cacert if args.grpc_server_with_client_auth else None
    return Tls(args.grpc_server_cert, args.grpc_server_key, clients)


def check_p4runtime(args: argparse.Namespace) -> None:
    """Raises `UsageError` for options that neither engine takes with P4Runtime."""
    if args.job or args.entries is not None:
        raise UsageError("--job and --entries are not for --p4runtime, whose client fills the tables")
    require(0 <= args.device_id < 1 << 64, "device-id", args.device_id, "0 to 2**64 - 1")
    require(args.cpu_port is None or 0 <= args.cpu_port <= 511, "cpu-port", args.cpu_port, "0 to 511")
