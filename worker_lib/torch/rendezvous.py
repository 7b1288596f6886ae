"""Rendezvous: how the ranks of a process group meet in PyTorch's store and find the switch.

1. `store_prefix`: a part of the store that only these ranks, in this life of the job, have written to.
2. `join`: every rank writes its host; rank 0 answers with the controller's URL, the credential and a name for
   the job, or with the reason why there is none; and all join.

The controller is the one in SWITCHAGG_CONTROLLER, or the one that an earlier group of this process uses, or
one that rank 0 starts with a switch as a child process, with a random token: on loopback if all ranks run on
one host, else on MASTER_ADDR's interface. It ends when the last group of the process that started it is
destroyed. In a group whose members have changed it is one that a member has started, rank 0's own first.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from switchagg.addresses import is_loopback, local_address_towards
from switchagg.computer import network_identity
from switchagg.errors import NetworkError, SwitchAggError, SwitchError, UsageError
from worker_lib.connect import connect
from worker_lib.embedded import Embedded, start_embedded
from worker_lib.session import Session, close_all
from worker_lib.torch.options import Options

_KEY: Final = "switchagg"
_LOOK: Final = 1.0  # seconds until a rank asks again who leads
_PAUSE: Final = 0.02

# ---------------------------------------------------------------------- the store's prefix


def store_prefix(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Returns a prefix of `store` whose keys nobody has written before these ranks met.

    torchrun may start the ranks again with the store of those that died, keys and all (PyTorch 2.13,
    --standalone), and gloo then looks for the dead at their old addresses. So the ranks agree on a prefix:

        rank 0  "leader" = N, a random number                others  read "leader": N, perhaps a dead one's
                wait for "N/joined/r" of every rank                  "N/joined/r" = R, a random number
                "N/go" = all the Rs                                  wait for "N/go": is R in it? If not,
                                                                     N is old: read "leader" again

    Raises:
        SwitchError: not all ranks came within `timeout`.
    """
    store = dist.PrefixStore(_KEY, store)
    deadline = time.monotonic() + timeout.total_seconds()
    number = _lead(store, size, deadline) if rank == 0 else _follow(store, rank, deadline)
    return dist.PrefixStore(number, store)


def _lead(store: Any, size: int, deadline: float) -> str:
    number = secrets.token_hex(8)
    store.set("leader", number)
    joined = {}
    for rank in range(1, size):
        key = f"{number}/joined/{rank}"
        if not _appears(store, key, deadline):
            missing = [r for r in range(1, size) if not store.check([f"{number}/joined/{r}"])]
            raise SwitchError(
                f"ranks {missing} of {size} did not come to the process group within its timeout"
            )
        joined[str(rank)] = store.get(key).decode()
    store.set(f"{number}/go", json.dumps(joined))
    return number


def _follow(store: Any, rank: int, deadline: float) -> str:
    mine = secrets.token_hex(8)
    asked = ""
    while True:
        if not _appears(store, "leader", deadline):
            raise SwitchError("rank 0 did not come to the process group in time")
        number: str = store.get("leader").decode()
        if number != asked:
            store.set(f"{number}/joined/{rank}", mine)
            asked = number
        go = f"{number}/go"
        if _appears(store, go, min(deadline, time.monotonic() + _LOOK)):
            if json.loads(store.get(go)).get(str(rank)) == mine:
                return number
            time.sleep(_PAUSE)  # of a life that is over: the leader of this one has yet to come
        if time.monotonic() >= deadline:
            raise SwitchError("not all ranks came to the process group in time")


def _appears(store: Any, key: str, deadline: float) -> bool:
    """Waits for a key; returns False at the deadline."""
    pause = 0.005
    while not store.check([key]):  # the store's own wait prints warnings when it runs out
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return True


# ---------------------------------------------------------------------- the controller and the switch


@dataclass(eq=False)
class Controller:
    """A controller that groups of this process use.

    Attributes:
        url: its address.
        credential: token that it wants; None for the one in SWITCHAGG_TOKEN, if any.
        child: the process, where this one has started it.
        uses: number of groups of this process that hold it.
    """

    url: str
    credential: str | None = field(default=None, repr=False)
    child: Embedded | None = None
    uses: int = 0

    def fits(self, *, own: bool = False, several: bool) -> bool:
        """True if it can be a group's whose needs are those of `_Controllers.oldest`."""
        if own and (self.child is None or self.child.process.poll() is not None):
            return False
        return not (several and "//127." in self.url)


