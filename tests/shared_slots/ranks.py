"""The ranks of a job with shared slots, as processes that are killed and stopped. Every sum is checked."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

import worker_lib
from switchagg.errors import SwitchAggError, WorkerLostError

WORKERS: Final = 3
SECONDS: Final = 60.0
DEADLINE: Final = 3.0  # seconds; a busy computer keeps no process waiting for so long
# A packet and less, some packets, more than a window; the last three are summed without slots.
# float32 holds all of these numbers and their sums exactly.
_SIZES: Final = (2, 500, 3000, 60_000, 70_000, 300_000)
_TYPES: Final = (np.int32, np.float32)

_Values = np.ndarray[Any, np.dtype[Any]]


def _values(seed: int, call: int, rank: int, count: int, dtype: Any) -> _Values:
    """Returns the input of a rank: a bit that is its own, then random numbers."""
    drawn = np.random.default_rng([seed, call, rank]).integers(-(2**20), 2**20, count, np.int32)
    drawn[0] = 1 << 8 * rank
    return drawn.astype(dtype)


def _check(x: _Values, seed: int, call: int, rank: int, members: int) -> None:
    """Raises AssertionError unless `x` is the sum of `members` ranks, each once, and this one among them."""
    bits = int(x[0])
    ranks = [each for each in range(WORKERS) if bits >> 8 * each & 0xFF]
    assert bits == sum(1 << 8 * each for each in ranks), f"call {call}: {bits:#x}"
    assert rank in ranks, f"call {call}: without rank {rank}, but of {ranks}"
    assert len(ranks) == members, f"call {call}: of {ranks}, where there are {members}"
    right = np.sum([_values(seed, call, each, len(x), x.dtype) for each in ranks], axis=0, dtype=x.dtype)
    assert np.array_equal(x, right), f"call {call}: a wrong sum of {len(x)} elements"


def run(pipe: Connection, url: str, job: str, rank: int, seed: int) -> None:
    """Reduces until the parent says at which call to stop, or until the job has lost this rank.

    Says "ready", then how many calls are done whenever the parent sends None, and last "over", "lost: ..." or
    "wrong: ...".
    """
    try:
        pipe.send(_reduce(pipe, url, job, rank, seed))
    except SwitchAggError as error:
        pipe.send(f"lost: {error}")
    except BaseException as error:
        pipe.send(f"wrong: rank {rank}: {error!r}")


def _reduce(pipe: Connection, url: str, job: str, rank: int, seed: int) -> str:
    settings: dict[str, Any] = {
        "timeout": SECONDS,
        "on_loss": "shrink",
        "deadline": DEADLINE,
        "transport": "slots",
    }
    with worker_lib.connect(url, job, rank, WORKERS, **settings) as session:
        assert session.transport == "slots"
        pipe.send("ready")
        call, last = 0, None
        while last is None or call < last:
            if pipe.poll():
                last = pipe.recv()
                if last is None:
                    pipe.send(call)
                continue
            rng = np.random.default_rng([seed, call])
            x = _values(seed, call, rank, int(rng.choice(_SIZES)), rng.choice(np.array(_TYPES)))
            try:
                session.allreduce(x, bits=32)
            except WorkerLostError:  # at every survivor of the same call
                assert session.world_size < WORKERS
            else:
                _check(x, seed, call, rank, session.world_size)
            call += 1
    return "over"
