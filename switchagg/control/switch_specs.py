"""The switches that an operator gives a controller, on the command line or in a TOML file.

    --switch lab=native                                   a software switch in the controller's own process
    --switch lab=native:4096?address=10.0.0.5&port=48879  the same, with slots, address and UDP port
    --switch rack1=p4runtime://10.0.0.2:9559?address=…    see switchagg.p4runtime.client.spec
    --switch leaf=native?parent=lab&host=10.0.1.0/24      a leaf below another, and the hosts of its workers
    --switch fast=native?bandwidth=25Gbit                 the link over which its workers reach it
    --switch rack=native?interface=1=eth1&station=…       between interfaces of this host, as a P4 switch is

    [controller]
    listen = "10.0.0.1:8080"
    state = "/var/lib/switchagg"
    tls_cert = "/etc/switchagg/cert.pem"
    tls_key = "/etc/switchagg/key.pem"
    log_format = "json"
    words = 352
    slots = 512

    [switch.lab]
    url = "native:4096"
    [switch.rack1]
    url = "p4runtime://10.0.0.2:9559"
    address = "10.1.0.254"
    stations = ["10.1.0.1, 02:00:00:00:00:01, 1"]
    parent = "lab"

Opens nothing but the TOML file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from switchagg.addresses import parse_address
from switchagg.control.jobs.records import MAX_NAME
from switchagg.emulator.rates import bits_per_second
from switchagg.errors import UsageError
from switchagg.p4program.program import Station, SwitchAddress
from switchagg.rules.switch import DEFAULT_MEMORY, MAX_THREADS
from switchagg.rules.wiring import DEFAULT_BANDWIDTH, Attachment, Network, checked, parse_hosts
from switchagg.wire.header import DEFAULT_PORT

if TYPE_CHECKING:
    from switchagg.p4runtime.client.spec import P4RuntimeSpec

DEFAULT_SLOTS: Final = 65536
_NATIVE: Final = "native"
_P4RUNTIME: Final = "p4runtime:"
_ACCEPTED: Final = (
    "native[:SLOTS][?address=IP&port=N&memory=BYTES&threads=N&bandwidth=RATE&parent=NAME&host=IP/LENGTH], "
    "with interface=PORT=NAME also mac=MAC&station=IP,MAC,PORT; or p4runtime://HOST:PORT[?…]"
)
_LISTS: Final = {"host": "hosts", "interface": "interfaces", "station": "stations"}
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class NativeSpec:
    """A software switch in the controller's process; `parent`, `hosts`, `bandwidth` are as in `Attachment`.

    With `interfaces` (by port) it switches frames between these, has the addresses `own`, and `stations` by
    IPv4 address. Without, it is on a UDP port.
    """

    name: str
    slots: int = DEFAULT_SLOTS
    address: str | None = None  # None: the controller's own
    port: int = 0
    memory: int = DEFAULT_MEMORY
    parent: str | None = None
    hosts: tuple[Network, ...] | None = None
    interfaces: Mapping[int, str] = field(default_factory=dict)
    own: SwitchAddress | None = None
    stations: Mapping[str, Station] = field(default_factory=dict)
    threads: int = 1
    bandwidth: float = DEFAULT_BANDWIDTH


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the controller itself; None for those that a file does not give."""

    listen: str | None = None
    state: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log_format: str | None = None
    words: int | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file. Paths in it are relative to its folder."""

    settings: Settings = Settings()
    switches: Mapping[str, NativeSpec | P4RuntimeSpec] = field(default_factory=dict)


def parse_switch(text: str) -> NativeSpec | P4RuntimeSpec:
    """Returns the switch of ``NAME=URL``. Raises `UsageError`, which names what is accepted."""
    name, equals, url = text.partition("=")
    if not equals or not url:
        raise UsageError(f"switch is {text!r}; accepted: NAME={_ACCEPTED}")
    return _switch(name, {"url": url}, None)


def wiring(specs: Mapping[str, NativeSpec | P4RuntimeSpec]) -> dict[str, Attachment]:
    """Returns the attachments of switches, by name.

    The workers of a switch with stations are at these, except those that are switches.

    Raises `UsageError` for wiring that is no tree; see `switchagg.rules.wiring.checked`.
    """
    switches = {own: name for name, spec in specs.items() if (own := _own(spec)) is not None}
    found: dict[str, Attachment] = {}
    for name, spec in specs.items():
        hosts = spec.hosts
        if hosts is None and spec.stations:
            hosts = parse_hosts(f"switch {name}", (each for each in spec.stations if each not in switches))
        try:
            found[name] = Attachment(spec.parent, hosts, spec.bandwidth)
        except UsageError as error:
            raise UsageError(f"switch {name}: {error}") from None
    made = checked(found)
    for name, each in made.items():
        if each.parent is not None:
            _check_neighbours(specs, name, each.parent)
            _check_neighbours(specs, each.parent, name)
    return made


def _own(spec: NativeSpec | P4RuntimeSpec) -> str | None:
    if isinstance(spec, NativeSpec) and spec.own is None:
        return spec.address
    return None if spec.own is None else spec.own.ip


def _check_neighbours(specs: Mapping[str, NativeSpec | P4RuntimeSpec], name: str, other: str) -> None:
    """Raises `UsageError` if a switch with stations has none for a neighbour."""
    spec, there = specs[name], _own(specs[other])
    if not spec.stations or there is None or there in spec.stations:
        return
    raise UsageError(
        f"switch {name}: switch {other} at {there} is none of its stations; accepted: "
        f"station={there},MAC,PORT, the MAC of {other} and the port that leads there"
    )


def read_configuration(path: Path) -> Configuration:
    """Reads a file. Raises `UsageError`, which names the error and what is accepted."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"config is {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path} is no TOML: {error}") from None
    except RecursionError:
        raise UsageError(
            f"config {path} is nested too deeply; accepted: [controller], [switch.NAME]"
        ) from None
    folder = path.parent
    if unknown := sorted(set(document) - {"controller", "switch"}):
        raise UsageError(f"config {path}: unknown table {unknown[0]!r}; accepted: controller, switch.NAME")
    tables = document.get("switch", {})
    settings = document.get("controller", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(f"config {path}: `switch` is no set of tables; accepted: [switch.NAME]")
    if not isinstance(settings, dict):
        raise UsageError(f"config {path}: `controller` is no table; accepted: [controller]")
    return Configuration(
        _settings(settings, path), {name: _switch(name, table, folder) for name, table in tables.items()}
    )


def size(name: str, text: str) -> int:
    """Returns the bytes of ``512M`` and the like. Raises `UsageError` for anything else."""
    number, unit = (text[:-1], text[-1].upper()) if text and not text[-1].isdigit() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) < 16) or unit not in _UNITS:
        raise UsageError(f"{name} is {text!r}; accepted: bytes, such as 1048576, 512M or 2G")
    return int(number) * _UNITS[unit]


