"""Switches that aggregate: `native`, `p4` and `bmv2`, with the same interface and controller.

    native   our own engine             switchagg switch --engine native --interface PORT=NAME ..., or,
                                        without the extra p4runtime, in the controller's process
    p4       any .p4, in our model      switchagg switch --engine p4 --interface PORT=NAME ...
    bmv2     the same, made by p4c      simple_switch_grpc --no-p4 -i PORT@NAME ...

Each is a process in the root namespace, between its interfaces (s1-eth1 is port 1), with a P4Runtime server
on loopback. A native switch that has no P4Runtime is part of the controller's process instead.
`SwitchAggController` fills its tables. Without it, a switch waits for a controller to connect to `server`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mininet.log import info, warn
from mininet.node import Switch

from mininet_topos import marks, programs
from mininet_topos.hosts import DEFAULT_MTU, OFFLOADS, quiet

PROGRAM = programs.p4_folder() / "switchagg_v1model.p4"
CPU_PORT = 510
# Python starts slowly on a busy computer.
_START = 60.0


class SwitchFailed(Exception):
    """A switch does not start, or has ended; the message has its last words."""


class AggSwitch(Switch):
    """A switch of ours, in a process of its own.

    Args:
        address: the switch's own IPv4 address, to which workers send. 10.0.255.N for switch sN.
        server: HOST:PORT for its P4Runtime server; a free port of loopback.
        mtu: of its interfaces.

    Attributes:
        process: the switch, while it runs.
    """

    engine = ""

    def __init__(
        self,
        name: str,
        address: str | None = None,
        server: str | None = None,
        mtu: int = DEFAULT_MTU,
        **params: Any,
    ) -> None:
        marks.own()
        super().__init__(name, **params)
        numbers = re.findall(r"\d+", name)
        self.address = address or f"10.0.255.{int(numbers[0]) & 255}"
        self.server = server or f"127.0.0.1:{_free_port()}"
        self.mtu = int(mtu)
        self.process: subprocess.Popen[bytes] | None = None
        self.our_controllers: list[Any] = []
        self.log = marks.folder() / f"{name}.log"

    @classmethod
    def options(cls) -> list[str]:
        """Returns the options of this kind of switch, as in `--switch bmv2,words=16`."""
        found = set()
        for each in cls.__mro__:
            if issubclass(each, AggSwitch):
                found |= set(inspect.signature(each.__init__).parameters)
        return sorted(found - {"self", "name", "params"})

    def line(self) -> list[str]:
        """Returns the switch's command line. Raises `programs.Missing` where a program is missing."""
        raise NotImplementedError

    def table(self) -> dict[str, Any]:
        """Returns the settings of this kind of switch in a controller's configuration."""
        return {
            "url": f"p4runtime://{self.server}",
            "ports": sorted(self.interfaces()),
            "target": self.engine,
        }

    def interfaces(self) -> dict[int, str]:
        """Returns interfaces by port."""
        return {port: intf.name for port, intf in sorted(self.intfs.items()) if intf.name != "lo"}

    def addIntf(self, intf: Any, **params: Any) -> None:
        """Adds an interface; called by Mininet."""
        super().addIntf(intf, **params)
        if intf.name != "lo" and not self.inNamespace:
            marks.claim(intf.name)

    def start(self, controllers: Sequence[Any]) -> None:
        """Starts the process and adds it to our controllers, if any.

        Raises `programs.Missing` and `SwitchFailed`.
        """
        for name in self.interfaces().values():
            quiet(name)
            self.cmd(f"ethtool -K {name} {' '.join(f'{each} off' for each in OFFLOADS)} >/dev/null 2>&1")
            self.cmd(f"ip link set dev {name} mtu {self.mtu} up")
        self.begin()
        for each in controllers:
            if hasattr(each, "adopt"):
                each.adopt(self)
        info(f"({self.engine} at {self.server}) ")

    def begin(self) -> None:
        """Starts the process, with nothing in its tables. Raises `programs.Missing` and `SwitchFailed`."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.line(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        host, port = self.server.rsplit(":", 1)
        end = time.monotonic() + _START
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.last_words()
                self.end()
                raise SwitchFailed(f"{self.name} ({self.engine}) does not start: {said}")
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends the process, if it runs."""
        if self.process is not None:
            programs.end(self.process, number)
            self.process = None

    def connected(self) -> bool:
        """Returns True while the process runs."""
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """Returns the last lines that the process printed."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return "; ".join(text.splitlines()[-3:]) or "it said nothing"

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends the switch; called by Mininet."""
        if self.process is not None and self.process.poll() is not None:
            warn(f"{self.name} had ended by itself: {self.last_words()}\n")
        self.end()
        super().stop(deleteIntfs)

    @classmethod
    def batchStartup(cls, switches: Sequence[Any]) -> Sequence[Any]:
        """Starts the controllers; called by Mininet when all switches run."""
        del cls
        for controller in {id(each): each for switch in switches for each in switch.our_controllers}.values():
            controller.serve()
        return switches

    def add_controller(self, controller: Any) -> None:
        """Adds a controller of ours, which drives this switch."""
        self.our_controllers.append(controller)


