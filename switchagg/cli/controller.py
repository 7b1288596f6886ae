"""`switchagg controller`: the controller of one or several switches, for many tenants.

Prints where it serves on standard output, a line of JSON with --json, and logs on standard error. Ends on
SIGTERM, SIGINT or SIGHUP: it tells its members, and with --state jobs stay on their switches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchagg.addresses import is_loopback, parse_host_port, resolve, show_address
from switchagg.cli.logs import FORMATS, LEVELS, log_to_stderr
from switchagg.cli.options import REPEATABLE, chosen, extras
from switchagg.errors import UsageError
from switchagg.launch.processes import raise_descriptor_limit
from switchagg.launch.signals import stop_signals

if TYPE_CHECKING:
    from switchagg.control.drivers.base import SwitchDriver
    from switchagg.control.switch_specs import Configuration, NativeSpec
    from switchagg.p4runtime.client.spec import P4RuntimeSpec

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
STATE_VARIABLE: Final = "STATE_DIRECTORY"  # systemd sets it for StateDirectory=


def add_parser(subparsers: Any) -> None:
    option = subparsers.add_parser(
        "controller",
        description="Serves HTTP for workers, people and Prometheus, and the web page, in front of switches. "
        "Options override the configuration file.",
    ).add_argument
    option("--listen", metavar="HOST:PORT", help=f"where to serve ({DEFAULT_LISTEN})")
    option(
        "--state",
        type=Path,
        metavar="DIR",
        help=f"folder of the state that survives a restart ({STATE_VARIABLE}; without it nothing does)",
    )
    option("--tls-cert", type=Path, metavar="FILE", help="serve https with this certificate (PEM)")
    option("--tls-key", type=Path, metavar="FILE", help="and its key (PEM, not encrypted)")
    option(
        "--switch",
        **REPEATABLE,
        metavar="NAME=URL",
        help="native[:SLOTS][?address=IP&port=N&memory=BYTES&bandwidth=RATE&parent=NAME&host=NETWORK], a "
        "software switch in this process, between interfaces with &interface=PORT=NAME&station=IP,MAC,PORT; "
        "or p4runtime://HOST:PORT[?address=IP&station=IP,MAC,PORT&parent=NAME&...]; may be repeated "
        "(switch=native)",
    )
    option("--config", type=Path, metavar="FILE", help="TOML file with [controller] and [switch.NAME]")
    option("--words", type=int, metavar="K", help="words in a packet of jobs that ask for none")
    option("--slots", type=int, metavar="P", help="slots of jobs that ask for none")
    option("--log-format", choices=FORMATS, help="lines for people, or JSON (plain)")
    option("--log-level", choices=LEVELS, default="info", help="lowest level that is logged (%(default)s)")
    option("--json", action="store_true", help="print the announcement as JSON")


def run(args: argparse.Namespace) -> int:
    """Serves until told to stop. Raises `UsageError` and `SwitchError` where it cannot start."""
    from switchagg.control.http.server import TlsFiles
    from switchagg.control.switch_specs import wiring

    configuration = _configuration(args)
    settings = configuration.settings
    wires = wiring(configuration.switches)
    host, port = _listen(settings.listen or DEFAULT_LISTEN)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise UsageError("only one of tls-cert and tls-key is given; accepted: both, or neither")
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = TlsFiles(settings.tls_cert, settings.tls_key)
    raise_descriptor_limit()  # each member has a connection
    with stop_signals() as stop, contextlib.ExitStack() as stack:
        from switchagg.control.controller import Controller
        from switchagg.control.service import ControlServer
        from switchagg.control.store import Store

        store = Store(settings.state)
        stack.callback(store.close)
        tenants = bool(store.tenants())
        if not tenants and not is_loopback(host):
            raise UsageError(
                f"listen is {show_address(host, port)}, which others reach, without tenants; accepted: "
                "127.0.0.1, ::1, or tenants: `switchagg tenant add NAME --state DIR`"
            )
        if tls is not None:
            tls.context()  # so that an error comes before anything is opened
        log_to_stderr(settings.log_format or "plain", args.log_level)
        drivers = [_open(spec, host, stack.callback) for _, spec in sorted(configuration.switches.items())]
        controller = Controller(
            drivers, store=store, words=settings.words, slots=settings.slots, wiring=wires
        )
        server = ControlServer(controller, host, port, tls=tls, authentication=tenants)
        stack.callback(server.close)
        server.start()
        warnings = _warnings(settings.state, tls is not None, host, drivers)
        _announce(server.url, drivers, warnings, as_json=args.json)
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(stop, select.POLLIN)
        poll.poll()
    return 0


def _configuration(args: argparse.Namespace) -> Configuration:
    from switchagg.control.switch_specs import Configuration, parse_switch, read_configuration

    configuration = Configuration() if args.config is None else read_configuration(args.config)
    names = ("listen", "state", "tls_cert", "tls_key", "log_format", "words", "slots")
    given = {name: value for name, value in chosen(args, *names).items() if value is not None}
    settings = replace(configuration.settings, **given)
    if settings.log_format not in (None, *FORMATS):
        raise UsageError(f"log_format is {settings.log_format!r}; accepted: {', '.join(FORMATS)}")
    if settings.state is None and (from_systemd := os.environ.get(STATE_VARIABLE)):
        settings = replace(settings, state=Path(from_systemd.split(":")[0]))
    switches: dict[str, NativeSpec | P4RuntimeSpec] = dict(configuration.switches)
    for text in args.switch:
        spec = parse_switch(text)
        if spec.name in switches:
            raise UsageError(f"switch {spec.name!r} is given twice; each needs a name of its own")
        switches[spec.name] = spec
    if not switches:
        switches["switch"] = parse_switch("switch=native")
    return Configuration(settings, switches)


def _listen(text: str) -> tuple[str, int]:
    host, port = parse_host_port("listen", text, f"{DEFAULT_LISTEN}; port 0 for any")
    try:
        return resolve(host or "0.0.0.0"), port
    except (OSError, UnicodeError) as error:
        raise UsageError(f"listen is {text!r}: {error}; accepted: HOST:PORT") from None


def _open(
    spec: NativeSpec | P4RuntimeSpec, host: str, when_done: Callable[[Callable[[], None]], Any]
) -> SwitchDriver:
    from switchagg.control.switch_specs import NativeSpec

    if isinstance(spec, NativeSpec):
        from switchagg.control.drivers.embedded import EmbeddedDriver
        from switchagg.emulator.ether_switch import RackSwitch
        from switchagg.emulator.switch import Switch

        address = spec.address or host
        if address == "0.0.0.0":
            raise UsageError(
                f"switch {spec.name}: workers are told where to send, and {host} is no address for that; "
                f"accepted: {spec.name}=native?address=IP, the address of an interface"
            )
        switch: Switch | RackSwitch
        if spec.interfaces:
            switch = RackSwitch(spec.interfaces, spec.own, spec.stations, capacity=spec.slots)
        else:
            switch = Switch(address, spec.port, capacity=spec.slots, threads=spec.threads)
        switch.start()
        when_done(switch.close)
        return EmbeddedDriver(switch, spec.slots, spec.memory, name=spec.name)
    with extras():
        from switchagg.control.drivers.p4runtime import P4RuntimeDriver
    driver = P4RuntimeDriver(spec)
    when_done(driver.close)
    return driver


def _warnings(state: Path | None, tls: bool, host: str, drivers: list[SwitchDriver]) -> Iterator[str]:

    if state is None:
        yield "nothing survives a restart of this controller: give --state DIR"
    if not tls and not is_loopback(host):
        yield "tokens and jobs' secrets travel in the clear: give --tls-cert and --tls-key"
    for driver in drivers:
        yield from driver.warnings


def _announce(url: str, drivers: list[SwitchDriver], warnings: Iterator[str], *, as_json: bool) -> None:
    switches: Mapping[str, str] = {driver.name: driver.target for driver in drivers}
    if as_json:
        said = {"controller": url, "switches": switches, "pid": os.getpid(), "warnings": list(warnings)}
        print(json.dumps(said), flush=True)
        return
    named = ", ".join(f"{name} ({target})" for name, target in switches.items())
    print(f"controller at {url}, switches: {named}", flush=True)
    for warning in warnings:
        print(f"warning: {warning}", flush=True)
