"""The specification of a switch reached over P4Runtime: a URL, or a table of the configuration file.

    p4runtime://10.0.0.2:9559?address=10.1.0.254&station=10.1.0.1,02:00:00:00:00:01,1&station=...

    [switch.rack1]                              # the same keys
    url = "p4runtime://10.0.0.2:9559"
    address = "10.1.0.254"
    stations = ["10.1.0.1, 02:00:00:00:00:01, 1", "10.1.0.2, 02:00:00:00:00:02, 2"]

| key | default | meaning |
| --- | --- | --- |
| `address` | of `native`: what the switch says | the switch's own IPv4 address, to which workers send |
| `udp_port` | 48879 | and UDP port |
| `mac` | 02:00 and the address | its own MAC |
| `station` (`stations`: a list) | none | a host, or another switch: IPv4 address, MAC, port of the switch |
| `parent` | none | the switch above, of a leaf: its name |
| `bandwidth` | 1Gbit | of the link over which its workers reach it, for jobs in stripes |
| `host` (`hosts`: a list) | the stations; of `native` any | workers that attach here: addresses or networks |
| `port` (`ports`: a list) | those of the stations | over which frames for unknown stations are flooded |
| `target` | `auto` | `native`, `p4` (our model), `bmv2`, `tofino`; `auto`: what the P4Info says |
| `program`, `define` (`defines`) | none | a P4 source (`v1model`, `tna`: ours), and its macros |
| `p4info`, `config` | none | files that p4c made; without these and `program`: what runs there |
| `device` | 0 | P4Runtime's device id |
| `election` | the time at the start | election id: the controller with the highest has it |
| `words`, `slots` | as the program says; 64, 16384 | K and slots; needed if it cannot be asked at first |
| `controller_port` | v1model 510, TNA 192 | the program's `AGG_CONTROLLER_PORT` |
| `receive_buffer` | as `native` says; 262144 | bytes that it can queue: workers' windows are no larger |
| `timeout` | 5 | seconds for a call |
| `tls` | no | encrypt, and believe the system's authorities |
| `ca`, `cert`, `key` | none | files, for TLS: whom to believe, and who we are |

No I/O: files are looked at by whoever uses them.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from switchagg.emulator.rates import bits_per_second
from switchagg.errors import UsageError
from switchagg.p4program.program import MAX_PORT, Station, SwitchAddress
from switchagg.p4program.sources import source_path
from switchagg.rules.slots import MAX_CAPACITY
from switchagg.rules.wiring import DEFAULT_BANDWIDTH, Network, parse_hosts
from switchagg.wire.header import DEFAULT_PORT, MAX_WORDS, MIN_WORDS

SCHEME: Final = "p4runtime"
TARGETS: Final = ("auto", "native", "p4", "bmv2", "tofino")
_LISTS: Final = {"station": "stations", "port": "ports", "define": "defines", "host": "hosts"}
_KEYS: Final = (
    "address", "udp_port", "mac", "stations", "ports", "target", "program", "defines", "p4info", "config",
    "device", "election", "words", "slots", "controller_port", "receive_buffer", "timeout",
    "tls", "ca", "cert", "key", "parent", "hosts", "bandwidth",
)  # fmt: skip
_RANGES: Final = {
    "device": (0, 2**64 - 1),
    "election": (1, 2**64 - 1),
    "words": (MIN_WORDS, MAX_WORDS),
    "slots": (2, MAX_CAPACITY),
    "controller_port": (0, MAX_PORT),
    "receive_buffer": (1024, 1 << 40),
}
_FILES: Final = ("program", "p4info", "config", "ca", "cert", "key")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z_]\w*(=.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class P4RuntimeSpec:
    """A switch as the operator describes it; the head of this module says what each value means.

    Attributes:
        name: what people call it.
        server: HOST:PORT of its P4Runtime server.
        own: its addresses; None where it has to say them itself.
        stations: by IPv4 address.
        words, slots, controller_port, election, receive_buffer: None: as it is or says.
        parent, hosts, bandwidth: as in `switchagg.rules.wiring.Attachment`; hosts None: the stations, if any.
    """

    name: str
    server: str
    own: SwitchAddress | None = None
    stations: Mapping[str, Station] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    target: str = "auto"
    program: Path | None = None
    defines: tuple[str, ...] = ()
    p4info: Path | None = None
    config: Path | None = None
    device: int = 0
    election: int | None = None
    words: int | None = None
    slots: int | None = None
    controller_port: int | None = None
    receive_buffer: int | None = None
    timeout: float = 5.0
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    parent: str | None = None
    hosts: tuple[Network, ...] | None = None
    bandwidth: float = DEFAULT_BANDWIDTH

    @property
    def flooded(self) -> tuple[int, ...]:
        """The ports over which frames for unknown stations go."""
        return self.ports or tuple(sorted({station.port for station in self.stations.values()}))


def from_table(name: str, table: Mapping[str, Any], folder: Path | None = None) -> P4RuntimeSpec:
    """Returns the switch of a configuration table with a `url`, whose query may hold more keys.

    Args:
        folder: where relative file names begin; None for the current folder.

    Raises `UsageError`, which names what is wrong and what is accepted.
    """
    reader = _Reader(f"switch {name}", folder or Path())
    given = {key: value for key, value in table.items() if key != "url"}
    server, query = reader.url(table.get("url"))
    for key in given.keys() & query.keys():
        raise reader.wrong(f"{key} is given in the URL and beside it", "one of them")
    return reader.spec(name, server, query | given)


class _Reader:
    """Reads values. `what` begins every message."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what, self._folder = what, folder

    def wrong(self, problem: str, accepted: str) -> UsageError:
        return UsageError(f"{self._what}: {problem}; accepted: {accepted}")

    def url(self, url: object) -> tuple[str, dict[str, Any]]:
        accepted = f"{SCHEME}://HOST:PORT?key=value&..., such as {SCHEME}://10.0.0.2:9559?address=10.1.0.254"
        if not isinstance(url, str):
            raise self.wrong(f"url is {url!r}", accepted)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise self.wrong(f"url is {url!r} ({error})", accepted) from None
        unwanted = parts.username is not None or parts.path not in ("", "/") or parts.fragment
        if parts.scheme != SCHEME or not host or not port or unwanted:
            raise self.wrong(f"url is {url!r}", accepted)
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in _LISTS:
                found.setdefault(_LISTS[key], []).append(value)
            elif key in found or key in _LISTS.values():
                accepted = "each key once; station, port, define and host once a value"
                raise self.wrong(f"{key} in a URL", accepted)
            else:
                found[key] = value
        return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), found

    def spec(self, name: str, server: str, given: Mapping[str, Any]) -> P4RuntimeSpec:
        for key in given:
            if key not in _KEYS:
                raise self.wrong(f"there is no key {key!r}", "url, " + ", ".join(_KEYS))
        target = given.get("target", "auto")
        if target not in TARGETS:
            raise self.wrong(f"target is {target!r}", ", ".join(TARGETS))
        numbers: dict[str, Any] = {
            key: self._integer(key, given[key], *accepted)
            for key, accepted in _RANGES.items()
            if key in given
        }
        files: dict[str, Any] = {key: self._path(key, given[key]) for key in _FILES if key in given}
        spec = P4RuntimeSpec(
            name,
            server,
            own=self._own(given),
            stations=self._stations(given.get("stations", ())),
            ports=tuple(self._integer("port", each, 0, MAX_PORT) for each in self._list("ports", given)),
            target=target,
            defines=tuple(self._define(each) for each in self._list("defines", given)),
            timeout=self._seconds("timeout", given.get("timeout", 5.0)),
            tls=self._yes("tls", given.get("tls", False)) or any(each in given for each in ("ca", "cert")),
            parent=self._parent(given),
            hosts=self._hosts(given),
            bandwidth=self._bandwidth(given),
            **numbers,
            **files,
        )
        self._check(spec)
        return spec

    def _check(self, spec: P4RuntimeSpec) -> None:
        if (spec.p4info is None) != (spec.config is None):
            raise self.wrong("one of p4info and config is missing", "both, or neither")
        if spec.program is not None and spec.p4info is not None:
            raise self.wrong("program and p4info are given", "program alone, or p4info with config")
        if spec.defines and spec.program is None:
            raise self.wrong("defines without a program", "defines with program")
        if (spec.cert is None) != (spec.key is None):
            raise self.wrong("one of cert and key is missing", "both, or neither")
        if spec.own is None and spec.target not in ("auto", "native"):
            raise self.wrong("address is missing", "the switch's own IPv4 address, to which workers send")
        if spec.own is not None and spec.own.ip in spec.stations:
            raise self.wrong(
                f"{spec.own.ip} is the switch's address and a station's", "one use of an address"
            )

    def _own(self, given: Mapping[str, Any]) -> SwitchAddress | None:
        if "address" not in given:
            for key in ("mac", "udp_port"):
                if key in given:
                    raise self.wrong(f"{key} without an address", f"{key} with address")
            return None
        ip = self._ip("address", given["address"])
        mac = self._mac("mac", given["mac"]) if "mac" in given else default_mac(ip)
        port = self._integer("udp_port", given.get("udp_port", DEFAULT_PORT), 1, 0xFFFF)
        return SwitchAddress(mac, ip, port)

    def _stations(self, given: object) -> dict[str, Station]:
        accepted = "IPv4 address, MAC, port of the switch; such as 10.1.0.1,02:00:00:00:00:01,1"
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
            raise self.wrong(f"stations is {given!r}", f"a list of: {accepted}")
        stations: dict[str, Station] = {}
        for each in given:
            parts = each.split(",") if isinstance(each, str) else ()
            if len(parts) != 3:
                raise self.wrong(f"station is {each!r}", accepted)
            ip = self._ip("station", parts[0].strip())
            if ip in stations:
                raise self.wrong(f"station {ip} is given twice", "each address once")
            mac = self._mac("station", parts[1].strip())
            stations[ip] = Station(self._integer("station's port", parts[2].strip(), 0, MAX_PORT), mac)
        return stations

    def _ip(self, key: str, value: object) -> str:
        try:
            address = ipaddress.IPv4Address(value) if isinstance(value, str) else None
        except ValueError:
            address = None
        if address is None or address.is_unspecified or address.is_multicast:
            raise self.wrong(f"{key} is {value!r}", "an IPv4 address such as 10.1.0.254")
        return str(address)

    def _mac(self, key: str, value: object) -> int:
        if not isinstance(value, str) or not _MAC.fullmatch(value) or int(value[:2], 16) & 1:
            raise self.wrong(f"{key} is {value!r}", "the MAC of one station, such as 02:00:00:00:00:01")
        return int(value.replace(":", ""), 16)

    def _integer(self, key: str, value: object, low: int, high: int) -> int:
        number = value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 24:
            number = int(value)
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise self.wrong(f"{key} is {value!r}", f"{low}..{high}")
        return number

    def _seconds(self, key: str, value: object) -> float:
        try:
            seconds = float(value) if isinstance(value, str | int | float) else math.nan
        except ValueError:
            seconds = math.nan
        if not 0.1 <= seconds <= 60:
            raise self.wrong(f"{key} is {value!r}", "seconds, 0.1 to 60")
        return seconds

    def _yes(self, key: str, value: object) -> bool:
        known = {"yes": True, "no": False, "true": True, "false": False, True: True, False: False}
        if not isinstance(value, str | bool) or value not in known:
            raise self.wrong(f"{key} is {value!r}", "yes or no")
        return known[value]

    def _path(self, key: str, value: object) -> Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(f"{key} is {value!r}", "the name of a file")
        return self._folder / (source_path(value) if key == "program" else value)

    def _list(self, key: str, given: Mapping[str, Any]) -> list[Any]:
        value = given.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(f"{key} is {value!r}", "a list")
        return value

    def _parent(self, given: Mapping[str, Any]) -> str | None:
        parent = given.get("parent")
        if parent is not None and (not isinstance(parent, str) or not parent):
            raise self.wrong(f"parent is {parent!r}", "the name of another switch")
        return parent

    def _bandwidth(self, given: Mapping[str, Any]) -> float:
        if "bandwidth" not in given:
            return DEFAULT_BANDWIDTH
        return bits_per_second(str(given["bandwidth"]), f"{self._what}: bandwidth")

    def _hosts(self, given: Mapping[str, Any]) -> tuple[Network, ...] | None:
        hosts = self._list("hosts", given)
        for each in hosts:
            if not isinstance(each, str) or ":" in each:
                raise self.wrong(f"host is {each!r}", "an IPv4 address or network, such as 10.0.1.0/24")
        return parse_hosts(self._what, hosts) if hosts else None

    def _define(self, value: object) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self.wrong(f"define is {value!r}", "NAME or NAME=value")
        return value


def default_mac(ip: str) -> int:
    """Returns the MAC of whoever is given none: locally administered, 02:00 and the IPv4 address."""
    return 0x020000000000 | int(ipaddress.IPv4Address(ip))
