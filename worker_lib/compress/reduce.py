"""One all-reduce of a vector that travels compressed.

    allreduce(session, x, compressor)
        prepare -> [share -> OR over ranks] -> encode -> SUM over ranks -> decode -> x

The switch does a sum and, for methods with a common scale, an OR before it. The asynchronous form too waits
for the OR at once: ranks must agree on the order of their collectives, and the sum cannot be sent before its
scale is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from switchagg.errors import UsageError
from worker_lib.checks import checked_out, raw_bytes
from worker_lib.compress.base import Compressor, Floats, Round
from worker_lib.plan import DType
from worker_lib.quantize import STORAGE, narrow, widen
from worker_lib.tensors import TensorView, view
from worker_lib.work import Stale, Withdrawn, Work, current

if TYPE_CHECKING:
    from worker_lib.session import Session

_FLOATS: Final = (DType.F32, DType.F64, DType.F16, DType.BF16)


def allreduce(
    session: Session,
    x: Any,
    compressor: Compressor,
    op: str = "sum",
    out: Any = None,
    timeout: float | None = None,
) -> Any:
    """Sums or averages a float array over all ranks, compressed on the wire; in place or into `out`.

    The result is the same to the bit on every rank.

    Args:
        session: the job.
        x: C-contiguous NumPy array or CPU torch tensor; float32, float64, float16 or bfloat16. The same shape
            and type at all ranks.
        compressor: this rank's, for this tensor; made alike at all ranks.
        op: "sum" or "avg".
        out: array like `x` for the result; `x` is then left as it is.
        timeout: seconds, for each of its collectives; the session's by default.

    Returns:
        `out` if given, else `x`.

    Raises:
        UsageError: an argument cannot work; nothing was sent.
        RangeError: the sum left the range of its lanes; at all ranks, and nothing was written.
        SwitchAggError: what `worker_lib.Work.wait` raises. The compressor's state has then not moved.
    """
    return start(session, x, compressor, op, out, timeout, background=False).wait()


def allreduce_async(
    session: Session,
    x: Any,
    compressor: Compressor,
    op: str = "sum",
    out: Any = None,
    timeout: float | None = None,
) -> Work:
    """Starts an `allreduce`; neither `x` nor `compressor` may be touched until the `Work` is waited for."""
    return start(session, x, compressor, op, out, timeout, background=True)


@current
def start(
    session: Session,
    x: Any,
    compressor: Compressor,
    op: str,
    out: Any,
    timeout: float | None,
    *,
    background: bool,  # noqa: ARG001  (`current` looks at it)
) -> Work:
    """See `allreduce`; `background`: whether the caller goes on meanwhile."""
    session._check_open()
    generation = session._generation
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
        return session._finished(o.owner, v, "allreduce")
    round = Round(session.rank, session.world_size)
    compressor.begin(session, generation)
    try:
        compressor.prepare(v.elements, round)
        flat = _flat(v, dtype)
        shared = compressor.share(flat, round)
        if shared is not None:
            shared = session.allreduce(shared, op="or", timeout=timeout)
            if session._generation != generation:
                raise Stale
        message = compressor.encode(flat, shared, round)
        total = np.empty_like(message.values)
        inner = session._allreduce(
            message.values, "sum", message.bits, message.blocks, total, message.block_size, timeout,
            residual=message.residual if session.world_size > 1 else None,
            generation=generation, tag=compressor.describe(), background=True,
        )  # fmt: skip
    except Withdrawn:
        compressor.end()
        raise Stale from None
    except BaseException:
        compressor.end()
        raise

    def finish() -> Any:
        result = compressor.decode(total, message, shared, round)
        if op == "avg" and round.world_size > 1:
            result = result / result.dtype.type(round.world_size)
        raw_bytes(o).view(STORAGE[dtype])[:] = narrow(result.astype(flat.dtype, copy=False), dtype)
        return o.owner

    return CompressedWork(inner, finish, compressor.end)


class CompressedWork(Work):
    """A reduction on its way whose sum has yet to be decoded, which whoever waits does.

    Args:
        inner: the sum.
        finish: decodes it; returns the result.
        release: called once, when it is over, well or not.
    """

    def __init__(self, inner: Work, finish: Callable[[], Any], release: Callable[[], None]) -> None:
        super().__init__(
            inner._place, inner._native, None, inner._label, (*inner._keep, finish), inner._seconds
        )
        self._finish = finish
        self._release = release
        self._turn = threading.Lock()
        self._over = False
        self._error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the sum is there, decodes it, and returns the result; see `Work.wait`.

        Raises:
            RangeError: as in `allreduce`. SwitchAggError: what `Work.wait` raises.
        """
        error: BaseException | None = None
        if not self._over and self._native is not None:
            try:
                self._place._wait(self._native, self._label, timeout, self._seconds)
            except BaseException as caught:
                error = caught
        with self._turn:
            if not self._over:
                self._settle(error, timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def _settle(self, error: BaseException | None, timeout: float | None) -> None:
        """Once: the result, or the error that every later `wait` raises too."""
        try:
            if error is None:
                self._result = self._finish()
            elif isinstance(error, Withdrawn) and self._again is not None:
                self._release()
                self._result = self._again().wait(timeout)
            else:
                raise error
        except BaseException as caught:
            self._error = caught
        self._over = True
        self._release()
        self._keep = ()
        self._again = None


def _flat(v: TensorView, dtype: DType) -> Floats:
    """The vector to compress: the array itself for float32 and float64, else a float32 copy."""
    stored = raw_bytes(v).view(STORAGE[dtype])
    return stored if dtype in (DType.F32, DType.F64) else widen(stored, dtype)