def _switch(name: str, table: Mapping[str, Any], folder: Path | None) -> NativeSpec | P4RuntimeSpec:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError(
            f"a switch is called {name[:MAX_NAME]!r}; accepted: 1..{MAX_NAME} printable characters"
        )
    url = table.get("url")
    if isinstance(url, str) and url.startswith(_P4RUNTIME):
        from switchagg.p4runtime.client.spec import from_table

        return from_table(name, table, folder)
    if isinstance(url, str) and url.split("?")[0].split(":")[0] == _NATIVE:
        return _native(name, url, {key: value for key, value in table.items() if key != "url"})
    raise UsageError(f"switch {name}: url is {url!r}; accepted: {_ACCEPTED}")


def _native(name: str, url: str, beside: Mapping[str, Any]) -> NativeSpec:
    head, _, query = url.partition("?")
    _, colon, slots = head.partition(":")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UsageError(f"switch {name}: url is {url!r}; accepted: {_ACCEPTED}") from None
    lists = {plural: [value for key, value in pairs if key == one] for one, plural in _LISTS.items()}
    given = {key: value for key, value in pairs if key not in _LISTS}
    for key, value in beside.items():
        if key in lists:
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise UsageError(f"switch {name}: {key} is {value!r}; accepted: a list of strings")
            lists[key] += value
        else:
            given[key] = str(value)
    if colon:
        given.setdefault("slots", slots)
    known = {"slots", "address", "port", "memory", "parent", "mac", "threads", "bandwidth"}
    if unknown := sorted(set(given) - known):
        raise UsageError(f"switch {name}: there is no key {unknown[0]!r}; accepted: {_ACCEPTED}")
    if not lists["interfaces"] and (lists["stations"] or "mac" in given):
        raise UsageError(f"switch {name}: mac and station without an interface; accepted: {_ACCEPTED}")
    address = given.get("address")
    if address is not None:
        parsed = parse_address(f"switch {name}: address", address)
        if address == "0.0.0.0":
            raise UsageError(f"switch {name}: address is {address!r}; accepted: that of an interface, or ::")
        address = str(parsed)
    spec = NativeSpec(
        name,
        _number(name, "slots", given.get("slots", str(DEFAULT_SLOTS)), 2, DEFAULT_SLOTS),
        address,
        _number(name, "port", given.get("port", "0"), 0, 0xFFFF),
        size(f"switch {name}: memory", given["memory"]) if "memory" in given else DEFAULT_MEMORY,
        given.get("parent"),
        parse_hosts(f"switch {name}", lists["hosts"]) if lists["hosts"] else None,
        _interfaces(name, lists["interfaces"]),
        threads=_number(name, "threads", given.get("threads", "1"), 1, MAX_THREADS),
        bandwidth=bits_per_second(given["bandwidth"], f"switch {name}: bandwidth")
        if "bandwidth" in given
        else DEFAULT_BANDWIDTH,
    )
    if spec.interfaces and spec.threads > 1:
        raise UsageError(f"switch {name}: threads is {spec.threads}; accepted between interfaces: 1")
    return _between_interfaces(spec, given.get("mac"), lists["stations"]) if spec.interfaces else spec


