"""DDP communication hooks: gradients through the switch, everything else on whatever backend there is.

state = State(ddp, bits=16)
ddp.register_comm_hook(state, allreduce_hook)

A bucket's gradients are averaged in place while DDP goes on with the backward pass. With error feedback, what
narrow lanes (or the choice of blocks) leave out of a gradient is kept on this rank and added to the next
one (Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019):
the engine does both while it looks at the gradient and quantizes it, in no pass of its own.
"""

# No annotations from __future__ here: DDP looks at the hook's, which must not be strings.
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import UsageError
from worker_lib.arguments import SUMMABLE
from worker_lib.compress.base import Compressor
from worker_lib.compress.reduce import start as compressed
from worker_lib.session import Session
from worker_lib.torch import device, sparse, staging
from worker_lib.torch.compressors import BucketCompressors
from worker_lib.torch.group import SwitchGroup
from worker_lib.torch.meeting import fresh
from worker_lib.torch.options import Options
from worker_lib.torch.rendezvous import Controller, controllers, join
from worker_lib.torch.residuals import Residuals, names_of
from worker_lib.torch.work import Completer, SwitchWork, ranged

# DDP waits for its buckets once it has handed over the last, so the thread that does so may as well run the
# exchange: then nobody need be woken for it, or by it. Not for ever: where several models share a backward
# pass, ranks may come to the ends of these in different orders.
_DRIVE_SECONDS: Final = 0.1
_FEEDBACK_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_made: defaultdict[str, Iterator[int]] = defaultdict(
    itertools.count
)  # States of a process group, by its name


