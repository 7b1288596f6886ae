"""The P4 model as a switch for P4Runtime: programs that clients push, and packets through the one that runs.

    port ──── process ──┬─► other ports (returned)
    packet-out ─────────┴─► the CPU port: `on_packet_in`; digests: `on_digest`

A client's `p4_device_config` is one of
    {"source": TEXT, ...}    JSON: the program itself, with "defines" and "include_dirs" (lists) if need be
    {"program": PATH, ...}   JSON: a file on the switch's host, likewise
    TEXT                     the program itself, as it is
    nothing, or anything else: the program that the server was started with
and the P4Info must be the one that `switchagg p4 info` gives for the program.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from switchagg.errors import SwitchAggError, UsageError
from switchagg.p4entities.tables import Entry
from switchagg.p4model import ir, walk
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.p4info_diff import difference
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.server import errors
from switchagg.p4runtime.server.codec import PacketIo
from switchagg.p4runtime.server.device import Device, Out
from switchagg.p4runtime.server.entities import Entities
from switchagg.p4runtime.server.errors import StatusError
from switchagg.p4runtime.server.schema import Schema

_KEYS = {"source", "program", "defines", "include_dirs"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A program on a switch of its own. `cookie` is the client's; None if it gave none."""

    source: Source
    switch: ModelSwitch
    entities: Entities
    packet_io: PacketIo
    cookie: int | None = None

    @property
    def p4info(self) -> Any:
        """The P4Info message of the program."""
        return self.source.p4info

    @property
    def config(self) -> bytes:
        """The device config that names the program."""
        return self.source.config


def _constants(switch: ModelSwitch) -> dict[str, frozenset[Entry]]:
    """Returns the constant entries of the source, by table, while there are no others yet."""
    found = {}
    for block in walk.blocks(switch.program.main):
        for table in block.tables if isinstance(block, ir.ControlInstance) else ():
            if table.control_name in switch.tables:
                entries = switch.table(table.control_name).entries
                if len(entries) == len(table.entries):
                    pairs = zip(entries, table.entries, strict=True)
                    found[table.control_name] = frozenset(entry for entry, source in pairs if source.const)
    return found


def _resolve(message: Any, own: Source | None) -> Source:
    """Returns the program of a `ForwardingPipelineConfig`; `own` is the server's. Raises `StatusError`."""
    if not message.HasField("p4info"):
        raise errors.invalid("the config has no P4Info")
    config = bytes(message.p4_device_config)
    if own is not None and (config == own.config or not _names_program(config)):
        source, what = replace(own, config=config or own.config), str(own.program.path)
    else:
        source, what = _read(config), "the program in p4_device_config"
    if (found := difference(message.p4info, source.p4info)) is not None:
        raise errors.invalid(f"the P4Info is not that of {what}: {found}")
    return source


def _names_program(config: bytes) -> bool:
    """Returns True if a config names a program itself."""
    described = _json(config)
    if described is not None:
        return bool({"source", "program"} & described.keys())
    try:
        return "main" in config.decode()
    except UnicodeDecodeError:
        return False


def _json(config: bytes) -> dict[str, Any] | None:
    if not config.lstrip().startswith(b"{"):
        return None
    try:
        described = json.loads(config)
    except ValueError:
        return None
    return described if isinstance(described, dict) else None


def _read(config: bytes) -> Source:
    """Returns the program that a config names. Raises `StatusError`."""
    described = _json(config)
    if described is None:
        try:
            described = {"source": config.decode()}
        except UnicodeDecodeError:
            raise errors.invalid(
                "p4_device_config is neither text nor JSON: this switch runs P4 sources, not what a compiler "
                'makes of them; send the source, or {"program": PATH, "defines": [...]}'
            ) from None
    if not described.keys() & {"source", "program"}:
        raise errors.invalid(
            "p4_device_config is JSON without a program, such as bmv2's: this switch runs P4 sources; send "
            'the source, or {"program": PATH, "defines": [...]}, or start it with --program'
        )
    unknown = described.keys() - _KEYS
    if unknown or described.keys() >= {"source", "program"}:
        raise errors.invalid('p4_device_config takes "source" or "program", and "defines", "include_dirs"')
    lists = []
    for key in ("include_dirs", "defines"):
        given = described.get(key, [])
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise errors.invalid(f'p4_device_config: "{key}" is a list of strings')
        lists.append(given)
    named = described.get("source", described.get("program"))
    if not isinstance(named, str) or not named.strip():
        raise errors.invalid("p4_device_config is empty, and the server was started without --program")
    try:
        if "program" in described:
            return source_of(Path(named), *lists, config=config)
        with tempfile.TemporaryDirectory(prefix="switchagg-") as folder:
            path = Path(folder) / "program.p4"
            path.write_text(named, encoding="utf-8")
            return source_of(path, *lists, config=config)
    except StatusError:
        raise
    except UsageError as error:
        raise errors.invalid(str(error)) from None


