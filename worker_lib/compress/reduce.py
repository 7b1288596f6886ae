"""One all-reduce of a vector that travels compressed.

    session.allreduce(x, compressor=compressor)
        prepare -> [share -> OR or SUM over ranks] -> encode -> SUM over ranks -> decode -> x

The switch does a sum and, for methods with a common scale, an OR before it, or for PowerSGD another sum. The
asynchronous form too waits for the first at once: ranks must agree on the order of their collectives, and the
second cannot be sent before the first is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from switchagg.errors import UsageError
from worker_lib.arguments import SumOptions, TensorView, checked_out, raw_bytes, view
from worker_lib.calls import prepare_sum
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.plan import DType, Kind
from worker_lib.quantize import STORAGE, narrow, widen
from worker_lib.session_state import SessionState
from worker_lib.work import Agreed, MembershipChanged, Prepared, Retry, Work

if TYPE_CHECKING:
    from worker_lib.session import Session

_FLOATS: Final = (DType.F32, DType.F64, DType.F16, DType.BF16)


def start(
    session: Session,
    x: Any,
    compressor: Compressor,
    op: str,
    out: Any,
    timeout: float | None,
    *,
    background: bool,
) -> Work:
    """Starts `Session.allreduce` with a compressor; `background`: True if the caller goes on meanwhile.

    The work raises `RangeError` if the sum left the range of its lanes; at all ranks, and nothing was
    written. After any other error than that the compressor's state has not moved.
    """
    begun, scale = Agreed(), Agreed()
    return Work(
        session._state,
        lambda: _prepare(session, x, compressor, op, out, timeout, begun, scale),
        timeout,
        background=background,
    )


def _prepare(
    session: Session,
    x: Any,
    compressor: Compressor,
    op: str,
    out: Any,
    timeout: float | None,
    begun: Agreed,
    scale: Agreed,
) -> Prepared:
    """Prepares the sum, after the OR; `begun` is the generation of the round's begin, `scale` that OR."""
    state = session._state
    v = view(x, "x", write=out is None)
    dtype = v.summable
    if dtype not in _FLOATS:
        raise UsageError(
            f"x has type {v.dtype}; accepted with a compressor: float32, float64, float16, bfloat16"
        )
    if not isinstance(compressor, Compressor):
        raise UsageError(
            f"compressor is a {type(compressor).__name__}; accepted: a worker_lib.compress.Compressor"
        )
    if op not in ("sum", "avg"):
        raise UsageError(f"op is {op!r}; accepted: 'sum', 'avg'")
    o = v if out is None else checked_out(out, v, v.shape)
    if not v.elements:
        return Prepared(None, o.owner, ("allreduce", v.dtype, v.shape, ()))
    round = Round(state.rank, state.world_size)
    compressor.begin(session, begun.get(state, lambda: state.generation))
    try:
        compressor.prepare(v.elements, round)
        flat = _flat(v, dtype)
        shared = compressor.share(flat, round)
        if shared is not None:
            own, tag = shared, compressor.tag()
            try:
                shared = scale.get(state, lambda: _agreed(state, own, round, tag, timeout))
            except MembershipChanged:
                raise Retry from None
        message = compressor.encode(flat, shared, round)
        total = np.empty_like(message.values)
        prepared = prepare_sum(
            state,
            message.values,
            total,
            SumOptions(
                "sum", message.bits, None, message.blocks, message.block_size,
                message.memory if round.world_size > 1 else None, tag=compressor.tag(),
                kind=Kind.COMPRESSED,
            ),
        )  # fmt: skip
    except BaseException:
        compressor.end()
        raise

    def finish() -> Any:
        result = compressor.decode(total, message, shared, round)
        if op == "avg" and round.world_size > 1:
            result = result / result.dtype.type(round.world_size)
        raw_bytes(o).view(STORAGE[dtype])[:] = narrow(result.astype(flat.dtype, copy=False), dtype)
        return o.owner

    prepared.finish, prepared.release = finish, compressor.end
    return prepared


def _agreed(
    state: SessionState, own: Words | Message, round: Round, tag: str, timeout: float | None
) -> Words:
    """The OR of all ranks' words, in place, or the SUM of messages; for the ranks that `round` is of."""

    def prepare() -> Prepared:
        if (state.rank, state.world_size) != (round.rank, round.world_size):
            raise MembershipChanged
        if not isinstance(own, Message):
            return prepare_sum(state, own, None, SumOptions("or", tag=tag, kind=Kind.COMPRESSED))
        options = SumOptions("sum", own.bits, None, own.blocks, own.block_size, tag=tag, kind=Kind.COMPRESSED)
        return prepare_sum(state, own.values, np.empty_like(own.values), options)

    found: Words = Work(state, prepare, timeout, background=False).wait()
    return found


def _flat(v: TensorView, dtype: DType) -> Floats:
    """The vector to compress: the array itself for float32 and float64, else a float32 copy."""
    stored = raw_bytes(v).view(STORAGE[dtype])
    return stored if dtype in (DType.F32, DType.F64) else widen(stored, dtype)
