"""The check as a whole: broken rules, and a table of the estimate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from switchagg.p4model import ir, walk
from switchagg.p4model.errors import P4Error
from switchagg.p4model.target_tofino import resources
from switchagg.p4model.target_tofino.logical_tables import Flow, TableKind, pipelines
from switchagg.p4model.target_tofino.registers import Finding, check_accesses, check_programs
from switchagg.p4model.target_tofino.resources import counter_memory, phv_bits, register_memory
from switchagg.p4model.target_tofino.stages import PlacedTable, place


@dataclass(slots=True)
class Estimate:
    """The rules that a program breaks on a Tofino 1, and the resources that it takes.

    Attributes:
        findings: rules that it breaks.
        placed: logical tables with their stages.
        phv_bits: by `ingress` and `egress`.
        sources: for the messages.
    """

    findings: list[Finding]
    placed: list[PlacedTable]
    phv_bits: Mapping[str, int]
    sources: Mapping[str, str]
    counters: int = 0
    registers: list[ir.ExternInstance] = field(default_factory=list)

    @property
    def stages(self) -> dict[str, int]:
        """Stages of ingress and egress."""
        return {
            gress: 1 + max((each.stage for each in self.placed if each.table.gress == gress), default=-1)
            for gress in ("ingress", "egress")
        }

    @property
    def sram_blocks(self) -> int:
        """Of tables, registers and counters together."""
        own = sum(each.memory.sram for each in self.placed)
        return own + sum(register_memory(each).sram for each in self.registers) + self.counters

    @property
    def tcam_blocks(self) -> int:
        """Of all tables."""
        return sum(each.memory.tcam for each in self.placed)

    @property
    def fits(self) -> bool:
        """True if no rule is broken and the estimate is within the chip."""
        room = sum(self.phv_bits.values()) <= resources.PHV_BITS and self.sram_blocks <= (
            resources.STAGES * resources.SRAM_BLOCKS
        )
        return not self.findings and room and max(self.stages.values()) <= resources.STAGES

    def to_text(self) -> str:
        """Findings, the table, and the totals."""
        lines = [each.text(self.sources) for each in self.findings]
        if lines:
            lines.append("")
        rows = [("stage", "gress", "logical table", "registers", "SRAM", "TCAM", "why there")]
        for each in sorted(self.placed, key=lambda one: (one.table.gress == "egress", one.stage)):
            logical = each.table
            where = "" if logical.kind is TableKind.TABLE else f" (line {logical.location.line})"
            names = ", ".join(sorted(register.name for register in logical.registers))
            numbers = str(each.memory.sram), str(each.memory.tcam)
            rows.append((str(each.stage), logical.gress, logical.name + where, names, *numbers, each.because))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        counts = self.stages
        lines += [
            "",
            f"stages: ingress {counts['ingress']}, egress {counts['egress']} of {resources.STAGES}",
            f"PHV: {sum(self.phv_bits.values())} of {resources.PHV_BITS} bits "
            f"(ingress {self.phv_bits.get('ingress', 0)}, egress {self.phv_bits.get('egress', 0)})",
            f"SRAM: {self.sram_blocks} of {resources.STAGES * resources.SRAM_BLOCKS} blocks; "
            f"TCAM: {self.tcam_blocks} of {resources.STAGES * resources.TCAM_BLOCKS}",
            "An estimate: the compiler is the judge.",
        ]
        if not self.fits and not self.findings:
            lines.append("warning: the estimate is past the chip; no rule is broken, so let the compiler try")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The same as data."""
        return json.dumps(
            {
                "fits": self.fits,
                "findings": [{"place": str(each.location), "reason": each.reason} for each in self.findings],
                "stages": self.stages,
                "phv_bits": dict(self.phv_bits),
                "sram_blocks": self.sram_blocks,
                "tcam_blocks": self.tcam_blocks,
                "tables": [
                    {
                        "name": each.table.name,
                        "kind": str(each.table.kind),
                        "gress": each.table.gress,
                        "stage": each.stage,
                        "because": each.because,
                        "sram_blocks": each.memory.sram,
                        "tcam_blocks": each.memory.tcam,
                        "registers": sorted(register.name for register in each.table.registers),
                    }
                    for each in self.placed
                ],
            },
            indent=1,
        )


def check(program: ir.Program) -> Estimate:
    """Checks a TNA program against a Tofino 1. Raises `P4Error` for a program of another architecture."""
    if program.architecture != "tna":
        raise P4Error(
            f"--target tofino is for TNA programs; this one is for {program.architecture or 'none known'}",
            program.main.location,
        ).with_sources(program.sources)
    findings: list[Finding] = []
    tables = []
    found: dict[str, int] = {}
    seen: set[ir.ControlInstance] = set()
    for gress, control in pipelines(program):
        if control in seen:
            continue
        seen.add(control)
        flow = Flow(control, gress)
        externs = list(walk.externs(control))
        findings += check_accesses(flow, externs)
        for instance in externs:
            findings += check_programs(instance)
        tables += flow.tables
    for pipe in program.main.args.values():
        if isinstance(pipe, ir.PackageInstance):
            for gress in ("ingress", "egress"):
                roles = (f"{gress}_parser", gress, f"{gress}_deparser")
                blocks = [pipe.args.get(role) for role in roles]
                found.setdefault(gress, 0)
                found[gress] = max(
                    found[gress], phv_bits(each for each in blocks if isinstance(each, ir.BlockInstance))
                )
    placed = place(tables)
    used = {register for logical in tables for register in logical.registers}
    counters = [each for each in walk.externs(program.main) if each.type.name == "Counter"]
    memory = sum(counter_memory(each).sram for each in counters)
    registers = sorted(used, key=lambda each: each.name)
    return Estimate(findings, placed, found, program.sources, memory, registers)
