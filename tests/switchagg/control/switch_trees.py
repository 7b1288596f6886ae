"""Native switches on loopback with a served controller, alone or as a tree, for tests with real workers.

Leaf n of a tree takes the workers of 127.1.n.0/24, and the root none. Every switch is a thread of this
process with a UDP socket of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.jobs.records import OPEN
from switchagg.control.service import ControlServer
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import Rate
from switchagg.emulator.switch import Switch
from switchagg.rules.switch import DEFAULT_MEMORY
from switchagg.rules.wiring import Attachment, parse_hosts
from tests.waiting import eventually

CAPACITY = 4096


@dataclass
class SwitchTree:
    """A served controller with its switches, by name."""

    server: ControlServer
    switches: dict[str, Switch] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def controller(self) -> Controller:
        return self.server.controller

    @property
    def leaves(self) -> list[str]:
        return [name for name in self.switches if name != "root"]

    def job(self, name: str) -> dict[str, Any]:
        found = self.controller.queries.job(OPEN, name)
        assert found is not None
        return found

    def all_free(self) -> None:
        """Fails unless every slot of every switch comes free."""
        eventually(
            lambda: all(each["free"] == CAPACITY for each in self.controller.queries.slots(OPEN)["switches"])
        )


def address(leaf: int, rank: int = 0) -> str:
    """Returns the address of a worker at leaf 1, 2, ..."""
    return f"127.1.{leaf}.{rank + 1}"


def wired(leaves: int) -> dict[str, Attachment]:
    """Returns the attachments of a root and its leaves."""
    return {
        "root": Attachment(None, ()),
        **{
            f"leaf{n}": Attachment("root", parse_hosts("leaf", [f"127.1.{n}.0/24"]))
            for n in range(1, leaves + 1)
        },
    }


@contextlib.contextmanager
def switch_tree(leaves: int = 2, *, faults: Faults | None = None, **options: Any) -> Iterator[SwitchTree]:
    """Runs a root and leaves until the end of the block; `options` go to the controller."""
    with switch_row(wired(leaves), faults=faults, wiring=wired(leaves), **options) as tree:
        yield tree


@contextlib.contextmanager
def switch_row(
    names: Iterable[str],
    *,
    faults: Faults | None = None,
    threads: int = 1,
    rates: Mapping[str, Rate] | None = None,
    **options: Any,
) -> Iterator[SwitchTree]:
    """Runs switches of these names until the end of the block; `options` go to the controller.

    Args:
        rates: of the links of some of them.
    """
    with contextlib.ExitStack() as stack:
        switches: dict[str, Switch] = {}
        for name in names:
            switches[name] = stack.enter_context(
                Switch(
                    "127.0.0.1", 0, capacity=CAPACITY, rate=(rates or {}).get(name), faults=faults,
                    threads=threads,
                )
            )  # fmt: skip
        drivers: Sequence[EmbeddedDriver] = [
            EmbeddedDriver(switch, CAPACITY, DEFAULT_MEMORY, name=name) for name, switch in switches.items()
        ]
        server = ControlServer(Controller(drivers, **options))
        stack.callback(server.close)
        server.start()
        yield SwitchTree(server, switches)
