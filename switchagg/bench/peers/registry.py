"""The systems that can be measured, and the groups of ranks that serve them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from switchagg.bench.grid import Settings, Variant, format_list, numpy_dtype
from switchagg.bench.peers.gloo import GlooPeer
from switchagg.bench.peers.no_op import NoOpPeer
from switchagg.bench.peers.openmpi import OpenMpiPeer
from switchagg.bench.peers.peer import Peer
from switchagg.bench.peers.switchagg import SwitchaggPeer
from switchagg.errors import UsageError, require

COMPARABLE = ("gloo", "gloo-fp16", "openmpi-tcp", "openmpi-shm", "udp-floor")
"""The systems that `--compare` accepts."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """The systems and groups of a run, and the reasons that others are left out.

    Attributes:
        groups: a peer for each group of ranks; gloo's ranks serve two systems, each loss has a switch.
        systems: the systems that run, in the order of the table.
        notes: a line for each system that is left out.
    """

    groups: dict[str, Peer]
    systems: tuple[str, ...]
    notes: tuple[str, ...]

    def variants(self, settings: Settings, dtype: str) -> tuple[list[tuple[str, Variant]], list[str]]:
        """Group keys and variants to measure on an element type, and notes on those that are refused."""
        natural = 8 * numpy_dtype(dtype).itemsize
        wanted: list[tuple[str, Variant]] = []
        for system in self.systems:
            if system == "switchagg":
                wanted += [
                    (_switchagg_group(transport, loss), Variant(system, bits, loss, transport))
                    for transport in settings.transports
                    for loss in settings.losses
                    for bits in settings.lanes(dtype)
                ]
            else:
                bits = {"gloo-fp16": 16, "udp-floor": 32}.get(system, natural)
                wanted.append((_group_of(system), Variant(system, bits)))
        accepted, notes = [], []
        for key, variant in wanted:
            reason = self.groups[key].refuses(variant, dtype)
            if reason is None:
                accepted.append((key, variant))
            else:
                notes.append(f"{variant.system}: left out: {reason}")
        return accepted, notes


def _switchagg_group(transport: str, loss: float) -> str:
    return f"switchagg {transport} {loss}"


def _group_of(system: str) -> str:
    return "gloo" if system.startswith("gloo") else system


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
        candidates: dict[str, Peer]
        if system == "switchagg":
            candidates = {
                _switchagg_group(transport, loss): SwitchaggPeer(settings, loss, transport)
                for transport in settings.transports
                for loss in settings.losses
            }
        elif system == "udp-floor":
            candidates = {system: NoOpPeer(settings)}
        elif system.startswith("openmpi-"):
            candidates = {system: OpenMpiPeer(system.removeprefix("openmpi-"))}
        else:
            candidates = {_group_of(system): GlooPeer()}
        reason = next(iter(candidates.values())).missing()
        if reason is None:
            systems.append(system)
            groups |= {key: peer for key, peer in candidates.items() if key not in groups}
        else:
            notes.append(f"{system}: left out: {reason}")
    if not systems:
        raise UsageError("nothing to measure: " + "; ".join(notes or ["no system was named"]))
    return Lineup(groups, tuple(systems), tuple(notes))


def check_names(names: Iterable[str]) -> None:
    """Raises UsageError for a name that is no system's."""
    for name in names:
        require(name in COMPARABLE, "compare", name, f"{format_list(COMPARABLE)}, none")