class _Controllers:
    """Those in use in this process, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Controller] = []

    def oldest(self, *, own: bool = False, several: bool = False) -> Controller | None:
        """The one that new groups should use too.

        Args:
            own: only one that this process has started, and that still runs.
            several: only one that other hosts reach.
        """
        with self._lock:
            return next((each for each in self._held if each.fits(own=own, several=several)), None)

    def hold(self, controller: Controller) -> None:
        """Counts one more group that uses it."""
        with self._lock:
            controller.uses += 1
            if controller not in self._held:
                self._held.append(controller)

    def release(self, controller: Controller) -> None:
        """Counts one group less; without any, its child process is ended."""
        with self._lock:
            controller.uses -= 1
            if controller.uses > 0:
                return
            self._held.remove(controller)
        if controller.child is not None:
            controller.child.close()

    def end(self) -> None:
        """Ends all child processes, at the end of this one.

        Its own sessions leave before: a controller waits for ranks that are in a job, and tells the others
        of an exception that ends this one.
        """
        close_all()
        with self._lock:
            held = list(self._held)
        for controller in held:
            if controller.child is not None:
                controller.child.close()

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        for controller in self._held:
            if controller.child is not None:
                controller.child.close_descriptors()
        self._held = []
        self._lock = threading.Lock()


controllers = _Controllers()
os.register_at_fork(after_in_child=controllers.forget)
atexit.register(controllers.end)


def join(
    store: Any,
    group: str,
    rank: int,
    size: int,
    timeout: timedelta,
    options: Options,
    *,
    changed: bool = False,
) -> tuple[Session, Controller | None]:
    """Joins the job of a process group.

    Args:
        store: from `store_prefix`.
        group: its name in PyTorch, for listings.
        rank, size: in the group.
        timeout: for everything; also the session's.
        changed: the group has had other members; rank 0 takes no controller but one that a present member has
            started, since others may have gone.

    Returns:
        The session, and the controller that the caller releases after it has closed the session; None in a
        group of one.

    Raises:
        SwitchError: no switch, or it is full. UsageError: settings that cannot work.
    """
    seconds = timeout.total_seconds()
    if size == 1:
        return connect(rank=0, world_size=1, timeout=seconds), None
    deadline = time.monotonic() + seconds
    offered = controllers.oldest(own=True) if changed else None
    offer = (None, None) if offered is None else (offered.url, offered.credential)
    store.set(f"{_KEY}/host/{rank}", json.dumps([network_identity() or socket.gethostname(), *offer]))
    if rank == 0:
        try:
            controller = _controller(store, size, deadline, changed)
        except SwitchAggError as error:
            store.set(_KEY, json.dumps({"error": str(error)}))
            raise
        name = f"torch-{group}-{secrets.token_hex(4)}"
        answer = {"controller": controller.url, "credential": controller.credential, "job": name}
    else:
        answer = json.loads(_read(store, _KEY, "rank 0 has named no switch", deadline))
        if "error" in answer:
            raise SwitchError(f"rank 0 has no switch for this process group: {answer['error']}")
        name = answer["job"]
        known = controllers.oldest()
        if known is not None and known.url == answer["controller"]:
            controller = known
        else:
            controller = Controller(answer["controller"], answer["credential"])
    controllers.hold(controller)
    try:
        if rank == 0:
            store.set(_KEY, json.dumps(answer))
        session = connect(
            controller.url, name, rank, size, timeout=seconds, transport=options.transport,
            join_timeout=max(1.0, deadline - time.monotonic()), credential=controller.credential,
            congestion=options.congestion, check=options.check, seal=options.seal,
            on_loss="fail",  # another number of ranks is another job
        )  # fmt: skip
    except BaseException:
        controllers.release(controller)
        raise
    return session, controller


def _controller(store: Any, size: int, deadline: float, changed: bool) -> Controller:
    """The controller that rank 0 chooses."""
    if url := os.environ.get("SWITCHAGG_CONTROLLER"):
        return Controller(url)
    offers = [
        json.loads(_read(store, f"{_KEY}/host/{r}", f"rank {r} has gone", deadline)) for r in range(size)
    ]
    several = len({host for host, *_ in offers}) > 1
    if known := controllers.oldest(own=changed, several=several):
        return known
    for _, url, credential in offers:  # a member's, which ends no sooner than these members do
        if url is not None and (offered := Controller(url, credential)).fits(several=several):
            return offered
    address = "127.0.0.1"
    if several:
        address = _own_address(store) if changed else os.environ.get("MASTER_ADDR", "")
        if not address and changed:
            raise UsageError(
                "the members run on several hosts, and no address of this one but loopback leads to the "
                "store in which they met: give the first member's TCPStore an address that all reach, or set "
                "SWITCHAGG_CONTROLLER to a controller's URL"
            )
        if not address:
            raise UsageError(
                "the ranks run on several hosts and MASTER_ADDR is not set: set it to an address of rank 0's "
                "host that the others reach, or SWITCHAGG_CONTROLLER to a controller's URL"
            )
    credential = secrets.token_urlsafe(24)
    patience = max(1.0, deadline - time.monotonic())
    child = start_embedded(address, timeout=patience, credential=credential, several_hosts=several)
    return Controller(child.controller, credential, child)


def _read(store: Any, key: str, complaint: str, deadline: float) -> str:
    """The value of a key that appears before the deadline; else raises `SwitchError`."""
    if not _appears(store, key, deadline):
        raise SwitchError(f"{complaint} within the process group's timeout")
    value: str = store.get(key).decode()
    return value


def tcp_store(store: Any) -> Any:
    """The TCPStore beneath prefixes; None where the store is of another kind."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None


def _own_address(store: Any) -> str:
    """The address of this host that leads to the group's store; empty if that is loopback, or unknown."""
    tcp = tcp_store(store)
    there = tcp.host if tcp else os.environ.get("MASTER_ADDR", "")
    try:
        address = local_address_towards(there, tcp.port if tcp else 9)
    except NetworkError:
        return ""
    return "" if is_loopback(address) else address
