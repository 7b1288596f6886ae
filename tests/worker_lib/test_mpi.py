"""mpi4py's names on a session: the same bits as the session's own methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from worker_lib import Session, mpi

from .harness import together

RANKS = 3


def _data(seed: int, rank: int, shape: tuple[int, ...] = (RANKS * 1000,)) -> Any:
    return np.random.default_rng((seed, rank)).standard_normal(shape).astype(np.float32)


def test_reductions_have_the_bits_of_the_session(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        comm = mpi.Communicator(session)
        assert (comm.Get_rank(), comm.Get_size()) == (session.rank, RANKS)
        mine = _data(seed, session.rank)
        for op in (mpi.SUM, mpi.MAX, mpi.MIN):
            wanted = session.allreduce(mine.copy(), op=op)
            kept, total = mine.copy(), np.empty_like(mine)
            comm.Allreduce(kept, [total, "MPI.FLOAT"], op=op)
            assert total.tobytes() == wanted.tobytes()
            assert (kept == mine).all()
            comm.Allreduce(mpi.IN_PLACE, kept, op=op)
            assert kept.tobytes() == wanted.tobytes()
            later = np.empty_like(mine)
            request = comm.Iallreduce([mine, mine.size, "MPI.FLOAT"], later, op=op)
            assert request.Wait()
            assert request.Test()
            assert later.tobytes() == wanted.tobytes()
            at_root = np.empty_like(mine) if comm.rank == 1 else None
            comm.Reduce(mine, at_root, op=op, root=1)
            if at_root is not None:
                assert at_root.tobytes() == wanted.tobytes()
            part = np.empty(1000, np.float32)
            comm.Reduce_scatter_block(mine, part, op=op)
            begin = comm.rank * 1000
            assert part.tobytes() == session.reduce_scatter(mine.copy(), op=op).tobytes()
            assert np.allclose(part, wanted[begin : begin + 1000], atol=1e-3)
        assert (mine == _data(seed, session.rank)).all()

    together(host.url, RANKS, call)


@pytest.mark.parametrize("in_place", [False, True])
def test_arrays_move(host: EmbeddedController, in_place: bool) -> None:
    seed = seed_of_this_run()
    every = [_data(seed, rank, (RANKS, 4)) for rank in range(RANKS)]

    def call(session: Session) -> None:
        comm, rank = mpi.Communicator(session), session.rank
        mine = every[rank].copy()
        out = np.zeros((RANKS, RANKS, 4), np.float32)
        if in_place:
            out[rank] = mine
        comm.Allgather(mpi.IN_PLACE if in_place else mine, out)
        assert (out == every).all()
        out[...] = 0
        if rank == 2:
            out[2] = mine
        comm.Gather(mpi.IN_PLACE if in_place and rank == 2 else mine, out if rank == 2 else None, root=2)
        if rank == 2:
            assert (out == every).all()
        part = np.empty(4, np.float32)
        comm.Scatter(mine if rank == 0 else None, part)
        assert (part == every[0][rank]).all()
        swapped = mine.copy() if in_place else np.empty_like(mine)
        comm.Alltoall(mpi.IN_PLACE if in_place else mine, swapped)
        assert (swapped == [each[rank] for each in every]).all()
        comm.Bcast(mine, root=1)
        assert (mine == every[1]).all()
        assert comm.bcast({"a": rank}, root=2) == {"a": 2}
        assert comm.allgather(rank) == [0, 1, 2]
        comm.Barrier()

    together(host.url, RANKS, call)


def test_torch_tensors(host: EmbeddedController) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")

    def call(session: Session) -> None:
        comm = mpi.Communicator(session)
        x = torch.full((2, 2), float(session.rank))
        total = torch.empty(2, 2)
        comm.Allreduce(x, total)
        assert total.tolist() == [[1, 1], [1, 1]]
        swapped = x.clone()
        comm.Alltoall(mpi.IN_PLACE, swapped)
        assert swapped.tolist() == [[0, 0], [1, 1]]

    together(host.url, 2, call)


def test_what_cannot_be(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        comm = mpi.Communicator(session)
        x = np.zeros(RANKS)
        for wrong, problem in (
            (lambda: comm.Allreduce(x, x.copy(), op="prod"), "op is 'prod'; accepted: SUM, MAX and MIN"),
            (lambda: comm.Allreduce(None, x), "sendbuf is None"),
            (lambda: comm.Allreduce(x, mpi.IN_PLACE), "recvbuf is IN_PLACE"),
            (lambda: comm.Allreduce([x, 2, "MPI.DOUBLE"], x.copy()), "sendbuf has count 2; accepted: 3"),
            (lambda: comm.Allreduce([x, 1, 2, 3], x.copy()), "sendbuf has 4 parts"),
            (lambda: comm.Allgather(x, np.zeros(10)), "recvbuf has 10 elements; accepted: a multiple of 3"),
            (lambda: comm.Allgather(np.zeros((3, 6))[:, 0], np.zeros(9)), "sendbuf is not C-contiguous"),
            (lambda: comm.Reduce_scatter_block(mpi.IN_PLACE, x), "sendbuf is IN_PLACE"),
            (lambda: comm.Scatter(x, mpi.IN_PLACE), "recvbuf is IN_PLACE"),
        ):
            with pytest.raises(UsageError, match=problem):
                wrong()
        comm.Barrier()
        comm.Free()

    together(host.url, RANKS, call)