class ModelDevice(Device[Pipeline]):
    """The P4 model as a switch with a device id; see `Device`.

    Args:
        own: the program that it starts with; None waits for a client's.
        cpu_port: the port of packets to and from the client; None for that of our own programs on the
            architecture.

    Raises `UsageError` for a program that cannot be used.
    """

    def __init__(
        self,
        own: Source | None = None,
        *,
        device_id: int = 0,
        cpu_port: int | None = None,
        seed: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(device_id, now)
        self._own = own
        self._seed = seed
        self._cpu_port = cpu_port
        if own is not None:
            self.running = self._build(own)

    @property
    def cpu_port(self) -> int:
        """The port by which packets for the client leave."""
        if self._cpu_port is not None:
            return self._cpu_port
        tofino = self.running is not None and self.running.source.program.architecture == "tna"
        return (p4_program.tna() if tofino else p4_program.v1model()).controller_port

    def _build(self, source: Source, cookie: int | None = None) -> Pipeline:
        """Returns a pipeline with its tables as the program has them.

        Raises `UsageError` or `StatusError`.
        """
        for each in source.p4info.controller_packet_metadata:
            for field in each.metadata:
                if not field.bitwidth:
                    raise errors.unimplemented(
                        f"{each.preamble.name}: field {field.name} is a string or an enum"
                    )
        switch = open_switch(source.program, seed=self._seed)
        schema = Schema(source.p4info, switch, _constants(switch))
        return Pipeline(source, switch, Entities(schema, self.now), PacketIo(source.p4info), cookie)

    def configured(self, config: Any) -> Pipeline:
        cookie = config.cookie.cookie if config.HasField("cookie") else None
        try:
            return self._build(_resolve(config, self._own), cookie)
        except UsageError as error:
            raise errors.invalid(str(error)) from None

    def reconciled(self, made: Pipeline) -> Pipeline:
        running = self.running
        if running is None:
            return made
        same = running.switch.source == made.switch.source
        if not same or difference(made.p4info, running.p4info) is not None:
            raise errors.invalid(
                "another program cannot keep the state of the one that runs: VERIFY_AND_COMMIT it"
            )
        return replace(running, source=made.source, cookie=made.cookie)

    def process(self, port: int, data: bytes, now: float) -> Out:
        """Runs a packet. Returns the frames for ports other than the client's. Raises `SwitchAggError`."""
        with self.lock:
            running = self.running
            if running is None:
                self.counters["no_pipeline"] += 1
                return []
            outs = running.switch.process(port, data, now)
            others: Out = []
            for each, frame in outs:
                if each == self.cpu_port:
                    self._packet_in(running, frame)
                else:
                    others.append((each, frame))
            self._digests(running)
            return others

    def packet_out(self, message: Any) -> Out:
        with self.lock:
            if self.running is None:
                raise errors.failed_precondition("there is no forwarding pipeline yet")
            frame = self.running.packet_io.frame(message)
            self.counters["packet_outs"] += 1
            try:
                return self.process(self.cpu_port, frame, self.now())
            except SwitchAggError as error:
                raise errors.internal(str(error)) from None

    def _packet_in(self, running: Pipeline, frame: bytes) -> None:
        message = running.packet_io.packet_in(frame)
        if message is None:
            self.counters["short_packet_ins"] += 1
            return
        self.counters["packet_ins"] += 1
        self.on_packet_in(message)

    def _digests(self, running: Pipeline) -> None:
        given = list(running.switch.digests)
        running.switch.digests.clear()
        for each in running.entities.digests.collect(given):
            self.on_digest(each)
        running.switch.messages.clear()