class State:
    """What `allreduce_hook` needs: a place on the switch, lanes, and what error feedback remembers.

    Made by all ranks of the process group, in the same order. Where the process group is switchagg's own, its
    place is shared; else all ranks join a job of their own, as `init_process_group("switchagg")` would.

    Args:
        model: the DistributedDataParallel module. Needed for error feedback, whose memory goes by parameter.
        process_group: the ranks; the model's by default, else the default group.
        bits: width of the lanes: 32, 16 or 8; float64 always travels in 64. ``"auto"``: what the job's
            policy finds fastest, no narrower than `min_bits`.
        min_bits: with ``bits="auto"``, the narrowest lanes that will do: 16 by default.
        blocks: as in `Options`.
        block_size: elements a block; 64 unless the controller says otherwise.
        density: share of the blocks that each rank sends, those with the largest gradients: 1 sends all.
            Sparse gradients are sent whole, and without error feedback.
        error_feedback: whether what is left out is added to the next gradient; by default where lanes are
            narrow or `density` is under 1.
        compressor: of `worker_lib.compress`: each bucket's gradients go through a fork of it, in place of
            lanes, blocks and error feedback of this class. Sparse gradients do not. One that needs a common
            scale waits for that in the backward pass.
        transport: as in `Options`.
        timeout: of a reduction; the process group's by default.

    Raises:
        UsageError: arguments that cannot work. SwitchError: there is no switch, or it is full.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        process_group: Any = None,
        bits: int | str = 32,
        min_bits: int | None = None,
        blocks: str = "auto",
        block_size: int | None = None,
        density: float = 1.0,
        error_feedback: bool | None = None,
        compressor: Compressor | None = None,
        transport: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if bits not in (8, 16, 32, "auto"):
            raise UsageError(f"bits is {bits!r}; accepted: 32, 16, 8, 'auto'")
        if not isinstance(density, int | float) or not 0 < density <= 1:
            raise UsageError(f"density is {density!r}; accepted: greater than 0, at most 1")
        if density < 1 and blocks == "dense":
            raise UsageError("density under 1 chooses blocks: blocks must be 'auto'")
        others = (bits, min_bits, blocks, block_size, density, error_feedback)
        if compressor is not None and others != (32, None, "auto", None, 1.0, None):
            raise UsageError(
                "compressor is given with bits, min_bits, blocks, block_size, density or error_feedback; "
                "it decides on these itself: State(model, compressor=ErrorFeedback(TopBlocks(tau=0.1)))"
            )
        if compressor is not None and model is None:
            raise UsageError("a compressor's memory goes by parameter: pass the model, State(model, ...)")
        if error_feedback is None:
            error_feedback = model is not None and (bits != 32 or density < 1)
        if error_feedback and model is None:
            raise UsageError("error_feedback remembers by parameter: pass the model, State(model, ...)")
        self.bits, self.density, self.error_feedback = bits, float(density), error_feedback
        self._options = Options(
            bits=bits, min_bits=min_bits, blocks=blocks, block_size=block_size, transport=transport
        )
        self._residuals = Residuals(model)
        self._buses: dict[torch.device, device.Bus] = {}
        self._turns = itertools.count()
        self._compressors = None if compressor is None else BucketCompressors(compressor, names_of(model))
        group = process_group or getattr(model, "process_group", None) or dist.group.WORLD
        if group is None:
            raise UsageError("there is no process group: call torch.distributed.init_process_group first")
        self._controller: Controller | None = None
        self._tables = sparse.Tables()
        self._own = not isinstance(group, SwitchGroup)
        if isinstance(group, SwitchGroup):
            self._session: Session = group.session
            self._completer = group.completer
            self._feeder = group.feeder
        else:
            self._session = self._join(group, timeout)
        if timeout is not None:
            self._seconds: float | None = timeout.total_seconds()
        else:
            self._seconds = None

    def _join(self, group: Any, timeout: timedelta | None) -> Session:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        name = c10d._get_process_group_name(group)
        store = dist.PrefixStore(f"switchagg-hook/{next(_made[name])}", c10d._get_process_group_store(group))
        limit = timeout or c10d._get_default_timeout(dist.get_backend(group))
        store = fresh(store, rank, size, limit)
        session, self._controller = join(store, f"{name}-hook", rank, size, limit, self._options)
        self._completer = Completer("switchagg hook")
        self._feeder = device.Feeder("switchagg hook")
        return session

    @property
    def session(self) -> Session:
        """The session beneath, for its counters."""
        return self._session

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What error feedback remembers on this rank: ``{"residuals": {parameter: tensor}}``.

        With a compressor, also ``"compressors"``: a list, one entry a bucket. It differs between ranks, so
        each rank keeps its own.
        """
        state: dict[str, Any] = {"residuals": self._residuals.state_dict()}
        if self._compressors is not None:
            state["compressors"] = self._compressors.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state_dict` was called.

        Raises:
            UsageError: it is of another model or another compressor, or error feedback is off.
        """
        if ("compressors" in state) != (self._compressors is not None):
            side = "with" if "compressors" in state else "without"
            raise UsageError(f"this state is of a State {side} a compressor; here it is the other way round")
        if self._compressors is not None:
            self._compressors.load_state_dict(state["compressors"])
            return
        residuals = state.get("residuals")
        if not isinstance(residuals, Mapping):
            raise UsageError("state has no 'residuals'; accepted: what State.state_dict() gave")
        if residuals and not self.error_feedback:
            raise UsageError("this state remembers residuals, and error_feedback is off here")
        self._residuals.load(residuals)

    def close(self) -> None:
        """Leaves the job, where this state has joined one. Safe to call twice."""
        if self._own:
            self._own = False
            self._session.close()
            self._feeder.stop()
            self._completer.stop()
            if self._controller is not None:
                controllers.release(self._controller)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ inside

    def _start(self, bucket: Any) -> SwitchWork:
        buffer = bucket.buffer()
        if staging.elsewhere(buffer):
            return self._start_elsewhere(bucket, buffer)
        if self._feeder.busy():
            part = self._feeder.add(lambda: self._reduce(bucket, buffer, background=True))
            return SwitchWork("allreduce_hook", [part], buffer, None, self._completer)
        return self._reduce(bucket, buffer, background=not bucket.is_last())

    def _start_elsewhere(self, bucket: Any, buffer: torch.Tensor) -> SwitchWork:
        """A bucket of a GPU: quantized there where that moves fewer bytes, else staged as it is."""
        if buffer.device not in self._buses:
            self._buses[buffer.device] = device.Bus(buffer.device)
        bus, bits = self._buses[buffer.device], self._options.lanes(buffer)[0]
        finish = None
        if (
            buffer.layout == torch.strided
            and device.moves_less(buffer, bits)
            and self.density == 1
            and self._session.world_size > 1
        ):
            memory = self._residuals.of(bucket, buffer.device) if self.error_feedback else None
            bus.after(buffer)
            start = functools.partial(
                device.reduce_lanes, self._session, bus, buffer, bits=int(bits or 0), average=True,
                turn=next(self._turns), seconds=self._seconds, memory=memory,
            )  # fmt: skip
            part = self._feeder.add(start)
        else:
            host, ready = bus.to_host(buffer)

            def reduce() -> SwitchWork:
                ready()
                return self._reduce(bucket, host, background=True)

            def finish() -> None:
                bus.to_device(host, buffer)

            part = self._feeder.add(reduce)
        return SwitchWork("allreduce_hook", [part], buffer, finish, self._completer)

    def _reduce(self, bucket: Any, buffer: torch.Tensor, *, background: bool) -> SwitchWork:
        bits, min_bits = self._options.lanes(buffer)
        if sparse.fits(buffer) and buffer.is_floating_point():
            works, finish = sparse.start(
                self._session, buffer, "avg", bits, self._seconds, self._tables,
                min_bits=min_bits, background=background,
            )  # fmt: skip
            return SwitchWork("allreduce_hook", works, buffer, finish, self._completer)
        if not staging.dense(buffer) or not buffer.is_floating_point():
            raise UsageError(
                f"the gradients are {buffer.dtype}, {buffer.layout} on {buffer.device}; allreduce_hook takes "
                "floating point gradients on the CPU or a CUDA device, strided or sparse COO of up to 2^32 "
                "elements"
            )
        if str(buffer.dtype).removeprefix("torch.") not in SUMMABLE:
            raise UsageError(f"the gradients are {buffer.dtype}, which cannot be summed")
        x = buffer.detach()
        if self._compressors is not None:
            compressor = self._compressors.of(bucket.parameters())
            sent = compressed(self._session, x, compressor, "avg", None, self._seconds, background=background)
            return SwitchWork("allreduce_hook", [sent], buffer, None, self._completer)
        memory = None
        if self.error_feedback and x.dtype in _FEEDBACK_TYPES:
            memory = self._residuals.of(bucket)
        blocks: Any = self._options.blocks
        block = self._options.block_size
        if self.density < 1:
            block = block or self._session.mask_block_size
            blocks = self._largest(x, block, memory)
        work = self._session._allreduce(
            x, "avg", bits, blocks, None, block, self._seconds,
            min_bits=min_bits, memory=memory, background=background,
        )  # fmt: skip
        return SwitchWork("allreduce_hook", [work], buffer, None, self._completer)

    def _largest(self, x: torch.Tensor, block: int, memory: torch.Tensor | None) -> Any:
        """A mask of the blocks with the largest norms; without a memory the others become zero in x."""
        blocks = -(-x.numel() // block)
        total = x.float() if memory is None else x.float() + memory
        padded = torch.nn.functional.pad(total, (0, blocks * block - x.numel())).view(blocks, block)
        mask = torch.zeros(blocks, dtype=torch.bool)
        mask[padded.square().sum(1).nan_to_num(math.inf).topk(math.ceil(self.density * blocks)).indices] = (
            True
        )
        if memory is None:
            x.masked_fill_((~mask).repeat_interleave(block)[: x.numel()], 0)
        return mask.numpy()


def allreduce_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks through the switch, for `register_comm_hook`."""
    with ranged("allreduce_hook"):
        work = state._start(bucket)
        if bucket.is_last():
            work.drive(_DRIVE_SECONDS)
        return work.get_future()
