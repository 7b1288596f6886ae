"""A session with the names of mpi4py's communicators, for programs that use its collectives.

    from worker_lib import mpi                       # was: from mpi4py import MPI

    comm = mpi.Communicator(worker_lib.connect())    # was: comm = MPI.COMM_WORLD
    comm.Allreduce(mpi.IN_PLACE, x, op=mpi.SUM)
    total = np.empty_like(x)
    comm.Allreduce(x, total)

Methods with a capital take arrays, the others any object that pickle takes. Sums of floats have the bounds of
`Session.allreduce`, and the same bits. Messages between two ranks, and other operations than SUM, MAX and
MIN, are not here.
"""

from __future__ import annotations

from typing import Any, Final

from switchagg.errors import UsageError
from worker_lib.session import Session
from worker_lib.work import Work

SUM: Final = "sum"
MAX: Final = "max"
MIN: Final = "min"


class _InPlace:
    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE: Final = _InPlace()
"""In the place of a send buffer: the receive buffer holds this rank's part, and gets the result."""


class Request:
    """A collective that was begun, as `Communicator.Iallreduce` returns it."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def Wait(self) -> bool:
        """Waits for its end, and returns True. Raises what the collective raises; see `Work.wait`."""
        self._work.wait()
        return True

    def Test(self) -> bool:
        """Returns True if it has ended."""
        return bool(self._work.done())


class Communicator:
    """A session under mpi4py's names.

    Args:
        session: its owner closes it; `Free` does too.

    Buffers are C-contiguous NumPy arrays or CPU torch tensors, or [array, datatype] and [array, count,
    datatype] as in mpi4py, where the array's own type counts and a count must be its size. Every method
    raises what the session's method of the same collective raises.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.session.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.session.world_size

    def Get_rank(self) -> int:
        """Returns this process's rank."""
        return self.rank

    def Get_size(self) -> int:
        """Returns the number of ranks."""
        return self.size

    def Free(self) -> None:
        """Closes the session."""
        self.session.close()

    def Barrier(self) -> None:
        """Waits until every rank is here."""
        self.session.barrier()

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: str = SUM) -> None:
        """Reduces arrays over all ranks into `recvbuf`."""
        self.session.allreduce(*self._source(sendbuf, recvbuf), op=_op(op), out=_buffer(recvbuf, "recvbuf"))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: str = SUM) -> Request:
        """Begins `Allreduce`; the buffers belong to it until the request has ended."""
        out = _buffer(recvbuf, "recvbuf")
        work = self.session.allreduce(*self._source(sendbuf, recvbuf), op=_op(op), out=out, async_op=True)
        return Request(work)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: str = SUM, root: int = 0) -> None:
        """Reduces arrays over all ranks into `recvbuf` of rank `root`; the others' may be None."""
        if self.rank == root:
            out = _buffer(recvbuf, "recvbuf")
            self.session.reduce(*self._source(sendbuf, recvbuf), root=root, op=_op(op), out=out)
        else:
            self.session.reduce(_buffer(sendbuf, "sendbuf"), root=root, op=_op(op))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copies rank `root`'s array to all ranks."""
        self.session.broadcast(_buffer(buf, "buf"), root=root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collects every rank's array in `recvbuf`, of size times as many elements."""
        out = self._rows(recvbuf)
        self.session.allgather(out[self.rank] if sendbuf is IN_PLACE else _flat(sendbuf, "sendbuf"), out)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collects every rank's array in `recvbuf` of rank `root`; the others' may be None."""
        if self.rank != root:
            self.session.gather(_flat(sendbuf, "sendbuf"), root=root)
            return
        out = self._rows(recvbuf)
        own = _copy(out[root]) if sendbuf is IN_PLACE else _flat(sendbuf, "sendbuf")
        self.session.gather(own, root=root, out=out)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gives rank r the r-th part of rank `root`'s array; the others' `sendbuf` may be None."""
        whole = self._rows(sendbuf, "sendbuf") if self.rank == root else None
        if recvbuf is IN_PLACE:
            raise UsageError("recvbuf is IN_PLACE; accepted: an array")
        self.session.scatter(whole, root=root, out=_flat(recvbuf, "recvbuf"))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gives rank r the r-th part of every rank's array."""
        out = self._rows(recvbuf)
        self.session.all_to_all(_copy(out) if sendbuf is IN_PLACE else self._rows(sendbuf, "sendbuf"), out)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: str = SUM) -> None:
        """Reduces arrays over all ranks; rank r gets the r-th part."""
        if sendbuf is IN_PLACE:
            raise UsageError("sendbuf is IN_PLACE; accepted: an array, size times as large as recvbuf")
        self.session.reduce_scatter(_flat(sendbuf, "sendbuf"), _flat(recvbuf, "recvbuf"), op=_op(op))

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Returns rank `root`'s object."""
        return self.session.broadcast_object(obj, root=root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Returns every rank's object."""
        return list(self.session.allgather_object(sendobj))

    barrier = Barrier

    def _source(self, sendbuf: Any, recvbuf: Any) -> tuple[Any]:
        return (_buffer(recvbuf, "recvbuf") if sendbuf is IN_PLACE else _buffer(sendbuf, "sendbuf"),)

    def _rows(self, buffer: Any, name: str = "recvbuf") -> Any:
        flat = _flat(buffer, name)
        elements = flat.numel() if hasattr(flat, "numel") else flat.size
        if elements % self.size:
            raise UsageError(
                f"{name} has {elements} elements; accepted: a multiple of {self.size}, the ranks"
            )
        return flat.reshape(self.size, elements // self.size)


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _op(op: str) -> str:
    if op not in (SUM, MAX, MIN):
        raise UsageError(f"op is {op!r}; accepted: SUM, MAX and MIN of worker_lib.mpi")
    return op


def _buffer(buffer: Any, name: str) -> Any:
    """Returns the array of a buffer in one of mpi4py's forms."""
    if buffer is None or buffer is IN_PLACE:
        raise UsageError(f"{name} is {buffer}; accepted: an array")
    if not isinstance(buffer, list | tuple):
        return buffer
    if not 1 <= len(buffer) <= 3:
        raise UsageError(
            f"{name} has {len(buffer)} parts; accepted: array, [array, type], [array, count, type]"
        )
    array = buffer[0]
    elements = array.numel() if hasattr(array, "numel") else getattr(array, "size", None)
    if len(buffer) == 3 and buffer[1] != elements:
        raise UsageError(f"{name} has count {buffer[1]!r}; accepted: {elements}, the array's size")
    return array


def _flat(buffer: Any, name: str) -> Any:
    """Returns a contiguous buffer as an array of one dimension that shares its memory."""
    array = _buffer(buffer, name)
    contiguous = array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous
    if not contiguous:
        raise UsageError(f"{name} is not C-contiguous; accepted: arrays that are")
    return array.reshape(-1)
