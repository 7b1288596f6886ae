"""Writes the files that the native engine's P4Runtime server ships: P4Info and constant entries.

    python -m switchagg.p4runtime.server.native.files     writes both, from p4/switchagg_v1model.p4

With them the server needs neither the program nor the model's parser. The P4Info is the program's without
its registers, since the native engine keeps its slots elsewhere, and with tables for 256 jobs of 32
workers. A test compares the files with the program.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from switchagg.p4program.sources import source_path
from switchagg.p4runtime.protos import p4runtime_pb2

P4INFO: Final = Path(__file__).with_name("p4info.txtpb")
ENTRIES: Final = Path(__file__).with_name("entries.txtpb")
SIZES: Final = ("AGG_ADMISSIONS=32768", "AGG_STATIONS=65536")


def contents(program: Path) -> dict[Path, str]:
    """Returns the contents of the files by path, for the v1model program."""
    from switchagg.p4runtime.program_source import source_of
    from switchagg.p4runtime.server.model_device import ModelDevice

    source = source_of(program, defines=SIZES)
    device = ModelDevice(source)
    assert device.running is not None
    everything = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry())
    entries = p4runtime_pb2.ReadResponse(entities=device.running.entities.read(everything))
    p4info = deepcopy(source.p4info)
    p4info.ClearField("registers")
    return {P4INFO: text_format.MessageToString(p4info), ENTRIES: text_format.MessageToString(entries)}


if __name__ == "__main__":
    for path, text in contents(source_path("v1model")).items():
        path.write_text(text, encoding="utf-8")
        print(path, file=sys.stderr)
