"""The sizes of a Tofino 1, as public sources give them (the TNA documentation; the open-source compiler)."""

from __future__ import annotations

from typing import Final

STAGES: Final = 12
LOGICAL_TABLES: Final = 16
"""of a stage, tables and gateways with a result of their own together"""
STATEFUL_ALUS: Final = 4
"""of a stage, one for each register"""
REGISTER_ACTIONS: Final = 4
"""of a register"""
SRAM_BLOCKS: Final = 80
"""of a stage"""
SRAM_ROWS: Final = 1024
SRAM_ROW_BITS: Final = 128
TCAM_BLOCKS: Final = 24
"""of a stage"""
TCAM_ROWS: Final = 512
TCAM_ROW_BITS: Final = 44
MAP_RAM_BLOCKS: Final = 48
PHV_CONTAINERS: Final = {32: 64, 16: 96, 8: 64}
"""Containers of a pipeline by width; ingress and egress share them."""
PHV_BITS: Final = sum(width * count for width, count in PHV_CONTAINERS.items())
"""4,096"""
COMPARISONS: Final = 2
"""of a stateful ALU's program"""
PHV_OPERANDS: Final = 2
"""fields of the packet that a stateful ALU's program can use, besides the index"""
UPDATES: Final = 2
"""different new values of one half of a register's word, each under a predicate"""
