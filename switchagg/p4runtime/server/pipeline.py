"""A forwarding pipeline: a program, its P4Info, the switch that runs it, and how a client names it.

A client's `p4_device_config` is one of
    nothing, or anything     that is none of the others: the program which the server was started with
    {"source": TEXT, ...}    JSON: the program itself, with "defines" and "include_dirs" (lists) if need be
    {"program": PATH, ...}   JSON: a file on the switch's host, likewise
    TEXT                     the program itself, as it is
and the P4Info must be what `switchagg p4 info` gives for the program.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from switchagg.errors import UsageError
from switchagg.p4entities.tables import Entry
from switchagg.p4model import ir, walk
from switchagg.p4model.runtime.switch import ModelSwitch, open_switch
from switchagg.p4runtime.p4info_diff import difference
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.server.entities import Entities
from switchagg.p4runtime.server.errors import Refused, invalid, unimplemented
from switchagg.p4runtime.server.packet_io import PacketIo
from switchagg.p4runtime.server.schema import Schema

_KEYS = {"source", "program", "defines", "include_dirs"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A program on a switch of its own.

    Attributes:
        cookie: as the client gave it; None if it gave none.
    """

    source: Source
    switch: ModelSwitch
    entities: Entities
    packet_io: PacketIo
    cookie: int | None = None

    @property
    def p4info(self) -> Any:
        """The program's P4Info message."""
        return self.source.p4info

    @property
    def config(self) -> bytes:
        """What names the program."""
        return self.source.config


def build(source: Source, now: Callable[[], float], *, seed: int = 0, cookie: int | None = None) -> Pipeline:
    """A pipeline with its tables as the program has them. Raises `UsageError` or `Refused`."""
    for each in source.p4info.controller_packet_metadata:
        for field in each.metadata:
            if not field.bitwidth:
                raise unimplemented(f"{each.preamble.name}: field {field.name} is a string or an enum")
    switch = open_switch(source.program, seed=seed)
    schema = Schema(source.p4info, switch, _constants(switch))
    return Pipeline(source, switch, Entities(schema, now), PacketIo(source.p4info), cookie)


def _constants(switch: ModelSwitch) -> dict[str, frozenset[Entry]]:
    """By table, the entries that the source says are constant, while there are no others yet."""
    found = {}
    for block in walk.blocks(switch.program.main):
        for table in block.tables if isinstance(block, ir.ControlInstance) else ():
            if table.control_name in switch.tables:
                entries = switch.table(table.control_name).entries
                if len(entries) == len(table.entries):
                    pairs = zip(entries, table.entries, strict=True)
                    found[table.control_name] = frozenset(entry for entry, source in pairs if source.const)
    return found


def resolve(message: Any, own: Source | None) -> Source:
    """The program that a `ForwardingPipelineConfig` means.

    Args:
        own: the program that the server was started with.

    Raises `Refused`.
    """
    if not message.HasField("p4info"):
        raise invalid("the config has no P4Info")
    config = bytes(message.p4_device_config)
    if own is not None and (config == own.config or not _names_program(config)):
        found = difference(message.p4info, own.p4info)
        if found is not None:
            raise invalid(f"the P4Info is not that of {own.program.path}: {found}")
        return replace(own, config=config or own.config)
    source = _read(config)
    found = difference(message.p4info, source.p4info)
    if found is not None:
        raise invalid(f"the P4Info is not that of the program in p4_device_config: {found}")
    return source


def _names_program(config: bytes) -> bool:
    """Whether a config is of those that name a program themselves."""
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
    """The program that a config names. Raises `Refused`."""
    described = _json(config)
    if described is None:
        try:
            described = {"source": config.decode()}
        except UnicodeDecodeError:
            raise invalid(
                "p4_device_config is neither text nor JSON: this switch runs P4 sources, not what a compiler "
                'makes of them; send the source, or {"program": PATH, "defines": [...]}'
            ) from None
    if not described.keys() & {"source", "program"}:
        raise invalid(
            "p4_device_config is JSON without a program, such as bmv2's: this switch runs P4 sources; send "
            'the source, or {"program": PATH, "defines": [...]}, or start it with --program'
        )
    unknown = described.keys() - _KEYS
    if unknown or described.keys() >= {"source", "program"}:
        raise invalid('p4_device_config takes "source" or "program", and "defines", "include_dirs"')
    lists = []
    for key in ("include_dirs", "defines"):
        given = described.get(key, [])
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise invalid(f'p4_device_config: "{key}" is a list of strings')
        lists.append(given)
    named = described.get("source", described.get("program"))
    if not isinstance(named, str) or not named.strip():
        raise invalid("p4_device_config is empty, and the server was started without --program")
    try:
        if "program" in described:
            return source_of(Path(named), *lists, config=config)
        with tempfile.TemporaryDirectory(prefix="switchagg-") as folder:
            path = Path(folder) / "program.p4"
            path.write_text(named, encoding="utf-8")
            return source_of(path, *lists, config=config)
    except Refused:
        raise
    except UsageError as error:
        raise invalid(str(error)) from None
