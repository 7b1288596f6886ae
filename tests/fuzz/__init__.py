"""Fuzzers of the Python parsers: `python -m tests.fuzz`, or `make fuzz-python`.

    p4       the P4 front end: mutated programs
    store    the controller's state directory: damaged databases
    http     the controller's HTTP service, beneath its schema: raw bytes on real sockets
    texts    command line, configuration, launchers' variables, heartbeats, scripts of packets

Each execution draws from a random generator of its own, made of the seed and the execution's number, so that
any one can be repeated alone.
"""

from __future__ import annotations

from typing import Final

TARGETS: Final = {"p4": "p4_programs", "store": "state_store", "http": "http_bytes", "texts": "texts"}
"""The module of each target."""
