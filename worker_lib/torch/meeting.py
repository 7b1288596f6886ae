"""A part of the store that only the ranks of this life of a job have.

torchrun may start the ranks again with the store of the ones that died, keys and all (PyTorch 2.13,
--standalone), and gloo then looks for the dead at their old addresses. So the ranks agree on a fresh prefix:

    rank 0  "leader" = N, a random number                others  read "leader": N, perhaps a dead one's
            wait for "N/joined/r" of every rank                  "N/joined/r" = R, a random number
            "N/go" = all the Rs                                  wait for "N/go": is R in it? If not,
                                                                 N is old: read "leader" again
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from switchagg.errors import SwitchError

_LOOK: Final = 1.0  # seconds until a rank asks again who leads
_PAUSE: Final = 0.02


def fresh(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Returns a prefix of `store` whose keys nobody has written before these ranks met.

    Raises `SwitchError` if they do not all come within `timeout`.
    """
    store = dist.PrefixStore("switchagg", store)
    deadline = time.monotonic() + timeout.total_seconds()
    number = _lead(store, size, deadline) if rank == 0 else _follow(store, rank, deadline)
    return dist.PrefixStore(number, store)


def _lead(store: Any, size: int, deadline: float) -> str:
    number = secrets.token_hex(8)
    store.set("leader", number)
    joined = {}
    for rank in range(1, size):
        key = f"{number}/joined/{rank}"
        if not _wait(store, key, deadline):
            missing = [r for r in range(1, size) if not store.check([f"{number}/joined/{r}"])]
            raise SwitchError(
                f"ranks {missing} of {size} did not come to the process group within its timeout"
            )
        joined[str(rank)] = store.get(key).decode()
    store.set(f"{number}/go", json.dumps(joined))
    return number


def _follow(store: Any, rank: int, deadline: float) -> str:
    me = secrets.token_hex(8)
    asked = ""
    while True:
        if not _wait(store, "leader", deadline):
            raise SwitchError("rank 0 did not come to the process group in time")
        number = store.get("leader").decode()
        if number != asked:
            store.set(f"{number}/joined/{rank}", me)
            asked = number
        go = f"{number}/go"
        if _wait(store, go, min(deadline, time.monotonic() + _LOOK)):
            if json.loads(store.get(go)).get(str(rank)) == me:
                return str(number)
            time.sleep(_PAUSE)  # of a life that is over: the leader of this one has yet to come
        if time.monotonic() >= deadline:
            raise SwitchError("not all ranks came to the process group in time")


def _wait(store: Any, key: str, deadline: float) -> bool:
    """Whether a key is there before the deadline."""
    pause = 0.005
    while not store.check([key]):  # the store's own wait prints warnings when it runs out
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return True
