"""`switchagg doctor`: what this computer can do, what is in the way, and how to mend it.

    this computer: Python, native modules, buffers, offloads, MTU, ports, permissions,
                   Mininet, P4 tools, variables
    a job here:    a switch, its controller and two ranks over UDP, on loopback
    a controller:  HTTP, token, version and clock, and a job of two ranks from here

Each line has a mark: ok, -- (something optional is missing), or !! with the fix. Exit status: 1 with any !!.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import errno
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from switchagg.addresses import ANY_IPV6, bound_socket
from switchagg.cli.options import add_controller_options
from switchagg.errors import SwitchAggError, UsageError
from switchagg.report.progress import working
from switchagg.rules.planner import DEFAULT_WORDS
from switchagg.wire.header import DEFAULT_PORT, HEADER_BYTES, IPV6_UDP_BYTES

_CLOCK: Final = 5.0  # seconds by which two clocks may differ
_DESCRIPTORS: Final = 256
_MTU: Final = IPV6_UDP_BYTES + HEADER_BYTES + 4 * DEFAULT_WORDS  # as much as any packet
_SECONDS: Final = 15.0  # for a job to be done
_MARKS: Final = {"good": "ok", "missing": "--", "bad": "!!"}
_PACKAGES: Final = {
    "p4model": (("lark", "pcpp"), "switchagg p4, --engine p4"),
    "p4runtime": (("finsy", "grpc"), "switches behind P4Runtime"),
    "torch": (("torch",), "worker_lib.torch"),
    "plots": (("matplotlib",), "plots in reports"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. `state` is good, missing (something optional) or bad; `fix` says what to do."""

    name: str
    state: str
    text: str
    fix: str = ""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="UDP port that a switch would take (%(default)s)"
    )
    add_controller_options(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the findings. Raises `UsageError` for a port that cannot be."""
    if not 1 <= args.port <= 0xFFFF:
        raise UsageError(f"port is {args.port}; accepted: 1..65535")
    found = []
    findings = _findings(args)
    while True:
        with working("looking further"):
            each = next(findings, None)
        if each is None:
            break
        found.append(each)
        if not args.json:
            fix = f"\n      {each.fix}" if each.fix else ""
            print(f"{_MARKS[each.state]}  {each.name}: {each.text}{fix}", flush=True)
    bad = sum(each.state == "bad" for each in found)
    if args.json:
        print(json.dumps({"findings": [asdict(each) for each in found], "bad": bad}, indent=1))
    else:
        print(f"\n{bad or 'nothing'} in the way")
    return 1 if bad else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield from _computer()
    yield from _native()
    yield from _interfaces()
    yield _ipv6()
    yield _port(args.port)
    yield _descriptors()
    yield _packet_sockets()
    yield from _programs()
    yield from _packages()
    yield from _variables()
    yield _local_job()
    if url := args.controller or os.environ.get("SWITCHAGG_CONTROLLER"):
        yield from _controller(url, args.ca or os.environ.get("SWITCHAGG_CA"))
    else:
        yield Finding("controller", "missing", "none is named", "--controller URL, or SWITCHAGG_CONTROLLER")


def _computer() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()}"
    about = f"Python {platform.python_version()} on {system}, {os.cpu_count()} cores"
    if sys.platform != "linux":
        yield Finding("computer", "bad", about, "switches and workers run on Linux: take a virtual machine")
    else:
        yield Finding("computer", "good", about)


def _native() -> Iterator[Finding]:
    """Opens a switch, whose warnings are about buffers and offloads."""
    try:
        from switchagg.emulator.switch import Switch

        with Switch("127.0.0.1", 0) as switch:
            warnings = switch.warnings
            link = bool(switch.link)
    except ImportError as error:
        yield Finding(
            "native modules",
            "bad",
            str(error),
            "install switchagg for this Python; in a checkout: make native",
        )
        return
    except SwitchAggError as error:
        yield Finding("switch", "bad", str(error), "a switch needs a loopback interface: ip link set lo up")
        return
    yield Finding("native modules", "good", "they load, and a switch opens")
    if link:
        yield Finding("shared memory", "good", "workers of this computer can use it")
    else:
        yield Finding("shared memory", "missing", "workers use UDP", "Linux 5.1 or newer, with memfd seals")
    for warning in warnings:
        text, _, fix = warning.partition(" To allow more: ")
        yield Finding("switch socket", "bad", text, fix or "a newer kernel, or a sandbox that allows it")
    if not warnings:
        yield Finding("switch socket", "good", "receive buffer and offloads are as asked for")


def _interfaces() -> Iterator[Finding]:
    from switchagg.emulator.mtu import mtu_of

    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            mtu = mtu_of(name)
            if mtu < _MTU and name != "lo":
                fix = f"ip link set {name} mtu 1500, or jobs with fewer words: connect(words=...)"
                text = f"{name} carries {mtu} bytes, and packets of {DEFAULT_WORDS} words have {_MTU}"
                yield Finding("MTU", "missing", text, fix)


def _ipv6() -> Finding:
    try:
        bound_socket(socket.SOCK_DGRAM, ANY_IPV6, 0).close()
    except OSError as error:
        fix = "for switches and workers over IPv6: sysctl -w net.ipv6.conf.all.disable_ipv6=0"
        return Finding("IPv6", "missing", f"no socket for it: {error.strerror}", fix)
    return Finding("IPv6", "good", "switches, controllers and workers can have such addresses")


def _port(port: int) -> Finding:
    for host in ("0.0.0.0", ANY_IPV6):
        try:
            bound_socket(socket.SOCK_DGRAM, host, port).close()
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # no IPv6 here
            fix = f"`ss -ulpn sport = :{port}` says who has it; or take another: --port"
            return Finding("port", "bad", f"UDP {port} cannot be bound: {error.strerror}", fix)
    return Finding("port", "good", f"UDP {port} is free")


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        return Finding(
            "descriptors", "bad", f"a process may open {hard} files", "ulimit -Hn 65536, or limits.conf"
        )
    return Finding("descriptors", "good", f"{'any number' if hard == resource.RLIM_INFINITY else hard}")


def _packet_sockets() -> Finding:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        fix = "sudo, or CAP_NET_RAW and CAP_NET_ADMIN"
        return Finding(
            "packet sockets", "missing", f"{error.strerror}: no switch between interfaces, no topo", fix
        )
    return Finding("packet sockets", "good", "a switch can be between interfaces")


def _programs() -> Iterator[Finding]:
    from switchagg.topo import mininet_module

    try:
        mininet_module.load()
        yield Finding("Mininet", "good", "switchagg topo can build networks, as root")
    except UsageError as error:
        text, _, fix = str(error).partition(": ")
        yield Finding("Mininet", "missing", text, fix)
    for name, purpose, fix in (
        ("simple_switch_grpc", "topo --switch bmv2", "bmv2's package repository, see docs/mininet.md"),
        ("p4c-bm2-ss", "compiling for bmv2", "p4c's package repository, see docs/mininet.md"),
    ):
        there = shutil.which(name)
        yield Finding(name, "good", there) if there else Finding(name, "missing", f"for {purpose}", fix)


def _packages() -> Iterator[Finding]:
    for extra, (names, purpose) in _PACKAGES.items():
        lacking = [name for name in names if not _is_there(name)]
        if lacking:
            fix = f"pip install 'switchagg[{extra}]'"
            yield Finding(extra, "missing", f"{', '.join(lacking)} for {purpose}", fix)
        else:
            yield Finding(extra, "good", purpose)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _variables() -> Iterator[Finding]:
    """Says whether a launcher's variables fit together."""
    from worker_lib.launchers import read

    try:
        read(os.environ)
    except SwitchAggError as error:
        yield Finding("variables", "bad", str(error), "unset them, or set all that the launcher would")


def _local_job() -> Finding:
    from switchagg.control.embedded import EmbeddedController

    try:
        with EmbeddedController(links=False) as controller:
            _job(controller.url)
    except (SwitchAggError, OSError) as error:
        fix = "ip link set lo up; or a firewall drops UDP or TCP on loopback: `nft list ruleset`"
        return Finding("a job here", "bad", str(error), fix)
    return Finding("a job here", "good", "two ranks summed over UDP on loopback")


def _job(url: str) -> None:
    """Runs a job of two ranks over UDP, and checks its sum. Raises what its ranks raise."""
    import numpy as np

    import worker_lib

    job, failed = f"doctor-{uuid.uuid4().hex[:8]}", []

    def rank(number: int) -> None:
        try:
            with worker_lib.connect(
                url,
                job=job,
                rank=number,
                world_size=2,
                transport="udp",
                timeout=_SECONDS,
                join_timeout=_SECONDS,
            ) as session:
                x = np.full(100_000, number + 1, np.int32)
                session.allreduce(x)
                if not (x == 3).all():
                    raise SwitchAggError("a sum was wrong")
        except (SwitchAggError, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _controller(url: str, ca: str | None) -> Iterator[Finding]:
    """Looks at a controller: HTTP, version, clock, token, and packets both ways."""
    import switchagg

    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)),
    )
    headers = {"Authorization": f"Bearer {token}"} if (token := os.environ.get("SWITCHAGG_TOKEN")) else {}
    try:
        with opener.open(urllib.request.Request(f"{url.rstrip('/')}/healthz"), timeout=_SECONDS) as answer:
            there = str(json.load(answer).get("version"))
            date = answer.headers.get("Date")
    except (OSError, ValueError, AttributeError) as error:
        fix = "is it started, is the address right, and does a firewall let TCP through?"
        yield Finding("controller", "bad", f"{url}: {error}", fix)
        return
    yield Finding("controller", "good", f"{url} answers")
    if there == switchagg.__version__:
        yield Finding("version", "good", f"{there} at both ends")
    else:
        fix = "install the same version at both ends"
        yield Finding(
            "version", "bad", f"the controller has {there}, and this is {switchagg.__version__}", fix
        )
    if date is not None:
        ahead = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
        if abs(ahead) > _CLOCK:
            yield Finding(
                "clock",
                "bad",
                f"the controller's is {ahead:+.0f} s off",
                "run NTP at both: timedatectl set-ntp true",
            )
        else:
            yield Finding("clock", "good", "the same to some seconds")
    try:
        with opener.open(
            urllib.request.Request(f"{url.rstrip('/')}/v1/jobs", headers=headers), timeout=_SECONDS
        ):
            pass
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            yield Finding(
                "token", "bad", f"{url}/v1/jobs gives {error.code}", "look into the controller's log"
            )
            return
        fix = "set SWITCHAGG_TOKEN; `switchagg tenant token NAME` at the controller makes a new one"
        yield Finding("token", "bad", f"not accepted ({error.code})" if token else "none is set", fix)
        return
    except OSError as error:
        yield Finding("token", "bad", str(error), "try again")
        return
    yield Finding("token", "good", "accepted" if token else "none is needed")
    try:
        _job(url)
    except (SwitchAggError, OSError) as error:
        fix = "do firewalls let UDP through, to the switch and back? `switchagg switches` has its address"
        yield Finding("a job there", "bad", str(error), fix)
        return
    yield Finding("a job there", "good", "two ranks on this computer summed through its switch, over UDP")
