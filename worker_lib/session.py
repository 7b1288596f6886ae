"""The collectives of one worker in one job.

    connect() -> Session -- prepares a call --> Work --> native engine --UDP, shared memory--> switch
                    |                            |
                    +------- SessionState -------+       ranks, engine, the reason of a session's end

`worker_lib/calls.py`, `extrema.py` and `sized.py` choose the elements that each rank sends and receives.
Waiting, and the errors of it, are in `worker_lib/work.py`; packets and their order are the engine's.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from worker_lib import calls, extrema, sized
from worker_lib.arguments import SumOptions, checked_accuracy
from worker_lib.plan import Kind
from worker_lib.session_state import Begun, CollectiveRecord, SessionState
from worker_lib.sparse import SparseCosts, allreduce_sparse
from worker_lib.work import Agreed, Prepared, Work

if TYPE_CHECKING:
    from types import TracebackType

    from worker_lib.compress.base import Compressor

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """One worker in a job. Made by `worker_lib.connect`.

    Collectives must be called in the same order by all ranks. Calls from several threads are put in the order
    in which they arrive. A session belongs to the process that made it: a forked child may drop it but not
    use it.

    With ``async_op=True`` a collective returns a `Work` at once, and its arrays must not be touched until
    that is done; otherwise it waits and returns the result.

    With ``on_loss="shrink"`` a job outlives the loss of ranks. Every rank that is left gets a
    `WorkerLostError` from the same collective, the first that was not complete anywhere; calls after it are
    for the ranks that are left, and ranks that come back take part from some later collective on. `rank`,
    `world_size` and `places` change inside calls only, never between two.
    """

    def __init__(
        self,
        state: SessionState,
        group: Callable[[Session, Sequence[int], int | None, int | None], Session] | None = None,
    ) -> None:
        self._state = state
        self._make_group = group
        self._sparse_costs: dict[Any, SparseCosts] = {}
        _sessions.add(self)

    @property
    def rank(self) -> int:
        """This worker's number, 0 to world_size - 1."""
        return self._state.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the job."""
        return self._state.world_size

    @property
    def places(self) -> tuple[int, ...]:
        """For each rank the one that it joined as; at first ``(0, 1, ..., world_size - 1)``."""
        return self._state.places

    @property
    def timeout(self) -> float:
        """Seconds that a collective may take unless the call says otherwise."""
        return self._state.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._state.timeout = seconds

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._state.name

    @property
    def transport(self) -> str:
        """The way of the packets: "shm", "slots", "udp", "xdp", "dpdk"; "none" in a group of one."""
        return "none" if self._state.monitor is None else self._state.monitor.transport

    @property
    def policy(self) -> SkipPolicy:
        """The job's present skip policy; the control plane may change it between two collectives.

        While asynchronous collectives are on their way, ranks may see a change at different moments; each
        collective is carried out alike by all ranks nevertheless.
        """
        state = self._state
        if state.engine is None or state.pid != os.getpid():
            return state.admitted
        return SkipPolicy.from_word(state.engine.policy) or state.admitted

    @property
    def block_size(self) -> int:
        """Elements a block now, for calls that name no block size."""
        return self.policy.block

    @property
    def mask_block_size(self) -> int:
        """Elements a block in masks (`blocks=`) of calls that name no block size. It does not change."""
        return self._state.admitted.block

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
        memory: Any = None,
        compressor: Compressor | None = None,
        accuracy: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces an array over all ranks, in place or into `out`: sum, average, OR, maximum or minimum.

        The result is the same to the bit on every rank. Integers are exact (modulo 2^32 or 2^64). Unless
        `bits` says otherwise, the error of each float by itself is at most 2^-t times the sum over ranks of
        its abs(x), plus half a subnormal: t is 12, for float64 51, float16 10, bfloat16 7; for averages
        divided by n. NaN and Inf stay at their elements.

        Args:
            x: C-contiguous NumPy array or CPU torch tensor, any shape; float32, float64, float16, bfloat16,
                int32, int64 (or unsigned). The same shape and type at all ranks.
            op: ``"sum"``, ``"avg"`` (floats only), ``"or"``: bit by bit, of bool and integers of any width;
                ``"max"``, ``"min"``: of floats, bool and integers of any width. NaN wins, as in NumPy's
                maximum, and is the quiet one; -0 is less than +0. Of the arguments below, `out`, `timeout`
                and `async_op` are for all of them, `blocks` for OR too (but masks), the rest for sums and
                averages. Extrema are gathered, n elements for each, in one round trip and as much memory;
                with over 16 ranks and 256 KiB a call that waits searches for them: 2.75 words in 11 round
                trips for 32 bits (5.5 in 22 for 64). There, calls that wait and calls with `async_op` do not
                match. (docs/protocol.md, section 4.)
            bits: width of lanes on the wire whose scale up to 65,536 neighbours share, and so their error
                (docs/protocol.md, section 7): 32, 16 or 8, the narrow ones with stochastic rounding; float64
                also 64. Integers: their own width. ``"auto"``: the width that the job's policy finds fastest,
                no narrower than `min_bits`. None: as `accuracy` says.
            blocks: ``"auto"``: the job's policy decides whether zero blocks are looked for, and not sent;
                ``"sparse"`` always does so, ``"dense"`` always sends everything; a bool array, one entry a
                block (of `block_size` or else `mask_block_size` elements), gives the blocks that may be
                non-zero on this rank (elements outside it must be +0: nobody looks at them).
            out: array like `x` for the result; `x` is then left as it is.
            block_size: elements a block, 1 to 65,536; by default that of the job's policy.
            timeout: seconds; the session's setting by default.
            min_bits: with ``bits="auto"``, the narrowest lanes that will do: 8, 16 (the default), 32 or 64.
            memory: error feedback in one pass: float32 array of x's shape, zeros at first. It is added to x;
                afterwards it holds the part of that sum that this rank did not send: the rounding of narrow
                lanes, and blocks outside a mask. float32, float16 and bfloat16. Undefined after an error.
            compressor: one of `worker_lib.compress`; one for each tensor, made alike at all ranks. It decides
                on lanes and blocks itself. Floats only. A common scale, if it needs one, is agreed on before
                an asynchronous call returns.
            accuracy: of floats, without `bits` and `compressor`; in as many words an element as it takes.
                ``"exact"``: the sum or average over all ranks, rounded once to x's type (to nearest even), so
                that it depends on the inputs alone. ``"bounded"``: within the bound above. None: exact up to
                2,048 elements, bounded above.
            async_op: return a `Work` at once.

        Returns:
            `out` if given, else `x`; with `async_op` a `Work`.

        Raises:
            UsageError: an argument cannot work; nothing was sent. As a RangeError of some compressors, at all
                ranks: the sum is not in their range; nothing was written.
            MismatchError, WorkerLostError, CollectiveTimeout, SwitchError, SessionBrokenError: see
                `Work.wait`.
        """
        state, key = self._state, None
        begun: list[Begun] = []
        caller = None if async_op else state.quick
        if caller is not None and memory is None and compressor is None and timeout is None:
            try:
                key = caller.allreduce(
                    begun, state.timeout, x, out, op, bits, min_bits, blocks, block_size, accuracy
                )
                if begun:
                    options = SumOptions(op, checked_accuracy(bits, accuracy), min_bits, blocks, block_size)
                    work = self._unfinished(begun[0], x, out, options, state.timeout)
            except BaseException as error:
                state.interrupted(begun, error)
                raise
            if key is True:
                state.forget_done()
                return x if out is None else out
            if begun:
                return work.wait()
        bits = checked_accuracy(bits, accuracy)
        if compressor is None:
            options = SumOptions(op, bits, min_bits, blocks, block_size, memory, key=key)
            return self._reduced(x, out, options, timeout, async_op)
        from worker_lib.compress.reduce import start

        given = {"bits": bits, "block_size": block_size, "min_bits": min_bits, "memory": memory}
        given["blocks"] = None if isinstance(blocks, str) and blocks == "auto" else blocks
        for name, value in given.items():
            if value is not None:
                raise UsageError(
                    f"{name} is given with a compressor, which decides on lanes and blocks itself"
                )
        work = start(self, x, compressor, op, out, timeout, background=async_op)
        return work if async_op else work.wait()

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
        accuracy: str | None = None,
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
            op, bits, timeout, accuracy: as in `allreduce`.
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
        self._state.check_open()
        bits = checked_accuracy(bits, accuracy)
        return allreduce_sparse(self, indices, values, rows, op, bits, result, dense_over, timeout)

    def broadcast(
        self, x: Any, root: int = 0, timeout: float | None = None, *, async_op: bool = False
    ) -> Any:
        """Copies rank `root`'s array to all ranks, byte for byte, in place.

        Args:
            x: C-contiguous array of any type; same shape and type at all ranks.
            root: rank whose contents win.
            timeout: seconds; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            `x`; with `async_op` a `Work`.

        Raises:
            UsageError: as in `allreduce`, or `root` is not a rank.
        """
        return self._run(calls.prepare_broadcast, x, root, timeout=timeout, async_op=async_op)

    def allgather(
        self, x: Any, out: Any = None, timeout: float | None = None, *, async_op: bool = False
    ) -> Any:
        """Collects every rank's array, byte for byte.

        Args:
            x: C-contiguous array of any type; same shape and type at all ranks.
            out: array of shape (world_size, *x.shape) and x's type; made if None. `x` may be this rank's row
                of it, ``out[rank]``, which is then not copied.
            timeout: seconds; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            `out`; row r is rank r's array. With `async_op` a `Work`.

        Raises:
            UsageError: as in `allreduce`, or `out` has another shape or type.
        """
        return self._run(calls.prepare_allgather, x, out, timeout=timeout, async_op=async_op)

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        bits: int | str | None = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
        accuracy: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces an array over all ranks; rank r gets the r-th of world_size equal parts.

        Args:
            x: as in `allreduce`; its first dimension is a multiple of world_size.
            out: array of shape (x.shape[0] / world_size, *x.shape[1:]) and x's type; made if None. It may be
                this rank's part of `x`, which is then overwritten; the other parts are left as they are.
            op, bits, timeout, min_bits, accuracy: as in `allreduce`.
            async_op: return a `Work` at once.

        Returns:
            `out`; with `async_op` a `Work`.

        Raises:
            UsageError: as in `allreduce`, or the first dimension cannot be divided.
        """
        bits = checked_accuracy(bits, accuracy)
        options = SumOptions(op, bits, min_bits, kind=Kind.REDUCE_SCATTER)
        return self._reduced(x, out, options, timeout, async_op)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        bits: int | str | None = None,
        out: Any = None,
        timeout: float | None = None,
        *,
        min_bits: int | None = None,
        accuracy: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces an array over all ranks, for rank `root` alone, in place or into `out`.

        Args:
            x: as in `allreduce`; the other ranks' are left as they are.
            root: rank that gets the result.
            out: array like `x`, at the root; others' is not looked at.
            op, bits, timeout, min_bits, accuracy: as in `allreduce`.
            async_op: return a `Work` at once.

        Returns:
            At the root `out` if given, else `x`; elsewhere None. With `async_op` a `Work`.

        Raises:
            UsageError: as in `allreduce`, or `root` is not a rank.
        """
        bits = checked_accuracy(bits, accuracy)
        options = SumOptions(op, bits, min_bits, kind=Kind.REDUCE, root=root)
        return self._reduced(x, out, options, timeout, async_op)

    def gather(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        timeout: float | None = None,
        *,
        async_op: bool = False,
    ) -> Any:
        """Collects every rank's array at rank `root`, byte for byte.

        Args:
            x: as in `allgather`.
            root: rank that gets them.
            out: at the root as in `allgather`; others' is not looked at.
            timeout: seconds; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            At the root `out`, elsewhere None. With `async_op` a `Work`.

        Raises:
            UsageError: as in `allgather`, or `root` is not a rank.
        """
        return self._run(calls.prepare_gather, x, root, out, timeout=timeout, async_op=async_op)

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        out: Any = None,
        timeout: float | None = None,
        *,
        async_op: bool = False,
    ) -> Any:
        """Sends each rank its row of rank `root`'s array, byte for byte.

        Args:
            x: at the root a C-contiguous array of any type, of shape (world_size, *row); others' is not
                looked at.
            root: rank that has them.
            out: array of shape `row` and x's type; at the root made if None, and may be ``x[root]``.
            timeout: seconds; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            `out`; with `async_op` a `Work`.

        Raises:
            UsageError: `x` has another first dimension, there is no `out`, or `root` is not a rank.
        """
        return self._run(calls.prepare_scatter, x, root, out, timeout=timeout, async_op=async_op)

    def all_to_all(
        self, x: Any, out: Any = None, timeout: float | None = None, *, async_op: bool = False
    ) -> Any:
        """Sends rank r the r-th of world_size equal parts of each rank's array, byte for byte.

        A switch sends its results to all workers: n times `x` comes to each rank, which needs memory for it.

        Args:
            x: C-contiguous array of any type; same shape and type at all ranks, the first dimension a
                multiple of world_size.
            out: array like `x`, or `x` itself, to work in place (through a copy); made if None.
            timeout: seconds; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            `out`; its r-th part is from rank r. With `async_op` a `Work`.

        Raises:
            UsageError: as in `allgather`, or the first dimension cannot be divided.
        """
        return self._run(calls.prepare_all_to_all, x, out, timeout=timeout, async_op=async_op)

    def allgatherv(
        self,
        x: Any,
        counts: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        *,
        async_op: bool = False,
    ) -> Any:
        """Collects every rank's rows, byte for byte; ranks may have different numbers of them.

        Two collectives, unless `counts` is given: ranks that call from several threads must order the calls.

        Args:
            x: C-contiguous array of any type, of shape (rows, *row); same type and `row` at all ranks.
            counts: the number of rows of each rank, where all ranks know them. If None, they are exchanged
                first, for which an asynchronous call waits too.
            out: array of shape (sum(counts), *row) and x's type; made if None. `x` may be this rank's part
                of it, which is then not copied.
            timeout: seconds for each collective; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            A list of each rank's rows, which lie in `out` end to end. With `async_op` a `Work`.

        Raises:
            UsageError: as in `allgather`, or `counts` is something else than each rank's rows.
        """
        return self._run(
            sized.prepare_allgatherv, x, counts, out, timeout, Agreed(), timeout=timeout, async_op=async_op
        )

    def broadcast_object(
        self, item: Any = None, root: int = 0, timeout: float | None = None, *, async_op: bool = False
    ) -> Any:
        """Copies rank `root`'s Python object to all ranks, by pickle: ranks must trust each other.

        Two collectives, of the size and of the bytes; an asynchronous call waits for the first at once.

        Args:
            item: at the root anything that can be pickled; others' is not looked at.
            root: rank whose object wins.
            timeout: seconds for each collective; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            At the root `item`, elsewhere a copy. With `async_op` a `Work`.

        Raises:
            UsageError: `root` is not a rank, or the object cannot be pickled, or not unpickled here.
        """
        return self._run(
            sized.prepare_broadcast_object,
            item,
            root,
            timeout,
            Agreed(),
            timeout=timeout,
            async_op=async_op,
        )

    def allgather_object(self, item: Any, timeout: float | None = None, *, async_op: bool = False) -> Any:
        """Collects every rank's Python object, by pickle: ranks must trust each other.

        Two collectives, of sizes and of bytes; an asynchronous call waits for the first at once.

        Args:
            item: anything that can be pickled.
            timeout: seconds for each collective; the session's setting by default.
            async_op: return a `Work` at once.

        Returns:
            A list of copies, by rank. With `async_op` a `Work`.

        Raises:
            UsageError: the object cannot be pickled, or not unpickled here.
        """
        return self._run(
            sized.prepare_allgather_object,
            sized.pickled(item),
            timeout,
            Agreed(),
            timeout=timeout,
            async_op=async_op,
        )

    def send(self, *_args: Any, **_named: Any) -> NoReturn:
        """Raises `UsageError`: all ranks of a session take part in everything that goes through a switch."""
        raise UsageError(
            "send and recv do not exist: all ranks of a session take part in everything that goes through a "
            "switch. For ranks a and b: pair = session.group([a, b]), which all ranks call; then both call "
            "pair.broadcast(x, root=0)"
        )

    recv = send

    def barrier(self, timeout: float | None = None, *, async_op: bool = False) -> Any:
        """Returns when every rank has called it; with `async_op` a `Work` that is done then."""
        return self._run(calls.prepare_barrier, timeout=timeout, async_op=async_op)

    def allreduce_async(self, *args: Any, **kwargs: Any) -> Work:
        """`allreduce` with ``async_op=True``."""
        return self.allreduce(*args, async_op=True, **kwargs)  # type: ignore[no-any-return]

    def broadcast_async(self, *args: Any, **kwargs: Any) -> Work:
        """`broadcast` with ``async_op=True``."""
        return self.broadcast(*args, async_op=True, **kwargs)  # type: ignore[no-any-return]

    def allgather_async(self, *args: Any, **kwargs: Any) -> Work:
        """`allgather` with ``async_op=True``."""
        return self.allgather(*args, async_op=True, **kwargs)  # type: ignore[no-any-return]

    def reduce_scatter_async(self, *args: Any, **kwargs: Any) -> Work:
        """`reduce_scatter` with ``async_op=True``."""
        return self.reduce_scatter(*args, async_op=True, **kwargs)  # type: ignore[no-any-return]

    def barrier_async(self, timeout: float | None = None) -> Work:
        """`barrier` with ``async_op=True``."""
        return self.barrier(timeout, async_op=True)  # type: ignore[no-any-return]

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
            AdmissionError: not all its ranks came in time, as where they were given different lists.
            SwitchError: the switch has no room for it.
        """
        self._state.check_open()
        ranks = [int(r) for r in ranks]
        if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < self.world_size for r in ranks):
            raise UsageError(
                f"ranks is {ranks}; accepted: different ranks of this session, 0 to {self.world_size - 1}"
            )
        if self._make_group is None:
            raise UsageError(
                "a group of a group is not supported; make it from the session that connect() returned"
            )
        self._state.groups_made += 1
        if self.rank not in ranks:
            return None
        return self._make_group(self, ranks, slots, words)

    def stats(self) -> dict[str, Any]:
        """Counters since the session began: packets, bytes, blocks, time.

        Returns:
            ``packets_sent``, ``packets_received``, ``packets_data``, ``packets_skip``; ``bytes_sent`` and
            ``bytes_received`` (UDP payload; of large sums beside the slots that ranks share, that of the
            packets that they would be); ``retransmissions``; ``results_damaged`` (of checked sums);
            ``results_marked`` (by queues on the way, with ECN);
            ``rtt_seconds`` (smoothed; 0 before a sum went in packets) and ``rto_seconds`` (the retransmission
            timer); ``blocks_total``,
            ``blocks_union`` (non-zero at any rank) and ``blocks_skipped``; ``collectives``; ``elements`` of
            their tensors, of these ``exact_elements`` and ``bounded_elements`` (see `allreduce`; others were
            integers, bytes or in lanes of a given width), and of the latter, about, ``refined_elements``,
            which took more words than others; ``weights`` of the switches that packets are dealt to (empty in
            a group of one); ``seconds``: a dict of time spent in ``scan``, ``quantize``,
            ``wire`` (send and receive calls), ``wait`` (for packets) and ``decode``; ``window`` (packets
            allowed in flight); ``core_moves``: how often a waiting thread moved to a core with fewer ranks;
            ``transport``. All zero in a group of one.
        """
        state = self._state
        if state.pid != os.getpid():
            state.check_open()  # a lock of the engine may be held by a thread that the child does not have
        raw: dict[str, int] = state.engine.stats() if state.engine is not None else {}
        names = (
            "collectives", "packets_sent", "packets_received", "packets_data", "packets_skip",
            "bytes_sent", "bytes_received", "retransmissions", "results_ignored", "results_damaged",
            "results_marked", "send_calls", "receive_calls", "refused", "core_moves", "blocks_total",
            "blocks_union", "elements", "exact_elements", "bounded_elements", "refined_elements",
        )  # fmt: skip
        out: dict[str, Any] = {name: raw.get(name, 0) for name in names}
        out["blocks_skipped"] = out["blocks_total"] - out["blocks_union"]
        out["rtt_seconds"] = raw.get("rtt_ns", 0) / 1e9
        out["rto_seconds"] = raw.get("rto_ns", 0) / 1e9
        out["window"] = raw.get("cwnd", 0)
        out["weights"] = list(state.engine.weights) if state.engine is not None else []
        times = {name: raw.get(f"{name}_ns", 0) / 1e9 for name in ("scan", "quantize", "wait", "decode")}
        wire = (raw.get("send_ns", 0) + raw.get("receive_ns", 0)) / 1e9
        return {**out, "seconds": {**times, "wire": wire}, "transport": self.transport}

    def recent(self) -> list[CollectiveRecord]:
        """The last 32 collectives, in the order of calls, also of a session that is broken or closed.

        Errors that end collectives have the last four as notes, which a traceback shows.
        """
        return self._state.recent()

    def close(self) -> None:
        """Leaves the job. Collectives still on their way are aborted. Safe to call twice, and in a forked
        child.

        Ranks that need this one hear of an exception that is on its way out (`finally: session.close()`).
        """
        self._state.close(self._state.error_on_its_way())

    def __repr__(self) -> str:
        return repr(self._state)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.close(error)

    # ------------------------------------------------------------------ calls, not waited for

    def _allreduce(
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
        memory: Any = None,
        background: bool,
    ) -> Work:
        options = SumOptions(op, bits, min_bits, blocks, block_size, memory)
        return self._reduction(x, out, options, timeout, background=background)

    def _repeat(
        self, options: SumOptions, x: Any, timeout: float | None, *, background: bool, lazy: bool
    ) -> Work | None:
        """Starts a sum in place. One that is not in the background runs a while here; None if it is done."""
        state = self._state
        known = None if background else state.known_calls.get(options.key)
        if known is not None and state.quick is not None:
            begun: list[Begun] = []
            seconds = state.timeout if timeout is None else timeout
            try:
                if state.quick.run(begun, seconds, known):
                    state.forget_done()
                    return None
                if begun:
                    return self._unfinished(begun[0], x, None, options, seconds)
            except BaseException as error:
                state.interrupted(begun, error)
                raise
        prepare = partial(calls.prepare_sum, state, x, None, options)
        return Work(state, prepare, timeout, background=background, lazy=lazy)

    def _unfinished(self, begun: Begun, x: Any, out: Any, options: SumOptions, seconds: float) -> Work:
        """The work of a sum that `Caller` began."""
        native, known = begun
        prepare = partial(calls.prepare_sum, self._state, x, out, options)
        prepared = Prepared(known.call, x if out is None else out, known.label)
        return Work(self._state, prepare, seconds, background=False, begun=(native, prepared))

    def _reduction(
        self, x: Any, out: Any, options: SumOptions, timeout: float | None, *, background: bool
    ) -> Work:
        if options.op in extrema.OPS:
            return extrema.start(self._state, x, out, options, timeout, background=background)
        return self._start(calls.prepare_sum, x, out, options, timeout=timeout, background=background)

    def _reduced(self, x: Any, out: Any, options: SumOptions, timeout: float | None, async_op: bool) -> Any:
        if options.op in extrema.OPS and not async_op:
            return extrema.run(self._state, x, out, options, timeout)
        work = self._reduction(x, out, options, timeout, background=async_op)
        return work if async_op else work.wait()

    def _broadcast(self, x: Any, root: int, timeout: float | None, *, background: bool) -> Work:
        return self._start(calls.prepare_broadcast, x, root, timeout=timeout, background=background)

    def _allgather(self, x: Any, out: Any, timeout: float | None, *, background: bool) -> Work:
        return self._start(calls.prepare_allgather, x, out, timeout=timeout, background=background)

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
        options = SumOptions(op, bits, min_bits, kind=Kind.REDUCE_SCATTER)
        return self._reduction(x, out, options, timeout, background=background)

    def _barrier(self, timeout: float | None, *, background: bool, marks: str = "") -> Work:
        """`marks` names what it stands for; ranks that name different things get a `MismatchError`."""
        return self._start(calls.prepare_barrier, marks, timeout=timeout, background=background)

    def _no_op(self, nbytes: int, timeout: float | None = None) -> None:
        """The benchmark's no-op baseline: as many packets as `nbytes` need, both ways, words untouched."""
        self._start(calls.prepare_no_op, nbytes, timeout=timeout, background=False).wait()

    def _start(
        self,
        prepare: Callable[..., Prepared],
        *args: Any,
        timeout: float | None,
        background: bool,
    ) -> Work:
        """Starts a call that ``prepare(state, *args)`` prepares, each time for the present membership."""
        state = self._state
        return Work(state, lambda: prepare(state, *args), timeout, background=background)

    def _run(
        self, prepare: Callable[..., Prepared], *args: Any, timeout: float | None, async_op: bool
    ) -> Any:
        work = self._start(prepare, *args, timeout=timeout, background=async_op)
        return work if async_op else work.wait()

    def _set_policy(self, word: int) -> None:
        """Sets the policy that rank 0's headers carry from now on; every rank follows it from the collective
        after. Any thread may call it; on other ranks it does nothing."""
        if SkipPolicy.from_word(word) is None:
            raise UsageError(f"policy word is 0x{word:08x}; accepted: one that is marked valid")
        if self._state.engine is not None:
            self._state.engine.set_policy(word)


def _forget_sessions_in_child() -> None:
    for session in list(_sessions):
        session._state.after_fork()


os.register_at_fork(after_in_child=_forget_sessions_in_child)


def close_all() -> None:
    """Closes every session of this process. Runs at exit: leaving without `close` is still leaving.

    The interpreter has kept the exception that ended the program, if any; at a prompt, any earlier one.
    """
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for session in list(_sessions):
        if session._state.pid == os.getpid():
            session._state.close(error)
