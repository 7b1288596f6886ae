"""Which way a worker's packets take, and the engine on it.

"shm"   shared memory, where the switch runs on this host, as this user, and takes part (docs/protocol.md)
"udp"   datagrams
"auto"  the first that works
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from switchagg.errors import SwitchError, UsageError
from switchagg.rules.planner import SkipPolicy
from worker_lib import _native
from worker_lib.transport import udp

if TYPE_CHECKING:
    from worker_lib.join import Membership

TRANSPORTS: Final = ("auto", "shm", "udp")


def checked_transport(given: str | None) -> str:
    """Returns the transport asked for: by argument, by SWITCHAGG_TRANSPORT, or "auto".

    Raises `UsageError` for any other word.
    """
    name = "transport" if given is not None else "SWITCHAGG_TRANSPORT"
    value = given if given is not None else os.environ.get("SWITCHAGG_TRANSPORT") or "auto"
    if value not in TRANSPORTS:
        raise UsageError(f"{name} is {value!r}; accepted: {', '.join(TRANSPORTS)}")
    return value


def open_engine(sock: udp.BoundSocket, member: Membership, transport: str) -> tuple[_native.Engine, str]:
    """Returns an engine on the socket that was admitted, and the transport it uses: "shm" or "udp".

    Raises as `resume_engine`.
    """
    engines: list[_native.Engine] = []
    used = _open(sock, member, transport, lambda given: engines.append(_native.Engine(sock.native, **given)))
    return engines[0], used


def resume_engine(
    engine: _native.Engine, sock: udp.BoundSocket, member: Membership, transport: str, *, lost: bool
) -> str:
    """Lets a frozen engine go on in a new generation; returns the transport it uses there.

    Args:
        engine: does nothing where it is broken.
        sock: the socket whose address the controller was told; the engine takes it.
        member: the place that the controller gave.
        transport: one of `TRANSPORTS`.
        lost: ranks are gone: what was called in the former generation ends as lost.

    Raises:
        SwitchError: no route to the switch, or it takes no link and `transport` is "shm".
    """
    return _open(sock, member, transport, lambda given: engine.resume(sock.native, lost=lost, **given))


def _open(
    sock: udp.BoundSocket, member: Membership, transport: str, use: Callable[[dict[str, Any]], object]
) -> str:
    """Calls `use` with the engine's arguments, for one transport or the other; returns which it was."""
    if transport != "udp" and member.switch_link:
        try:
            use(_arguments(member, member.slots, member.switch_link))
            return "shm"
        except OSError as error:
            if transport == "shm":
                raise SwitchError(
                    f"no link through shared memory to the switch at {member.switch_address}:"
                    f"{member.switch_port}: {error.strerror}. It has to run on this host, in the same "
                    'network namespace and as the same user; transport="udp" works from anywhere'
                ) from error
    elif transport == "shm":
        raise SwitchError(
            f"the switch at {member.switch_address}:{member.switch_port} takes no links through shared "
            'memory; transport="udp" works'
        )
    limit = udp.window_limit(
        words=member.words,
        workers=member.senders,
        own_buffer=sock.receive_buffer,
        switch_buffer=member.switch_receive_buffer,
    )
    try:
        use(_arguments(member, limit, ""))
        return "udp"
    except OSError as error:
        raise SwitchError(
            f"no route to the switch at {member.switch_address}:{member.switch_port}: {error.strerror}"
        ) from error


def _arguments(member: Membership, window_limit: int, link: str) -> dict[str, Any]:
    return {
        "switch_ip": int(ipaddress.IPv4Address(member.switch_address)),
        "switch_port": member.switch_port,
        "job": member.job,
        "token": member.token,
        "result_token": member.result_token,
        "base": member.base,
        "slots": member.slots,
        "words": member.words,
        "first_seq": member.first_seq,
        "rank": member.rank,
        "workers": member.world_size,
        "window_limit": window_limit,
        "link": link,
        "policy": SkipPolicy(member.block, member.dense, member.bits).word(),
    }
