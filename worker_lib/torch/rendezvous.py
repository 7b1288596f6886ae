"""How the ranks of a process group find the switch: everything travels through PyTorch's store.

    every rank   -> store: where it runs
    rank 0       -> store: the controller's URL, the credential, a name for the job; or why there is none
    every rank   <- store, and joins

The controller is the one in SWITCHAGG_CONTROLLER, or the one that an earlier group of this process uses, or
one that rank 0 starts with a switch as a child process, with a random token: on loopback if all ranks run on
one host, else on MASTER_ADDR's interface. It ends when the last group of the process that started it is
destroyed.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from switchagg.errors import SwitchAggError, SwitchError, UsageError
from worker_lib.connect import connect
from worker_lib.embedded import Embedded, start_embedded
from worker_lib.session import Session
from worker_lib.torch.options import Options

_KEY: Final = "switchagg"


@dataclass(eq=False)
class Controller:
    """A controller that groups of this process use.

    Attributes:
        url: where it answers.
        credential: token that it wants; None for the one in SWITCHAGG_TOKEN, if any.
        child: the process, where this one has started it.
        uses: groups of this process that hold it.
    """

    url: str
    credential: str | None = field(default=None, repr=False)
    child: Embedded | None = None
    uses: int = field(default=0)


class _Controllers:
    """Those in use in this process, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Controller] = []

    def oldest(self) -> Controller | None:
        """The one that new groups should use too."""
        with self._lock:
            return self._held[0] if self._held else None

    def hold(self, controller: Controller) -> None:
        """Counts one more group that uses it."""
        with self._lock:
            controller.uses += 1
            if controller not in self._held:
                self._held.append(controller)

    def release(self, controller: Controller) -> None:
        """Counts one less; the last one ends the child, if there is one."""
        with self._lock:
            controller.uses -= 1
            if controller.uses > 0:
                return
            self._held.remove(controller)
        if controller.child is not None:
            controller.child.close()

    def end(self) -> None:
        """Ends all children, as at the end of the process."""
        with self._lock:
            held, self._held = self._held, []
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
    store: Any, group: str, rank: int, size: int, timeout: timedelta, options: Options
) -> tuple[Session, Controller | None]:
    """Joins the job of a process group.

    Args:
        store: what only these ranks have, in this life; see `worker_lib.torch.meeting`.
        group: its name in PyTorch, for listings.
        rank, size: in the group.
        timeout: for everything; also the session's.

    Returns:
        The session, and the controller that the caller releases after it has closed the session.

    Raises:
        SwitchError: no switch, or it is full. UsageError: settings that cannot work.
    """
    seconds = timeout.total_seconds()
    if size == 1:
        return connect(world_size=1, rank=0, timeout=seconds), None
    deadline = time.monotonic() + seconds
    store.set(f"{_KEY}/host/{rank}", _host_identity())
    if rank == 0:
        try:
            controller = _controller(store, size, deadline)
        except SwitchAggError as error:
            store.set(_KEY, json.dumps({"error": str(error)}))
            raise
        name = f"torch-{group}-{secrets.token_hex(4)}"
        told = {"controller": controller.url, "credential": controller.credential, "job": name}
        store.set(_KEY, json.dumps(told))
    else:
        told = json.loads(store.get(_KEY))
        if "error" in told:
            raise SwitchError(f"rank 0 has no switch for this process group: {told['error']}")
        name = told["job"]
        known = controllers.oldest()
        if known is not None and known.url == told["controller"]:
            controller = known
        else:
            controller = Controller(told["controller"], told["credential"])
    controllers.hold(controller)
    try:
        session = connect(
            controller.url, name, rank, size, timeout=seconds, transport=options.transport,
            join_timeout=max(1.0, deadline - time.monotonic()), credential=controller.credential,
            on_loss="fail",  # a process group has its size for life
        )  # fmt: skip
    except BaseException:
        controllers.release(controller)
        raise
    return session, controller


def _controller(store: Any, size: int, deadline: float) -> Controller:
    """Rank 0's choice."""
    if url := os.environ.get("SWITCHAGG_CONTROLLER"):
        return Controller(url)
    if known := controllers.oldest():
        return known
    hosts = {store.get(f"{_KEY}/host/{rank}") for rank in range(size)}
    if len(hosts) == 1:
        address = "127.0.0.1"
    else:
        address = os.environ.get("MASTER_ADDR", "")
        if not address:
            raise UsageError(
                "the ranks run on several hosts and MASTER_ADDR is not set: set it to an address of rank 0's "
                "host that the others reach, or SWITCHAGG_CONTROLLER to a controller's URL"
            )
    credential = secrets.token_urlsafe(24)
    child = start_embedded(address, timeout=max(1.0, deadline - time.monotonic()), credential=credential)
    return Controller(child.controller, credential, child)


def _host_identity() -> str:
    """The same for processes that reach each other by loopback."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        import socket

        return socket.gethostname()
