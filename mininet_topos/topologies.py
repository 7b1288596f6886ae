"""Topologies: `rack`, `two_level`, `shared` and `asymmetric`.

    rack         h1 ... hn -- s1, and conventional hosts, if asked for
    two_level    h1 ... hm -- s1 --.          each leaf has its rack's workers, the root has the leaves
                 hm+1 ..   -- s2 --+-- s3
    shared       h1 ... hn of job "a", the next n of job "b", and two hosts of other traffic, all at s1
    asymmetric   a rack with a slow link (h1's) and one that loses frames (h2's)

Hosts are h1, h2, ...: IPv4 10.0.0.1, 10.0.0.2, ..., and MACs that hold the address. Parameters are numbers or
`name=value`, as `mn --topo` writes them: `--topo rack,4`, `--topo two_level,leaves=4,workers=16`.
"""

from __future__ import annotations

from typing import Any

from mininet.topo import Topo

from mininet_topos.hosts import WireHost, WorkerHost, mac_of
from mininet_topos.links import FAULTS, FaultyLink

MOST_WORKERS = 32  # the bits of a slot


class Rack(Topo):
    """n workers at one switch.

    Args:
        workers: 1 to 32.
        others: conventional hosts besides, 0 to 32.
        link: of each link, each way: `loss` (0 to 1), `delay` and `jitter` (seconds, or "5ms"), `rate`
            (Mbit/s), `queue` (frames), `seed`.
    """

    def build(self, workers: int = 4, others: int = 0, **link: Any) -> None:
        """Builds it; called by Mininet."""
        within("workers", workers, 1, MOST_WORKERS)
        within("others", others, 0, MOST_WORKERS)
        self.addSwitch("s1")
        for number in range(1, workers + 1):
            self.addLink(worker(self, number), "s1", **faulty(link))
        for number in range(workers + 1, workers + others + 1):
            self.addLink(host(self, number, cls=WireHost), "s1", **faulty(link))


class TwoLevel(Topo):
    """Racks of workers, a leaf each, under one root.

    Args:
        leaves: 1 to 32.
        workers: of each leaf, 1 to 32.
        link: of each link, as of `Rack`.
    """

    def build(self, leaves: int = 2, workers: int = 4, **link: Any) -> None:
        """Builds it; called by Mininet."""
        within("leaves", leaves, 1, MOST_WORKERS)
        within("workers", workers, 1, MOST_WORKERS)
        root = self.addSwitch(f"s{leaves + 1}")
        for leaf in range(leaves):
            switch = self.addSwitch(f"s{leaf + 1}")
            for number in range(leaf * workers + 1, (leaf + 1) * workers + 1):
                self.addLink(worker(self, number), switch, **faulty(link))
            self.addLink(switch, root, **faulty(link))


class Shared(Topo):
    """Two jobs and other traffic at one switch.

    Args:
        workers: of each job, 1 to 15.
        link: of each link, as of `Rack`.
    """

    def build(self, workers: int = 2, **link: Any) -> None:
        """Builds it; called by Mininet."""
        within("workers", workers, 1, MOST_WORKERS // 2 - 1)
        self.addSwitch("s1")
        for number in range(1, 2 * workers + 1):
            job = "a" if number <= workers else "b"
            self.addLink(worker(self, number, job=job), "s1", **faulty(link))
        for number in (2 * workers + 1, 2 * workers + 2):
            self.addLink(host(self, number, cls=WireHost), "s1", **faulty(link))


class Asymmetric(Topo):
    """A rack in which one link is slow and another loses frames.

    Args:
        workers: 2 to 32.
        rate: Mbit/s of h1's link.
        loss: probability that h2's link loses a frame.
        all_rate, all_loss: of the others.
        link: of each link, as of `Rack`.
    """

    def build(
        self,
        workers: int = 4,
        rate: float = 10.0,
        loss: float = 0.02,
        all_rate: float = 0,
        all_loss: float = 0,
        **link: Any,
    ) -> None:
        """Builds it; called by Mininet."""
        within("workers", workers, 2, MOST_WORKERS)
        self.addSwitch("s1")
        link.update({name: value for name, value in (("rate", all_rate), ("loss", all_loss)) if value})
        own = {1: {"rate": rate}, 2: {"loss": loss}}
        for number in range(1, workers + 1):
            self.addLink(worker(self, number), "s1", **faulty({**link, **own.get(number, {})}))


def address(number: int) -> str:
    """Returns the IPv4 address of host `number`, from 1."""
    return f"10.0.{number >> 8}.{number & 255}"


def host(topo: Topo, number: int, **options: Any) -> str:
    """Adds host `number` and returns its name."""
    ip = address(number)
    return str(topo.addHost(f"h{number}", ip=f"{ip}/16", mac=mac_of(ip), **options))


def worker(topo: Topo, number: int, **options: Any) -> str:
    """Adds a worker host and returns its name."""
    return host(topo, number, cls=WorkerHost, **options)


def faulty(link: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a link; with faults it is a `FaultyLink`. Raises ValueError for unknown ones."""
    for name in link:
        if name not in FAULTS:
            raise ValueError(f"a link has no {name!r}; accepted: {', '.join(sorted(FAULTS))}")
    return {"cls": FaultyLink, **link} if link else {}


def within(name: str, value: int, low: int, high: int) -> None:
    """Raises ValueError for a number out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; accepted: {low} to {high}")


topos = {"rack": Rack, "two_level": TwoLevel, "shared": Shared, "asymmetric": Asymmetric}
