"""A P4 source that `switchagg switch --engine p4` runs, with its P4Info and the config that names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from switchagg.p4model import ir
from switchagg.p4model.check import load
from switchagg.p4model.p4info import generate
from switchagg.p4runtime.protos import p4info_pb2


@dataclass(frozen=True, slots=True)
class Source:
    """A program that was checked, with its P4Info and the config that names it."""

    program: ir.Program
    p4info: Any
    config: bytes


def source_of(
    path: Path, include_dirs: Sequence[str] = (), defines: Sequence[str] = (), *, config: bytes | None = None
) -> Source:
    """Reads a program. Raises `UsageError` for one that cannot be used."""
    program = load(path, include_dirs, defines)
    p4info = text_format.Parse(generate(program).to_text(), p4info_pb2.P4Info())
    if config is None:
        described = {"program": str(path.absolute()), "defines": list(defines)}
        config = json.dumps(described | {"include_dirs": list(include_dirs)}).encode()
    return Source(program, p4info, config)
