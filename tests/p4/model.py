"""The P4 model as a device: it runs the sources themselves, with nothing installed."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from switchagg.p4entities.counters import Register
from switchagg.p4entities.tables import Entry
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4program.program import MulticastGroup, TableEntry, Target

from .device_under_test import Frame

PROGRAMS: Final = Path(os.environ.get("SWITCHAGG_P4_PROGRAMS") or Path(__file__).parents[2] / "p4")
"""Ours, or a changed copy of them (docs/tutorials/p4-change.md)."""


class Model:
    """The v1model or the TNA program, as `program` says by its file's name.

    Args:
        program: a file of `PROGRAMS`, or the path of another.
    """

    def __init__(self, program: str | Path, target: Target, *macros: str) -> None:
        self.target = target
        self._tofino = "tna" in Path(program).name
        defines = [f"AGG_WORDS={target.words}", f"AGG_SLOTS={target.slots}", *macros]
        self._switch = open_switch(PROGRAMS / program, defines=defines)
        self._entries: dict[int, tuple[TableEntry, Entry]] = {}
        # By name: looking names up takes longer than reading.
        self._register = cache(self._switch.register)
        self._counter = cache(self._switch.counter)

    def insert(self, entry: TableEntry) -> None:
        table = self._switch.table(entry.table)
        made = table.add(entry.matches, entry.action, entry.params, entry.priority)
        self._entries[id(entry)] = entry, made

    def delete(self, entry: TableEntry) -> None:
        _, made = self._entries.pop(id(entry))
        self._switch.table(entry.table).remove(made)

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        self._switch.table(table).set_default(action, params)

    def insert_group(self, group: MulticastGroup) -> None:
        replicas = [(rid, port) for port, rid in group.replicas]
        self._switch.replication.set_group(group.group, replicas)

    def delete_group(self, group: MulticastGroup) -> None:
        self._switch.replication.remove_group(group.group)

    def reset(self) -> None:
        """Sets all registers to what they were at the start."""
        for each in self._switch.externs.values():
            if isinstance(each, Register):
                each.reset()

    def send(self, port: int, frame: bytes) -> list[Frame]:
        return self._switch.process(port, frame)

    def entry_packets(self, entry: TableEntry) -> int:
        return self._entries[id(entry)][1].packets

    def cell(self, counter: str, index: int) -> int:
        return self._counter(counter).read(index)[0]

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        words = []
        for i in range(self.target.words):
            if self._tofino:
                pair = self._register(f"SwitchIngress.words.pair_{i // 2}").cell(index)
                words.append(int(pair.odd if i % 2 else pair.even))
            else:
                words.append(int(self._register(f"SwitchIngress.words.word_{i}").cell(index)))
        folder = "SwitchIngress.slots" if self._tofino else "SwitchIngress"
        seq, missing, filled = (
            int(self._register(f"{folder}.{name}").cell(index)) for name in ("seq", "missing", "filled")
        )
        return seq, missing, filled & 1, words
