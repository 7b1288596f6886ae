"""The systems that can be measured, and the groups of ranks that serve them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from switchagg.bench.grid import Settings, Variant, format_list, numpy_dtype
from switchagg.bench.peers.gloo import GlooPeer
from switchagg.bench.peers.mpi import INTEL, MPICH, OPENMPI, WAYS, MpiPeer
from switchagg.bench.peers.no_op import NoOpPeer
from switchagg.bench.peers.oneccl import ENVIRONMENT as ONECCL
from switchagg.bench.peers.oneccl import OneCclPeer, build
from switchagg.bench.peers.peer import Peer
from switchagg.bench.peers.switchagg import SwitchaggPeer
from switchagg.errors import UsageError, require

COMPARABLE = ("gloo", "gloo-fp16", *WAYS, "oneccl", "udp-floor")
"""The systems that `--compare` accepts."""

INSTALLABLE = {one.name: one for one in (OPENMPI.environment, MPICH.environment, INTEL.environment, ONECCL)}
"""Environments that `install` can make, by name."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """The systems and groups of a run, and the reasons that others are left out.

    Attributes:
        groups: a peer for each `Variant.group`.
        systems: the systems that run, in the order of the table.
        notes: a line for each system that is left out.
    """

    groups: dict[str, Peer]
    systems: tuple[str, ...]
    notes: tuple[str, ...]

    def variants(self, settings: Settings, dtype: str) -> tuple[list[Variant], list[str]]:
        """Variants to measure on an element type, and notes on those that are refused."""
        natural = 8 * numpy_dtype(dtype).itemsize
        accepted, notes = [], []
        for system in self.systems:
            lanes = {"switchagg": settings.lanes(dtype), "gloo-fp16": (16,), "udp-floor": (32,)}
            for variant in _variants(settings, system, lanes.get(system, (natural,))):
                reason = self.groups[variant.group].refuses(variant, dtype)
                if reason is None:
                    accepted.append(variant)
                else:
                    notes.append(f"{variant.system}: left out: {reason}")
        return accepted, notes


def _variants(settings: Settings, system: str, lanes: Iterable[int]) -> list[Variant]:
    if system != "switchagg":
        return [Variant(system, bits) for bits in lanes]
    return [Variant(system, bits, loss, way) for (way, loss), bits in product(settings.ways(), lanes)]


def _peer(settings: Settings, variant: Variant) -> Peer:
    """The parent's side of the ranks that measure a variant."""
    match variant.system.split("-"):
        case ["switchagg"]:
            return SwitchaggPeer(settings, variant.loss, variant.transport)
        case ["udp", "floor"]:
            return NoOpPeer(settings)
        case ["oneccl"]:
            return OneCclPeer()
    return MpiPeer(WAYS[variant.system]) if variant.system in WAYS else GlooPeer()


def line_up(settings: Settings) -> Lineup:
    """Determines which systems can run here.

    Raises:
        UsageError: `compare` names no system of ours, or none can run.
    """
    check_names(settings.compare or ())
    systems: list[str] = []
    groups: dict[str, Peer] = {}
    notes: list[str] = []
    wanted = settings.compare if settings.compare is not None else COMPARABLE
    if settings.measure_switchagg:
        wanted = ("switchagg", *wanted)
    for system in wanted:
        candidates = {one.group: _peer(settings, one) for one in _variants(settings, system, (32,))}
        reason = next(iter(candidates.values())).missing()
        if reason is None:
            systems.append(system)
            groups = candidates | groups
        else:
            notes.append(f"{system}: left out: {reason}")
    if not systems:
        raise UsageError("nothing to measure: " + "; ".join(notes or ["no system was named"]))
    return Lineup(groups, tuple(systems), tuple(notes))


def check_names(names: Iterable[str]) -> None:
    """Raises UsageError for a name that is no system's."""
    for name in names:
        require(name in COMPARABLE, "compare", name, f"{format_list(COMPARABLE)}, none")


def install(names: Iterable[str]) -> None:
    """Installs systems in environments of their own, where they are not there yet.

    Raises:
        UsageError: a name is not in `INSTALLABLE`.
        SwitchAggError: one cannot be installed.
    """
    names = tuple(names)
    for name in names:
        require(name in INSTALLABLE, "install", name, format_list(tuple(INSTALLABLE)))
    for name in names:
        INSTALLABLE[name].make("switchagg bench peers")
        if INSTALLABLE[name] is ONECCL:
            build()


def reasons() -> dict[str, str | None]:
    """The reason that each system of `COMPARABLE` cannot run here, None where it can."""
    settings = Settings()
    return {system: _peer(settings, Variant(system, 32)).missing() for system in COMPARABLE}
