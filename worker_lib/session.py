"""What a user holds: one worker's place in one job, with the collectives as methods.

    connect() -> Session --submit--> native engine (switchagg/native/worker/engine.h) --UDP--> switch
                    |
                    +-- Work: one collective on its way; keeps its tensors alive until it is done

This file checks arguments and says which elements go where. What travels, and when, is the engine's; waiting
and errors are `worker_lib/place.py`'s; and the other ranks are `worker_lib/keeper.py`'s.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from worker_lib import _native
from worker_lib.checks import (
    bytes_of,
    checked_bitwise,
    checked_block,
    checked_blocks,
    checked_floor,
    checked_memory,
    checked_out,
    checked_residual,
    copier,
    raw_bytes,
    remembered,
)
from worker_lib.keeper import Keeper
from worker_lib.messages import shape_fingerprint, stats_of
from worker_lib.place import Place
from worker_lib.plan import DType, Kind, ReduceOp
from worker_lib.sparse.collective import allreduce_sparse
from worker_lib.sparse.costs import SparseCosts
from worker_lib.tensors import SUMMABLE, TensorView, view
from worker_lib.work import Stale, Withdrawn, Work, current

__all__ = ["Session", "Work", "close_all"]

if TYPE_CHECKING:
    from types import TracebackType

    from worker_lib.compress.base import Compressor

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session(Place):
    """One worker's place in a job. Made by `worker_lib.connect`.

    Collectives must be called in the same order by all ranks. Calls from several threads are put in the order
    in which they arrive. A session belongs to the process that made it: a forked child may drop it but not
    use it.

    With ``on_loss="shrink"`` a job outlives the loss of ranks. Every rank that is left gets a
    `WorkerLostError` from the same collective, the first that was not complete anywhere; calls after it are
    for the ranks that are left, and ranks that come back take part from some later collective on. `rank`,
    `world_size` and `places` change inside calls only, never between two.

    Attributes:
        rank: this worker's number, 0 to world_size - 1.
        world_size: number of workers in the job.
        places: for each rank the one that it joined as; at first ``(0, 1, ..., world_size - 1)``.
        timeout: seconds that a collective may take unless the call says otherwise.
        transport: how packets travel: "shm", "udp", or "none" in a group of one.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        engine: _native.Engine | None,
        keeper: Keeper | None,
        policy: SkipPolicy,
        timeout: float,
        name: str,
        group: Callable[[Session, Sequence[int], int | None, int | None], Session] | None = None,
    ) -> None:
        super().__init__(
            rank, world_size, engine=engine, keeper=keeper, policy=policy, timeout=timeout, name=name
        )
        self._make_group = group
        self._sparse_costs: dict[Any, SparseCosts] = {}
        _sessions.add(self)

    @property
    def policy(self) -> SkipPolicy:
        """What the job skips now; the control plane may change it between two collectives.

        While asynchronous collectives are on their way, ranks may see a change at different moments; each
        collective is carried out alike by all ranks nevertheless.
        """
        if self._engine is None or self._pid != os.getpid():
            return self._admitted
        return SkipPolicy.from_word(self._engine.policy) or self._admitted

    @property
    def block_size(self) -> int:
        """Elements a block now, for calls that name no block size."""
        return self.policy.block

    @property
    def mask_block_size(self) -> int:
        """Elements a block in masks (`blocks=`) of calls that name no block size. It does not change."""
        return self._admitted.block

    # ------------------------------------------------------------------ collectives

    def allreduce(
        self,
        x: Any,
        op: str = "sum",
        bits: int | str | None = None,
        blocks: Any = "auto",
        out: Any = None,
        block_size: int | None = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
        residual: Any = None,
        memory: Any = None,
        compressor: Compressor | None = None,
    ) -> Any:
        """Sums, averages or ORs an array over all ranks, in place or into `out`.

        The result is the same to the bit on every rank. Integers are exact (modulo 2^32 or 2^64); floats are
        within the bound of docs/protocol.md. A chunk in which any rank has NaN or Inf is NaN at every rank.

        Args:
            x: C-contiguous NumPy array or CPU torch tensor, any shape; float32, float64, float16, bfloat16,
                int32, int64 (or unsigned). The same shape and type at all ranks.
            op: ``"sum"``, ``"avg"`` (floats only), or ``"or"``: bit by bit, of bool and of integers of any
                width, for which `bits`, masks, `block_size` and `residual` have no meaning.
            bits: width of the lanes on the wire. Floats: 32, 16 or 8, the narrow ones with stochastic
                rounding; float64 also 64, its default. Integers: their own width. ``"auto"``: what the
                job's policy finds fastest, no narrower than `min_bits`.
            blocks: ``"auto"``: the job's policy decides whether zero blocks are looked for, and not sent;
                ``"sparse"`` always does so, ``"dense"`` always sends everything; a bool array, one entry a
                block (of `block_size` or else `mask_block_size` elements), says which blocks may be
                non-zero on this rank (elements outside it must be +0: nobody looks at them).
            out: array like `x` for the result; `x` is then left as it is.
            block_size: elements a block, 1 to 65,536; by default what the job's policy says.
            timeout: seconds; the session's setting by default.
            min_bits: with ``bits="auto"``, the narrowest lanes that will do: 8, 16 (the default), 32 or 64.
            residual: for error feedback: float32 array of x's shape, zeroed by the caller; where this rank
                sends words it gets x less what the lanes carry. 16- and 8-bit lanes of float32, float16
                and bfloat16 only.
            compressor: how it travels, of `worker_lib.compress`; one for each tensor, made alike at all
                ranks. It decides on lanes and blocks itself. Floats only.
            memory: error feedback in one pass: float32 array of x's shape. It is added to x first; afterwards
                it holds what this rank did not send of that sum: what narrow lanes leave out, and blocks
                outside a mask. Any lanes of float32, float16 and bfloat16; instead of `residual`. Undefined
                after an error.

        Returns:
            `out` if given, else `x`.

        Raises:
            UsageError: an argument cannot work; nothing was sent. As a RangeError of some compressors, at all
                ranks: the sum is not in their range; nothing was written.
            MismatchError, WorkerLostError, CollectiveTimeout, SwitchError, SessionBrokenError: see
                `Work.wait`.
        """
        if compressor is not None:
            given = (bits, blocks, block_size, min_bits, residual, memory)
            return self._compressed(x, op, out, timeout, compressor, given, background=False).wait()
        return self._allreduce(
            x,
            op,
            bits,
            blocks,
            out,
            block_size,
            timeout,
            min_bits=min_bits,
            residual=residual,
            memory=memory,
            background=False,
        ).wait()

    def allreduce_async(
        self,
        x: Any,
        op: str = "sum",
        bits: int | str | None = None,
        blocks: Any = "auto",
        out: Any = None,
        block_size: int | None = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
        residual: Any = None,
        memory: Any = None,
        compressor: Compressor | None = None,
    ) -> Work:
        """Starts an `allreduce` and returns at once; `x` must not be touched until the `Work` is done.

        With a compressor: until it was waited for, and what needs a common scale agrees on that before this
        returns.
        """
        if compressor is not None:
            given = (bits, blocks, block_size, min_bits, residual, memory)
            return self._compressed(x, op, out, timeout, compressor, given, background=True)
        return self._allreduce(
            x,
            op,
            bits,
            blocks,
            out,
            block_size,
            timeout,
            min_bits=min_bits,
            residual=residual,
            memory=memory,
            background=True,
        )

    def allreduce_sparse(
        self,
        indices: Any,
        values: Any,
        rows: int,
        op: str = "sum",
        bits: int | None = None,
        *,
        result: str = "sparse",
        dense_over: str | float = "auto",
        timeout: float | None = None,
    ) -> Any:
        """Sums or averages some rows of a table over all ranks, each rank giving rows of its own.

        First the ranks' row numbers are ORed, as a bitmap. Then the rows that some rank has are summed, or,
        where these are too many for that to pay, the whole table. (SparCML, arXiv 1802.08021.) Integers are
        exact either way; a float's rounding depends on its chunk, as in `allreduce`, and so on what it
        travels with. Two collectives: ranks that call from several threads at once must order the calls.

        Args:
            indices: row numbers, 0 to rows - 1, integers of shape (k,), in any order; rows of a number that
                comes twice are added up. k may differ between ranks, and be 0.
            values: shape (k, *row), of a type that `allreduce` sums; (k,) for index-value pairs. Neither
                array is changed.
            rows: of the table, up to 2^48; with a dense sum or result, up to 2^32 elements.
            op, bits, timeout: as in `allreduce`.
            result: ``"sparse"``: rows of the union with their numbers; ``"dense"``: the table; ``"auto"``:
                the form that it was summed in.
            dense_over: share of rows from which the table is summed: ``"auto"`` takes the break-even of what
                sums and rows cost here, measured once (`worker_lib.sparse.SparseCosts`); 0 always sums the
                table, 1 never does.

        Returns:
            A `worker_lib.sparse.SparseRows`, or an array of shape (rows, *row); the same at every rank.

        Raises:
            UsageError: an argument cannot work; nothing was sent.
            MismatchError: ranks called it with other types, shapes or settings.
            WorkerLostError, CollectiveTimeout, SwitchError, SessionBrokenError: see `Work.wait`.
        """
        self._check_open()
        return allreduce_sparse(self, indices, values, rows, op, bits, result, dense_over, timeout)

    def broadcast(self, x: Any, root: int = 0, timeout: float | None = None) -> Any:
        """Copies rank `root`'s array to all ranks, byte for byte, in place.

        Args:
            x: C-contiguous array of any type; same shape and type at all ranks.
            root: rank whose contents win.
            timeout: seconds; the session's setting by default.

        Returns:
            `x`.

        Raises:
            UsageError: as in `allreduce`, or `root` is not a rank.
        """
        return self._broadcast(x, root, timeout, background=False).wait()

    def broadcast_async(self, x: Any, root: int = 0, timeout: float | None = None) -> Work:
        """Starts a `broadcast` and returns at once; `x` must not be touched until the `Work` is done."""
        return self._broadcast(x, root, timeout, background=True)

    @current
    def _broadcast(self, x: Any, root: int, timeout: float | None, *, background: bool) -> Work:
        self._check_open()
        if not isinstance(root, int) or not 0 <= root < self.world_size:
            raise UsageError(f"root is {root!r}; accepted: a rank, 0 to {self.world_size - 1}")
        here = self.rank == root
        v = view(x, "x", write=not here)
        if self.world_size == 1:
            return self._finished(x, v, "broadcast")
        words = -(-v.nbytes // 4)
        source, after = v.address, None
        keep: tuple[Any, ...] = (x,)
        if v.nbytes % 4:  # the wire moves whole words
            padded = np.zeros(words, np.uint32)
            if here:
                bytes_of(padded)[: v.nbytes] = raw_bytes(v)
            else:
                after = copier(raw_bytes(v), bytes_of(padded)[: v.nbytes])
            source, keep = padded.ctypes.data, (x, padded)
        work = self._submit(
            x, v, Kind.BROADCAST, "broadcast", timeout, keep, exact=True, root=root, count=words,
            source=source, in_range=(0, words) if here else (0, 0),
            target=source, out_range=(0, 0) if here else (0, words), zero_fill=not here,
            background=background,
        )  # fmt: skip
        work._after = after
        return work

    def allgather(self, x: Any, out: Any = None, timeout: float | None = None) -> Any:
        """Collects every rank's array, byte for byte.

        Args:
            x: C-contiguous array of any type; same shape and type at all ranks.
            out: array of shape (world_size, *x.shape) and x's type; made if None.
            timeout: seconds; the session's setting by default.

        Returns:
            `out`; row r is rank r's array.

        Raises:
            UsageError: as in `allreduce`, or `out` has another shape or type.
        """
        return self._allgather(x, out, timeout, background=False).wait()

    def allgather_async(self, x: Any, out: Any = None, timeout: float | None = None) -> Work:
        """Starts an `allgather` and returns at once; neither array may be touched until it is done."""
        return self._allgather(x, out, timeout, background=True)

    @current
    def _allgather(self, x: Any, out: Any, timeout: float | None, *, background: bool) -> Work:
        self._check_open()
        v = view(x, "x", write=False)
        shape = (self.world_size, *v.shape)
        if out is None:
            out = v.like(shape)
        o = checked_out(out, v, shape)
        if self.world_size == 1:
            raw_bytes(o)[:] = raw_bytes(v)
            return self._finished(out, v, "allgather")
        each = -(-v.nbytes // 4)
        n = self.world_size
        source, target, after = v.address, o.address, None
        keep: tuple[Any, ...] = (x, out)
        if v.nbytes % 4:
            part = np.zeros(each, np.uint32)
            bytes_of(part)[: v.nbytes] = raw_bytes(v)
            whole = np.empty((n, each), np.uint32)
            rows = whole.view(np.uint8).reshape(n, each * 4)[:, : v.nbytes]
            after = copier(raw_bytes(o).reshape(n, v.nbytes), rows)
            source, target, keep = part.ctypes.data, whole.ctypes.data, (x, out, part, whole)
        work = self._submit(
            out, v, Kind.ALLGATHER, "allgather", timeout, keep, exact=True, count=n * each,
            source=source, in_range=(self.rank * each, (self.rank + 1) * each),
            target=target, out_range=(0, n * each), zero_fill=True, background=background,
        )  # fmt: skip
        work._after = after
        return work

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        bits: int | str | None = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
    ) -> Any:
        """Sums or averages an array over all ranks; rank r gets the r-th of world_size equal parts.

        Args:
            x: as in `allreduce`; its first dimension is a multiple of world_size.
            out: array of shape (x.shape[0] / world_size, *x.shape[1:]) and x's type; made if None.
            op, bits, timeout, min_bits: as in `allreduce`.

        Returns:
            `out`.

        Raises:
            UsageError: as in `allreduce`, or the first dimension cannot be divided.
        """
        return self._reduce_scatter(x, out, op, bits, timeout, min_bits=min_bits, background=False).wait()

    def reduce_scatter_async(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        bits: int | str | None = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
    ) -> Work:
        """Starts a `reduce_scatter` and returns at once; neither array may be touched until it is done."""
        return self._reduce_scatter(x, out, op, bits, timeout, min_bits=min_bits, background=True)

    @current
    def _reduce_scatter(
        self,
        x: Any,
        out: Any,
        op: str,
        bits: int | str | None,
        timeout: float | None,
        *,
        min_bits: int | None = None,
        background: bool,
    ) -> Work:
        self._check_open()
        v = view(x, "x", write=False)
        n = self.world_size
        if not v.shape or v.shape[0] % n:
            raise UsageError(
                f"x has shape {v.shape}; reduce_scatter over {n} ranks needs a first dimension divisible "
                f"by {n}"
            )
        dtype, width, floor, reduce = self._lanes(v, op, bits, min_bits)
        shape = (v.shape[0] // n, *v.shape[1:])
        if out is None:
            out = v.like(shape)
        o = checked_out(out, v, shape)
        if n == 1:
            raw_bytes(o)[:] = raw_bytes(v)
            return self._finished(out, v, "reduce_scatter")
        part = v.elements // n
        return self._submit(
            out, v, Kind.REDUCE_SCATTER, "reduce_scatter", timeout, (x, out),
            dtype=dtype, bits=width, op=reduce, count=v.elements, source=v.address, in_range=(0, v.elements),
            target=o.address, out_range=(self.rank * part, (self.rank + 1) * part), zero_fill=True,
            auto_zeros=True, auto_block=True, auto_lanes=floor, background=background,
        )  # fmt: skip

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when every rank has called it."""
        self._barrier(timeout, background=False).wait()

    def barrier_async(self, timeout: float | None = None) -> Work:
        """Starts a `barrier`; its `Work` is done when every rank has called it."""
        return self._barrier(timeout, background=True)

    @current
    def _barrier(self, timeout: float | None, *, background: bool) -> Work:
        self._check_open()
        nothing = view(np.empty(0, np.uint32), "x", write=False)
        if self.world_size == 1:
            return self._finished(None, nothing, "barrier")
        return self._submit(
            None, nothing, Kind.BARRIER, "barrier", timeout, (), exact=True, background=background
        )

    def group(
        self, ranks: Sequence[int], *, slots: int | None = None, words: int | None = None
    ) -> Session | None:
        """A sub-group of this job's ranks, with its own slots on the switch.

        Every rank of this session calls it with the same list, also ranks that are not in it, and in the same
        order as other calls of `group`. The group's ranks are numbered in the list's order. Groups may
        overlap. A group's collectives are ordered among themselves only, so ranks that share several groups
        must not wait for them in a circle. The slots are given back when all its ranks have closed it.

        Args:
            ranks: different ranks of this session.
            slots: P, a power of two; as many as this session has by default. A window is half of them, so
                that many small groups do with few.
            words: K, 32-bit words a packet; as in this session by default.

        Returns:
            The group's session; None on ranks that are not in it.

        Raises:
            UsageError: a rank twice, or out of range.
            SwitchError: the switch has no room for it.
        """
        self._check_open()
        ranks = [int(r) for r in ranks]
        if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < self.world_size for r in ranks):
            raise UsageError(
                f"ranks is {ranks}; accepted: different ranks of this session, 0 to {self.world_size - 1}"
            )
        if self._make_group is None:
            raise UsageError(
                "a group of a group is not supported; make it from the session that connect() returned"
            )
        self._groups_made += 1
        if self.rank not in ranks:
            return None
        return self._make_group(self, ranks, slots, words)

    # ------------------------------------------------------------------ looking and leaving

    def stats(self) -> dict[str, Any]:
        """Counters since the session began: packets, bytes, blocks, time.

        Returns:
            ``packets_sent``, ``packets_received``, ``packets_data``, ``packets_skip``; ``bytes_sent`` and
            ``bytes_received`` (UDP payload); ``retransmissions``; ``rtt_seconds`` (smoothed);
            ``blocks_total``,
            ``blocks_union`` (non-zero at any rank) and ``blocks_skipped``; ``collectives``; ``seconds``: a
            dict of time spent in
            ``scan``, ``quantize``, ``wire`` (send and receive calls), ``wait`` (for packets) and ``decode``;
            ``window`` (packets allowed in flight); ``transport``. All zero in a group of one.
        """
        if self._pid != os.getpid():
            self._check_open()  # a lock of the engine may be held by a thread that the child does not have
        raw: dict[str, int] = self._engine.stats() if self._engine is not None else {}
        return {**stats_of(raw), "transport": self.transport}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ inside

    def _compressed(
        self,
        x: Any,
        op: str,
        out: Any,
        timeout: float | None,
        compressor: Compressor,
        given: tuple[Any, ...],
        *,
        background: bool,
    ) -> Work:
        from worker_lib.compress.reduce import start

        names = ("bits", "blocks", "block_size", "min_bits", "residual", "memory")
        for name, value in zip(names, given, strict=True):
            if value is not None and not (name == "blocks" and isinstance(value, str) and value == "auto"):
                raise UsageError(
                    f"{name} is given with a compressor, which decides on lanes and blocks itself"
                )
        return start(self, x, compressor, op, out, timeout, background=background)

    @current
    def _allreduce(
        self,
        x: Any,
        op: str,
        bits: int | str | None,
        blocks: Any,
        out: Any,
        block_size: int | None,
        timeout: float | None,
        *,
        min_bits: int | None = None,
        residual: Any = None,
        memory: Any = None,
        union: np.ndarray[Any, Any] | None = None,  # words of a bitmap, for the union of all ranks' blocks
        generation: int | None = None,  # that x was made for
        tag: str = "",  # what x means, for ranks that disagree on it
        background: bool,
    ) -> Work:
        self._check_open()
        if generation not in (None, self._generation):
            raise Withdrawn("the ranks of this job are others than a moment ago")
        v = view(x, "x", write=out is None)
        if op == "or":
            given = {"bits": bits, "min_bits": min_bits, "block_size": block_size, "residual": residual}
            given["memory"] = memory
            return self._or(x, v, blocks, out, timeout, given, background=background)
        dtype, width, floor, reduce = self._lanes(v, op, bits, min_bits)
        left = None if residual is None else checked_residual(residual, v, dtype, width)
        if memory is not None:
            left = checked_memory(memory, residual, v, dtype)
        block = self._admitted.block if block_size is None else checked_block(block_size)
        sparse, mask = checked_blocks(blocks, v.elements, block)
        o = v if out is None else checked_out(out, v, v.shape)
        if left is not None and left.overlaps(o):
            name = "residual" if memory is None else "memory"
            raise UsageError(f"{name} overlaps the result; pass an array of its own")
        if self.world_size == 1:
            if memory is not None:
                remembered(v, o, memory)
            elif o is not v:
                raw_bytes(o)[:] = raw_bytes(v)
            return self._finished(o.owner, v, "allreduce")
        return self._submit(
            o.owner, v, Kind.ALLREDUCE, "allreduce", timeout, (x, out, mask, residual, memory, union),
            dtype=dtype, bits=width, op=reduce, sparse=sparse is not False, block=block,
            auto_zeros=sparse is None, auto_block=block_size is None and mask is None, auto_lanes=floor,
            count=v.elements, source=v.address, in_range=(0, v.elements),
            target=o.address, out_range=(0, v.elements), zero_fill=o is not v,
            mask=0 if mask is None else mask.ctypes.data, background=background,
            tag=tag, residual=0 if left is None else left.address, feedback=memory is not None,
            union=0 if union is None else union.ctypes.data,
        )  # fmt: skip

    def _or(
        self,
        x: Any,
        v: TensorView,
        blocks: Any,
        out: Any,
        timeout: float | None,
        given: dict[str, Any],
        *,
        background: bool,
    ) -> Work:
        sparse = checked_bitwise(v, blocks, given)
        o = v if out is None else checked_out(out, v, v.shape)
        if self.world_size == 1:
            if o is not v:
                raw_bytes(o)[:] = raw_bytes(v)
            return self._finished(o.owner, v, "allreduce")
        words = -(-v.nbytes // 4)
        source, target, after = v.address, o.address, None
        keep: tuple[Any, ...] = (x, out)
        if v.nbytes % 4:  # the wire moves whole words
            padded = np.zeros(words, np.uint32)
            bytes_of(padded)[: v.nbytes] = raw_bytes(v)
            after = copier(raw_bytes(o), bytes_of(padded)[: v.nbytes])
            source = target = padded.ctypes.data
            keep = (x, out, padded)
        work = self._submit(
            o.owner, v, Kind.ALLREDUCE, "allreduce", timeout, keep, exact=True, count=words,
            sparse=sparse is not False, auto_zeros=sparse is None, auto_block=True,
            source=source, in_range=(0, words), target=target, out_range=(0, words),
            zero_fill=source != target, background=background,
        )  # fmt: skip
        work._after = after
        return work

    def _finished(self, result: Any, v: TensorView, name: str) -> Work:
        """What a group of one gives back: there is nobody to wait for."""
        return Work(self, None, result, (name, v.dtype, v.shape, ()), ())

    def _lanes(
        self, v: TensorView, op: str, bits: int | str | None, min_bits: int | None
    ) -> tuple[DType, int, int, ReduceOp]:
        """The element type, the lanes, the narrowest that the policy may choose (0: none), the reduction."""
        dtype = v.summable
        if dtype is None:
            raise UsageError(
                f"x has type {v.dtype}, which cannot be summed; accepted: {', '.join(SUMMABLE)} "
                "(any type can be broadcast and gathered)"
            )
        if op not in ("sum", "avg"):
            raise UsageError(f"op is {op!r}; accepted: 'sum', 'avg' (and 'or' in allreduce)")
        integer = dtype in (DType.I32, DType.I64)
        if integer and op == "avg":
            raise UsageError(
                f"op is 'avg' on {v.dtype}; an average of integers is not an integer: sum them and divide"
            )
        reduce = ReduceOp.AVG if op == "avg" else ReduceOp.SUM
        if isinstance(bits, str) or min_bits is not None:
            return dtype, dtype.lanes[0], checked_floor(bits, min_bits), reduce
        accepted = dtype.lanes
        width = accepted[0] if bits is None else bits
        if width not in accepted:
            widths = ", ".join(map(str, accepted))
            raise UsageError(f"bits is {bits!r}; accepted for {v.dtype}: {widths}, or 'auto'")
        most = 2 ** (width - 1) - 1
        if width < 32 and self.world_size > most:
            raise UsageError(
                f"bits is {width}: {self.world_size} workers cannot share lanes so narrow; accepted: up to "
                f"{most} workers, or more bits"
            )
        return dtype, width, 0, reduce

    def _submit(
        self,
        result: Any,
        v: TensorView,
        kind: Kind,
        name: str,
        timeout: float | None,
        keep: tuple[Any, ...],
        *,
        exact: bool = False,
        dtype: DType = DType.RAW,
        bits: int = 32,
        op: ReduceOp = ReduceOp.OR,
        root: int = 0,
        sparse: bool = True,
        block: int | None = None,
        auto_zeros: bool = False,
        auto_block: bool = False,
        auto_lanes: int = 0,
        count: int = 0,
        source: int = 0,
        in_range: tuple[int, int] = (0, 0),
        target: int = 0,
        out_range: tuple[int, int] = (0, 0),
        zero_fill: bool = False,
        mask: int = 0,
        tag: str = "",
        residual: int = 0,
        feedback: bool = False,
        union: int = 0,
        background: bool = False,
    ) -> Work:
        seconds = self.timeout if timeout is None else timeout
        if not seconds > 0:
            raise UsageError(f"timeout is {seconds!r}; accepted: seconds greater than 0")
        # For exact moves the engine sees only words, so the element type is part of the shape's fingerprint.
        shape = (v.dtype, *v.shape) if exact else (tag, *v.shape) if tag else tuple(v.shape)
        assert self._engine is not None
        call = _native.Call(
            kind=int(kind), op=int(op), dtype=int(dtype), bits=bits, root=root, sparse=sparse,
            block=self._admitted.block if block is None else block, count=count, fingerprint_count=v.elements,
            shape_crc=shape_fingerprint(shape), workers=self.world_size, rank=self.rank,
            policy=0, input=source, in_begin=in_range[0], in_end=in_range[1],
            output=target, out_begin=out_range[0], out_end=out_range[1], mask=mask, zero_fill=zero_fill,
            auto_zeros=auto_zeros, auto_block=auto_block, auto_lanes=auto_lanes,
        )  # fmt: skip
        call.residual, call.feedback, call.union_out = residual, feedback, union
        moved = exact and kind is not Kind.ALLREDUCE
        called = f"{name} through {tag}" if tag else name
        label = (called, v.dtype, tuple(v.shape), () if moved else (op, "auto" if auto_lanes else bits))
        me = threading.get_ident()
        with self._lock:
            self._inside.add(me)
            try:
                if self._closed:
                    self._check_open()
                native = None
                if self._keeper is None or self._keeper.owed is None:
                    native = self._engine.submit(
                        call, int(min(seconds, 1e9) * 1e9), background, self._generation
                    )
            finally:
                self._inside.discard(me)
            if native is None:
                raise Stale
            work = Work(self, native, result, label, (*keep, v.owner), seconds)
            if background:
                self._pending.append(work)
        self._forget_done()
        return work

    def _set_policy(self, word: int) -> None:
        """What rank 0's headers carry from now on; every rank follows it from the collective after. Any
        thread may call it; on other ranks it does nothing."""
        if SkipPolicy.from_word(word) is None:
            raise UsageError(f"policy word is 0x{word:08x}; accepted: one that is marked valid")
        if self._engine is not None:
            self._engine.set_policy(word)

    def _floor(self, nbytes: int, timeout: float | None = None) -> None:
        """For the benchmark: as many data packets as `nbytes` need, both ways, words left untouched."""
        self._check_open()
        words = -(-nbytes // 4)
        v = TensorView(None, 0, "untouched", (nbytes,), nbytes, nbytes)
        self._submit(
            None, v, Kind.FLOOR, "floor", timeout, (),
            op=ReduceOp.SUM, dtype=DType.RAW, sparse=False, count=words,
        ).wait()  # fmt: skip


def _forget_sessions_in_child() -> None:
    for session in list(_sessions):
        session._after_fork()


os.register_at_fork(after_in_child=_forget_sessions_in_child)


def close_all() -> None:
    """Closes every session of this process. Runs at exit: leaving without `close` is still leaving."""
    for session in list(_sessions):
        if session._pid == os.getpid():
            session.close()
