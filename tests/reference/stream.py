"""The stream of one collective: the elements of the union's blocks, packet by packet, out and back.

    x --quantize--> q --pack--> words of packets  --(switch)-->  words --unpack--> sums --dequantize--> result

Puts `schedule`, `plan` and `quantize` together, on whole arrays. In the engine it is
`switchagg/native/worker/stream.cpp`, a packet at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import elements_per_packet
from tests.reference.plan import Agreed, Call
from tests.reference.quantize import dequantize, pack, quantize, special_words, unpack, write_specials
from tests.reference.schedule import Schedule
from worker_lib.plan import NO_EXPONENT, DType, ReduceOp, Words
from worker_lib.quantize import STORAGE, Values, dither_key


def schedule(call: Call, agreed: Agreed, words: int) -> Schedule:
    """The elements that each packet carries, with K = `words`."""
    return Schedule(
        call.count, call.block, elements_per_packet(words, call.bits), agreed.union if call.sparse else None
    )


def encode(
    call: Call,
    agreed: Agreed,
    x: Values,
    own: npt.NDArray[np.bool_],
    *,
    words: int,
    workers: int,
    rank: int,
) -> list[Words | None]:
    """One rank's packets; None for a SKIP.

    Args:
        call: what all ranks called.
        agreed: what its plan said.
        x: this rank's elements, of shape (count,), typed as `STORAGE` says; for exact moves, zero where it
            has none.
        own: bool of shape (blocks,): this rank's non-zero blocks; not looked at where every block is sent.
        words: K.
        workers, rank: n, and this rank.
    """
    plan = schedule(call, agreed, words)
    index = plan.stream()
    q = quantize(
        x[index],
        _exponents(call, agreed, index),
        dtype=call.dtype,
        bits=call.bits,
        workers=workers,
        index=index,
        key=dither_key(call.position, rank),
    )
    if call.sparse:
        q = np.where(own[index // call.block], q, q.dtype.type(0))
    lanes = np.zeros(plan.packets * plan.per_packet, q.dtype)
    lanes[: q.size] = q
    packed = pack(lanes.reshape(plan.packets, plan.per_packet), call.bits, words)
    skipped = plan.skips(own) if call.sparse else np.zeros(plan.packets, np.bool_)
    looked_at = np.where(np.repeat(own, call.block)[: call.count], x, x.dtype.type(0)) if call.sparse else x
    specials = np.zeros(special_packets(call, agreed, words) * words, np.uint32)
    for i, chunk in enumerate(np.flatnonzero(agreed.special)):
        bits = special_words(looked_at[chunk * call.chunk :][: call.chunk], call.dtype, call.chunk)
        specials[i * bits.size :][: bits.size] = bits
    first = [packet if packet.any() else None for packet in specials.reshape(-1, words)]
    return first + [None if skip else packet for skip, packet in zip(skipped, packed, strict=True)]


def special_packets(call: Call, agreed: Agreed, words: int) -> int:
    """The number of a stream's first packets, which are reduced with OR: two bits an element."""
    return -(-int(agreed.special.sum()) * call.chunk // 16 // words)


def left_out(
    call: Call, agreed: Agreed, x: Values, own: npt.NDArray[np.bool_], *, workers: int, rank: int
) -> npt.NDArray[np.float32]:
    """The part of x that this rank's packets do not carry: what error feedback remembers.

    Args:
        call, agreed, own, workers, rank: as in `encode`.
        x: float32; with error feedback `quantize.remembered` of the tensor, whatever the call's type.

    Returns:
        Of shape (count,): all of x in blocks that this rank did not send, x less what its lanes stand for
        where they are narrow, 0 where they are wide and for NaN and Inf.
    """
    index = np.arange(call.count, dtype=np.int64)
    exponent = _exponents(call, agreed, index)
    sent = own[index // call.block] if call.sparse else np.ones(call.count, np.bool_)
    left = np.zeros(call.count, np.float32)
    if call.bits < 32:
        q = quantize(
            x, exponent, dtype=DType.F32, bits=call.bits, workers=workers,
            index=index, key=dither_key(call.position, rank),
        )  # fmt: skip
        left = x - dequantize(q, exponent, dtype=DType.F32, bits=call.bits, workers=workers)
    left[~np.isfinite(x)] = 0
    return np.where(sent, left, x).astype(np.float32)


def decode(
    call: Call, agreed: Agreed, results: Sequence[Words | None], *, words: int, workers: int
) -> Values:
    """The result, of shape (count,): +0 where no rank had data; NaN and Inf as IEEE 754 sums them.

    Args:
        call, agreed, words, workers: as in `encode`.
        results: the RESULT of every packet, in order; None is one without words.

    Raises:
        UsageError: not as many results as the stream has packets.
    """
    plan = schedule(call, agreed, words)
    first = special_packets(call, agreed, words)
    if len(results) != first + plan.packets:
        raise UsageError(f"{len(results)} results of a stream of {first + plan.packets} packets")
    empty = np.zeros(words, np.uint32)
    specials, results = [empty if r is None else r for r in results[:first]], results[first:]
    out = np.zeros(call.count, STORAGE[call.dtype])
    index = plan.stream()
    if plan.packets:
        received = np.stack([np.zeros(words, np.uint32) if r is None else r for r in results])
        total = unpack(received, call.bits).reshape(-1)[: index.size]
        out[index] = dequantize(
            total,
            _exponents(call, agreed, index),
            dtype=call.dtype,
            bits=call.bits,
            workers=workers,
            op=call.op,
        )
    bits = np.concatenate([empty, *specials])[words:]
    for i, chunk in enumerate(np.flatnonzero(agreed.special)):
        part = out[chunk * call.chunk :][: call.chunk]
        write_specials(part, bits[i * call.chunk // 16 :][: call.chunk // 16], call.dtype)
    return out


def _exponents(call: Call, agreed: Agreed, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
    """Of each element's chunk."""
    if call.op is ReduceOp.OR or not call.scaled:
        return np.full(index.shape, NO_EXPONENT, np.int16)
    return agreed.exponents[index // call.chunk]