class NativeSwitch(AggSwitch):
    """Our native engine. K is limited by the MTU only.

    Attributes:
        embedded: it runs in the controller's process, since there is no P4Runtime.
    """

    engine = "native"

    def __init__(
        self, name: str, address: str | None = None, server: str | None = None, **params: Any
    ) -> None:
        super().__init__(name, address, server, **params)
        self.embedded = server is None and not programs.has_p4runtime()
        if self.embedded:
            self.server = "the controller"

    def line(self) -> list[str]:
        return _our_line(self)

    def table(self) -> dict[str, Any]:
        if not self.embedded:
            return super().table()
        return {"url": "native", "interfaces": [f"{port}={name}" for port, name in self.interfaces().items()]}

    def begin(self) -> None:
        if not self.embedded:
            super().begin()

    def connected(self) -> bool:
        return self.embedded or super().connected()


class P4ModelSwitch(AggSwitch):
    """A P4 program in our model, without a compiler; some 10,000 packets a second.

    Args:
        program: the source; the controller drives it if it has the tables of switchagg_v1model.p4.
        words: K, `AGG_WORDS` of our program.
        defines: more macros, NAME or NAME=VALUE, with `:` between them.
    """

    engine = "p4"

    def __init__(
        self, name: str, program: str = "", words: int = 64, defines: str = "", **params: Any
    ) -> None:
        super().__init__(name, **params)
        self.program = Path(program or PROGRAM)
        self._defines = [f"AGG_WORDS={words}", *filter(None, defines.split(":"))]
        if not self.program.is_file():
            raise programs.Missing(f"{name}: there is no program {self.program}; accepted: program=FILE.p4")

    def line(self) -> list[str]:
        macros = [word for each in self._defines for word in ("-D", each)]
        return _our_line(self, "--program", str(self.program), *macros)


class Bmv2Switch(AggSwitch):
    """`simple_switch_grpc`, running the same program compiled by p4c.

    Args:
        program: the source, which `p4c-bm2-ss` compiles.
        words: K, `AGG_WORDS` of our program.
        config, p4info: output of an earlier p4c; then nothing is compiled.
    """

    engine = "bmv2"
    _needs = (
        "it is bmv2's, with PI. On Ubuntu: apt install p4lang-bmv2, from p4lang's repository "
        "(docs/mininet.md); elsewhere take --switch p4, which runs the same program with nothing to install"
    )

    def __init__(
        self, name: str, program: str = "", words: int = 64, config: str = "", p4info: str = "", **params: Any
    ) -> None:
        programs.program("simple_switch_grpc", self._needs)
        super().__init__(name, **params)
        if bool(config) != bool(p4info):
            raise programs.Missing(f"{name}: one of config and p4info is missing; accepted: both, or neither")
        if config:
            self.config_file, self.p4info_file = Path(config), Path(p4info)
        else:
            self.config_file, self.p4info_file = compiled(Path(program or PROGRAM), int(words))

    def line(self) -> list[str]:
        interfaces = [word for port, name in self.interfaces().items() for word in ("-i", f"{port}@{name}")]
        return [
            "simple_switch_grpc", "--no-p4", "--device-id", "0", *self._thrift(), *interfaces,
            "--notifications-addr", f"ipc://{marks.folder() / self.name}.ipc", "--", "--grpc-server-addr",
            self.server, "--cpu-port", str(CPU_PORT),
        ]  # fmt: skip

    def table(self) -> dict[str, Any]:
        return {**super().table(), "p4info": str(self.p4info_file), "config": str(self.config_file)}

    @staticmethod
    def _thrift() -> list[str]:
        """Returns the option for a free Thrift port, if this bmv2 was built with Thrift."""
        said = subprocess.run(
            ["simple_switch_grpc", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return ["--thrift-port", str(_free_port())] if b"--thrift-port" in said.stdout else []


def compiled(program: Path, words: int) -> tuple[Path, Path]:
    """Compiles a program for bmv2, once per network. Returns the paths of its JSON and P4Info.

    Raises `programs.Missing`: no compiler, or the program does not compile.
    """
    compiler = programs.program(
        "p4c-bm2-ss",
        "the P4 compiler. On Ubuntu: apt install p4lang-p4c, from p4lang's repository; or give config= and "
        "p4info=, made elsewhere by `make -C p4 bmv2`",
    )
    folder = marks.folder()
    config = folder / f"{program.stem}-{words}.json"
    p4info = folder / f"{program.stem}-{words}.p4info.txtpb"
    if not config.exists():
        made = subprocess.run(
            [
                compiler, "--std", "p4-16", f"-DAGG_WORDS={words}", "--p4runtime-files", str(p4info),
                "-o", str(config), str(program),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if made.returncode:
            raise programs.Missing(
                f"{program} does not compile: {made.stdout.decode(errors='replace').strip()}"
            )
    return config, p4info


def _our_line(switch: AggSwitch, *options: str) -> list[str]:
    """Returns the command line of `switchagg switch`."""
    interfaces = [
        word for port, name in switch.interfaces().items() for word in ("--interface", f"{port}={name}")
    ]
    first = [*programs.switchagg(), "switch", "--engine", switch.engine]
    return [*first, *options, *interfaces, "--p4runtime", switch.server]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


switches = {"native": NativeSwitch, "p4": P4ModelSwitch, "bmv2": Bmv2Switch}
