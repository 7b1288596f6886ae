"""How a collective is named in messages, and what its session's counters are called."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from worker_lib import _native
from worker_lib.plan import ReduceOp, differing_fields

# A call: name, type, shape, and for sums their kind and bits. Made into text only where a message needs it.
Label = tuple[str, str, tuple[int, ...], tuple[()] | tuple[ReduceOp, int | str]]


@lru_cache(maxsize=256)
def shape_fingerprint(shape: tuple[Any, ...]) -> int:
    """The plan's word for a shape, and for exact moves the type."""
    return zlib.crc32(repr(shape).encode())


def called(label: Label) -> str:
    """A call as messages name it: "allreduce(float32, shape (10,), sum, 32 bits)"."""
    name, dtype, shape, sum_of = label
    how = ""
    if sum_of:
        how = ", or" if sum_of[0] is ReduceOp.OR else f", {sum_of[0].name.lower()}, {sum_of[1]} bits"
    return f"{name}({dtype}, shape {shape}{how})"


def ranks_text(ranks: tuple[int, ...]) -> str:
    """ "rank 2" or "ranks 2, 3"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def mismatch_message(native: _native.Collective, name: str, rank: int) -> str:
    """What ranks disagree on, and what this one called."""
    fields = differing_fields(native.difference)
    return (
        f"ranks called different things: they disagree on {', '.join(fields)}. Rank {rank} called {name}. "
        "Nothing was changed; the session can go on."
    )


def stats_of(raw: dict[str, int]) -> dict[str, Any]:
    """The engine's counters as `Session.stats` gives them."""

    def seconds(*keys: str) -> float:
        return sum(raw.get(k, 0) for k in keys) / 1e9

    names = (
        "collectives", "packets_sent", "packets_received", "packets_data", "packets_skip",
        "bytes_sent", "bytes_received", "retransmissions", "results_ignored",
        "send_calls", "receive_calls", "refused", "blocks_total", "blocks_union",
    )  # fmt: skip
    out: dict[str, Any] = {name: raw.get(name, 0) for name in names}
    out["blocks_skipped"] = out["blocks_total"] - out["blocks_union"]
    out["rtt_seconds"] = seconds("rtt_ns")
    out["window"] = raw.get("cwnd", 0)
    out["seconds"] = {
        "scan": seconds("scan_ns"),
        "quantize": seconds("quantize_ns"),
        "wire": seconds("send_ns", "receive_ns"),
        "wait": seconds("wait_ns"),
        "decode": seconds("decode_ns"),
    }
    return out