def _between_interfaces(spec: NativeSpec, mac: str | None, stations: list[str]) -> NativeSpec:
    """Returns the specification with the switch's own addresses and its stations."""
    from switchagg.p4runtime.client.spec import from_table

    if spec.address is None:
        raise UsageError(f"switch {spec.name}: address is missing; accepted: the IPv4 address of the switch")
    # The values have the forms that they have for a switch behind P4Runtime.
    table: dict[str, Any] = {"url": "p4runtime://127.0.0.1:1", "address": spec.address, "stations": stations}
    table |= {"mac": mac} if mac is not None else {}
    read = from_table(spec.name, table | {"udp_port": spec.port or DEFAULT_PORT})
    return replace(spec, own=read.own, stations=read.stations)


def _interfaces(switch: str, texts: list[str]) -> dict[int, str]:
    from switchagg.emulator.ether_switch import interfaces_by_port

    return interfaces_by_port(
        (text, f"switch {switch}: interface is {text!r}; accepted: PORT=NAME such as 1=eth0")
        for text in texts
    )


def _number(switch: str, name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise UsageError(f"switch {switch}: {name} is {text!r}; accepted: {low}..{high}")
    return int(text)


def _settings(table: Mapping[str, Any], path: Path) -> Settings:
    known = [each.name for each in fields(Settings)]
    if unknown := sorted(set(table) - set(known)):
        accepted = ", ".join(known)
        raise UsageError(f"config {path}: unknown key {unknown[0]!r} in controller; accepted: {accepted}")
    given: dict[str, Any] = {}
    for name, value in table.items():
        kind, said = (int, "a number") if name in ("words", "slots") else (str, "a string")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"config {path}: {name} is {value!r}; accepted: {said}")
        given[name] = path.parent / str(value) if name in ("state", "tls_cert", "tls_key") else value
    return Settings(**given)
