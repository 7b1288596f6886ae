"""The wiring of switches: their parents, the hosts whose workers attach to them, their links. No I/O.

    root                 no parent; leaves below it
    |-- leaf1            parent=root, hosts=10.0.1.0/24: the workers of a rack
    `-- leaf2            parent=root, hosts=10.0.2.0/24

There are two levels: a leaf has a parent, and a parent has none. A switch without hosts takes workers from
anywhere, unless it is a parent: then it has leaves and no workers of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from switchagg.errors import UsageError
from switchagg.wire.header import MAX_WORKERS

DEFAULT_BANDWIDTH: Final = 1e9
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Attachment:
    """The neighbours of a switch.

    Attributes:
        parent: the name of the switch above, which aggregates its leaves' packets; None for none.
        hosts: addresses of the workers that attach to the switch; None for any.
        bandwidth: bits a second, each way, of the link over which all of its workers reach it.

    Raises `UsageError` for a bandwidth outside 10 kbit/s .. 1 Pbit/s.
    """

    parent: str | None = None
    hosts: tuple[Network, ...] | None = None
    bandwidth: float = DEFAULT_BANDWIDTH

    def __post_init__(self) -> None:
        if not 1e4 <= self.bandwidth <= 1e15:
            raise UsageError(f"bandwidth is {self.bandwidth:g} bit/s; accepted: 10kbit to 1000Tbit")

    def takes(self, address: str) -> bool:
        """Returns True if a worker with this address attaches to the switch."""
        if self.hosts is None:
            return True
        worker = ipaddress.ip_address(address)
        return any(worker in network for network in self.hosts)

    @property
    def shown(self) -> str:
        """The hosts, for people."""
        if self.hosts is None:
            return "any"
        return ", ".join(shown_network(network) for network in self.hosts) or "none"


def shown_network(network: Network) -> str:
    """Returns a network as an operator writes it: a single address without a length."""
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def parse_hosts(what: str, texts: Iterable[str]) -> tuple[Network, ...]:
    """Returns the networks of ``10.0.1.0/24``, ``10.0.2.7``, ``fd00:1::/64`` and the like.

    Raises `UsageError` for anything else; `what` begins its message.
    """
    found = []
    for text in texts:
        try:
            if "%" in text:
                raise ValueError
            found.append(ipaddress.ip_network(text.strip()))
        except ValueError:
            raise UsageError(
                f"{what}: host is {text!r}; accepted: an address or a network, such as 10.0.1.7, "
                "10.0.1.0/24 or fd00:1::/64"
            ) from None
    return tuple(dict.fromkeys(found))


def checked(attachments: Mapping[str, Attachment]) -> dict[str, Attachment]:
    """Returns the attachments of switches, by name, in which parents without hosts take no workers.

    Raises `UsageError` for a parent that does not exist, is the switch itself or has a parent, and for more
    leaves than a parent takes.
    """
    for name, each in attachments.items():
        if each.parent is None:
            continue
        others = ", ".join(other for other in attachments if other != name) or "none, it is the only one"
        if each.parent == name or each.parent not in attachments:
            raise UsageError(f"switch {name}: parent is {each.parent!r}; accepted: another switch: {others}")
        above = attachments[each.parent].parent
        if above is not None:
            raise UsageError(
                f"switch {name}: its parent {each.parent!r} has a parent itself, {above!r}; accepted: "
                "two levels, leaves below a root"
            )
    parents = {each.parent for each in attachments.values()} - {None}
    for root in sorted(filter(None, parents)):
        leaves = [name for name, each in attachments.items() if each.parent == root]
        if len(leaves) > MAX_WORKERS:
            raise UsageError(
                f"switch {root} is the parent of {len(leaves)} switches; accepted: up to {MAX_WORKERS}, "
                "since a slot has a bit for each"
            )
    return {
        name: replace(each, hosts=()) if each.hosts is None and name in parents else each
        for name, each in attachments.items()
    }
