"""Ray: switchagg as a backend of `ray.util.collective`.

    import worker_lib.ray                                # in the driver and in the actors

    collective.init_collective_group(4, rank, backend="switchagg", group_name="sums")
    collective.allreduce(x, group_name="sums")

    rank 0: SWITCHAGG_CONTROLLER, or a switch of its own --URL and job, by Ray's key-value store--> others

Ray Train is in `worker_lib.torch.ray`.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from typing import Any, Final

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util.collective import types
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from switchagg.errors import AdmissionError, SwitchError, UsageError
from worker_lib.connect import connect
from worker_lib.embedded import Embedded, start_embedded
from worker_lib.session import Session

NAME: Final = "SWITCHAGG"
_PATIENCE: Final = 60.0  # seconds to wait for rank 0, and for all ranks
_POLL: Final = 0.05  # seconds
_OPS: Final = {types.ReduceOp.SUM: "sum", types.ReduceOp.MIN: "min", types.ReduceOp.MAX: "max"}


class SwitchGroup(BaseGroup):  # type: ignore[misc]
    """A collective group of Ray's on a session.

    Tensors are C-contiguous NumPy arrays or CPU torch tensors; results have the bits of the session's own
    calls. `session` has what Ray has no name for: averages, lanes, sparse sums. Raises what `connect` raises.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._embedded: Embedded | None = None
        self.session = self._first() if rank == 0 else self._other()

    def _connect(self, controller: str | None, job: str) -> Session:
        return connect(controller, job, self._rank, self._world_size, join_timeout=_PATIENCE)

    def _first(self) -> Session:
        """Says where the ranks meet, and joins."""
        if self._world_size == 1:
            return self._connect(None, self._group_name)
        controller = os.environ.get("SWITCHAGG_CONTROLLER")
        if not controller:
            self._embedded = start_embedded(ray.util.get_node_ip_address())
            controller = self._embedded.controller
        job = f"ray-{self._group_name}-{uuid.uuid4().hex[:8]}"
        key = self._key()
        internal_kv._internal_kv_put(key, f"{controller} {job}", overwrite=True)
        try:
            return self._connect(controller, job)
        except BaseException:
            if self._embedded is not None:
                self._embedded.close()
            raise
        finally:
            internal_kv._internal_kv_del(key)

    def _other(self) -> Session:
        deadline = time.monotonic() + _PATIENCE
        tried = None
        failure: SwitchError | None = None
        while time.monotonic() < deadline:
            said = internal_kv._internal_kv_get(self._key())
            if said is not None and said != tried:
                controller, job = said.decode().split(" ")
                try:
                    return self._connect(controller, job)
                except AdmissionError:
                    raise
                except SwitchError as error:  # of a rank 0 that was killed before it took this away
                    tried, failure = said, error
            time.sleep(_POLL)
        raise failure or SwitchError(
            f"rank 0 of collective group {self._group_name!r} did not say within {_PATIENCE:g} seconds where "
            "its switch is: see its output"
        )

    def _key(self) -> str:
        return f"switchagg_collective_group_{self._group_name}"

    def destroy_group(self) -> None:
        """Leaves the job; ends the switch, if this rank started it."""
        self.session.close()
        if self._embedded is not None:
            self._embedded.close()

    @classmethod
    def backend(cls) -> str:
        """Ray's name of this backend."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Returns True: what it needs is imported already."""
        return True

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduces in place: SUM, MIN or MAX."""
        self.session.allreduce(_single(tensor), op=_op(allreduce_options))

    def barrier(self, barrier_options: Any = None) -> None:
        """Waits until every rank is here."""
        del barrier_options
        self.session.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """Reduces in place at rank `root_rank`; elsewhere the tensor stays as it is."""
        root = 0 if reduce_options is None else reduce_options.root_rank
        self.session.reduce(_single(tensor), root=root, op=_op(reduce_options))

    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        """Copies rank `root_rank`'s tensor to all ranks."""
        root = 0 if broadcast_options is None else broadcast_options.root_rank
        self.session.broadcast(_single(tensor), root=root)

    def allgather(self, tensor_list: list[Any], tensor: list[Any], allgather_options: Any = None) -> None:
        """Copies every rank's tensor into the list's."""
        del allgather_options
        for part, row in zip(_single(tensor_list), self.session.allgather(_single(tensor)), strict=True):
            _fill(part, row)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[Any], reducescatter_options: Any = None
    ) -> None:
        """Reduces the list's tensors, and gives rank r the r-th."""
        parts = _single(tensor_list)
        arrays = isinstance(parts[0], np.ndarray)
        whole = np.stack(parts) if arrays else sys.modules["torch"].stack(parts)
        _fill(_single(tensor), self.session.reduce_scatter(whole, op=_op(reducescatter_options))[0])

    def send(self, tensor: Any, send_options: Any) -> None:  # noqa: ARG002
        """Refused: a switch has no messages between two ranks."""
        raise UsageError("switchagg has no send; accepted: a group of the two ranks, and a broadcast in it")

    def recv(self, tensor: Any, recv_options: Any) -> None:  # noqa: ARG002
        """Refused, as `send`."""
        raise UsageError("switchagg has no recv; accepted: a group of the two ranks, and a broadcast in it")


def _single(tensors: list[Any]) -> Any:
    if len(tensors) != 1:
        raise UsageError(f"{len(tensors)} tensors a rank; accepted: one, on the CPU")
    return tensors[0]


def _op(options: Any) -> str:
    op = types.ReduceOp.SUM if options is None else options.reduceOp
    if op not in _OPS:
        raise UsageError(f"op is {op.name}; accepted: SUM, MIN and MAX")
    return _OPS[op]


def _fill(out: Any, result: Any) -> None:
    """Writes a result into a caller's array or tensor of the same shape."""
    if tuple(out.shape) != tuple(result.shape):
        raise UsageError(f"out has shape {tuple(out.shape)}; needed: {tuple(result.shape)}")
    if isinstance(out, np.ndarray):
        out[...] = result
    else:
        out.copy_(result)


if not hasattr(types.Backend, NAME):
    register_collective_backend(NAME, SwitchGroup)
