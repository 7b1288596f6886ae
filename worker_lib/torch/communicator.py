"""Members of a process group that have joined a job: a session on the switch, and gloo for the rest.

    SwitchGroup --> Communicator (uuid 7: ranks a, b, c) --> Collectives, gloo
                    reconfigure(uuid 8, handles of a, c, d)
                --> Communicator (uuid 8: ranks a, c, d) --> Collectives, gloo

A change of members (PyTorch's `_reconfigure`) makes a new one: a job of its own, and connections of its own.
Everybody meets in the store of the first of the new members, under a prefix that no other group and no other
change has: the first one's token and the uuid. Until all have come, the old members stay as they are.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from switchagg.errors import UsageError
from switchagg.wire.header import MAX_TREE_WORKERS
from worker_lib.torch import versions
from worker_lib.torch.collectives import Collectives
from worker_lib.torch.fallback import GlooFallback, gloo_backend
from worker_lib.torch.gloo import GlooCalls
from worker_lib.torch.options import Options
from worker_lib.torch.rendezvous import controllers, join, tcp_store

_SCHEME: Final = "switchagg"


class Communicator:
    """Members of a process group that have joined a job.

    Args:
        store: a part of it that only these ranks, in this life of the group, have written to.
        rank, size: of this process among them.
        timeout: of every operation that is given no other.
        name: the group's, in PyTorch.
        options: the group's settings.
        changed: as in `join`.

    Attributes:
        rank, size: of this process among the members.
        controller: what `join` returned.
        collectives: those that go through the switch.
        gloo: a gloo backend.
        gloo_calls: begins its operations.
        fallback: does the switch's work when it is lost; None without ``fallback="gloo"``.

    Raises:
        UsageError: settings that cannot work. SwitchError: there is no switch, or it is full.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        options: Options,
        *,
        changed: bool = False,
    ) -> None:
        self.rank, self.size = rank, size
        self.gloo: Any = None
        self.fallback: GlooFallback | None = None
        # First the switch, which may have no room: gloo connects every rank with every other.
        session, self.controller = join(store, name, rank, size, timeout, options, changed=changed)
        self.collectives = Collectives(session, options, f"switchagg {name}")
        self.gloo_calls = GlooCalls(session)
        try:
            self.gloo = gloo_backend(store, rank, size, timeout)
            if options.fallback == "gloo" and size > 1:
                store = dist.PrefixStore("fallback", store)
                gloo = gloo_backend(store, rank, size, timeout)
                self.fallback = self.collectives.switch = GlooFallback(session, gloo, store, name)
        except BaseException:
            self.close()
            raise

    @property
    def fallen_back(self) -> bool:
        """True if the switch is lost and gloo does its work."""
        return self.fallback is not None and self.fallback.lost.is_set()

    @property
    def broken(self) -> bool:
        """True if a rank's end, the switch or the network has ended it, and nothing does its work."""
        if self.fallback is not None and self.fallen_back:
            return self.fallback.failed
        return self.collectives.session._state.broken is not None

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of operations that are given no other; more than 0."""
        self.collectives.session.timeout = timeout.total_seconds()
        self.gloo._set_default_timeout(timeout)
        if self.fallback is not None:
            self.fallback.set_timeout(timeout)

    def close(self) -> None:
        """Leaves the job, and lets go of threads, sockets and the switch, if this process started it.

        Operations that are still on their way end with an error.
        """
        self.gloo_calls.close()
        self.collectives.close()
        if self.gloo is not None:
            versions.end_gloo(self.gloo)
        if self.controller is not None:
            controllers.release(self.controller)


def check_size(size: int) -> None:
    """Raises `UsageError` for more ranks than a switch can serve."""
    if size > MAX_TREE_WORKERS:
        raise UsageError(
            f"the group has {size} ranks; accepted: 1 to {MAX_TREE_WORKERS} on a tree of switches, fewer "
            "on one. Reduce within smaller groups first, or use gloo"
        )


class ReconfigureError(UsageError, RuntimeError):
    """A change of members that cannot be made. PyTorch's own backends raise a RuntimeError."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A process group's handle, which others need to make it a member of theirs.

    Attributes:
        token: no other group's, of this process or another.
        host, port: of the group's store; empty and 0 where it is no TCPStore.
    """

    token: str
    host: str
    port: int

    @classmethod
    def of_group(cls, store: Any) -> Handle:
        """A new handle for the group that has been given this store."""
        tcp = tcp_store(store)
        return cls(secrets.token_hex(16), tcp.host if tcp else "", tcp.port if tcp else 0)

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Reads what `str` writes.

        Raises:
            ReconfigureError: it is no handle of a switchagg group.
        """
        parts = str(text).split(":", 3)
        if len(parts) != 4 or parts[0] != _SCHEME or not parts[2].isdigit():
            raise ReconfigureError(
                f"handle is {text!r}; accepted: what get_reconfigure_handle() of a switchagg group returns"
            )
        return cls(parts[1], parts[3], int(parts[2]))

    def __str__(self) -> str:
        return f"{_SCHEME}:{self.token}:{self.port}:{self.host}"

    def store(self, own: Handle, store: Any, timeout: timedelta) -> Any:
        """The store of the group with this handle.

        Args:
            own, store: handle and store of the caller's group. A store that is no TCPStore is taken to be
                the same for all.
            timeout: for a connection.
        """
        if not self.port or (self.host, self.port) == (own.host, own.port):
            return tcp_store(store) or store
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of members, as one of the new ones sees it.

    Attributes:
        first: handle of rank 0.
        rank, size: of this process in it.
        prefix: of the store in which the new members meet.
    """

    first: Handle
    rank: int
    size: int
    prefix: str

    @classmethod
    def read(cls, opts: Any, own: Handle) -> Change:
        """Reads PyTorch's ReconfigureOptions; a set of handles makes ranks in their order as strings.

        Raises:
            ReconfigureError: this group is not among the handles, one is there twice or is none.
            UsageError: more ranks than a switch can serve.
        """
        ordered = isinstance(opts.handles, list | tuple)
        handles = [Handle.parse(each) for each in (opts.handles if ordered else sorted(opts.handles))]
        check_size(len(handles))
        if len(set(handles)) < len(handles):
            raise ReconfigureError("a handle is given twice; accepted: one a member")
        if own not in handles:
            raise ReconfigureError(
                f"this group's own handle, {own}, is not among the {len(handles)} that are given"
            )
        prefix = f"{_SCHEME}/{handles[0].token}/{int(opts.uuid)}"
        return cls(handles[0], handles.index(own), len(handles), prefix)
