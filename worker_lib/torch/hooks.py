"""DDP communication hooks: gradients through the switch, everything else on the process group's backend.

state = State(ddp, bits=16)
ddp.register_comm_hook(state, allreduce_hook)

A bucket's gradients are averaged in place while DDP goes on with the backward pass. With error feedback, the
part of a gradient that narrow lanes (or the choice of blocks) leave out is kept on this rank and added to the
next one (Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., Error Feedback Fixes SignSGD, ICML
2019). The engine does both while it looks at the gradient and quantizes it, without a pass of its own.
"""

# No annotations from __future__ here: DDP looks at the hook's, which must not be strings.
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import UsageError
from worker_lib.arguments import SUMMABLE, SumOptions, torch_name
from worker_lib.calls import repeated
from worker_lib.compress.base import Compressor
from worker_lib.compress.reduce import start as compressed
from worker_lib.session import Session
from worker_lib.torch import sparse
from worker_lib.torch.collectives import Collectives, dense
from worker_lib.torch.device import Staging, reduces_on_device
from worker_lib.torch.memories import BucketCompressors, BucketMemories, names_of
from worker_lib.torch.options import Options
from worker_lib.torch.process_group import SwitchGroup
from worker_lib.torch.rendezvous import Controller, controllers, join, store_prefix
from worker_lib.torch.work import Completion, Running, Step, TaskThread, ranged

# After its last bucket DDP waits for all of them, so the thread that hands it over runs the exchange, and no
# other need be woken. Its time is limited: where several models share a backward pass, ranks may come to the
# ends of these in different orders.
_DRIVE_SECONDS: Final = 0.1
# Bytes of a bucket before the last one that goes out with the next that does not wait: to wake threads for
# it takes longer than to send it.
_LAZY_BYTES: Final = 1 << 16
_SUMS: Final = 1024  # of buckets, that a state keeps
_FEEDBACK_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_made: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)  # States of a process group, by name


@dataclass
class _Joined:
    """A job of a state's own, where its process group is another backend's."""

    session: Session
    futures: TaskThread
    staging: Staging
    controller: Controller | None

    def close(self) -> None:
        """Leaves it. Safe to call twice."""
        self.session.close()
        self.staging.feeder.stop()
        self.futures.stop()
        if self.controller is not None:
            controllers.release(self.controller)
            self.controller = None


class State:
    """The state of `allreduce_hook`: a session, lanes, and the memories of error feedback.

    Made by all ranks of the process group, in the same order. It shares the session of a process group of
    switchagg's own; else all ranks join a job, as `init_process_group("switchagg")` would.

    Args:
        model: the DistributedDataParallel module. Needed for error feedback, whose memory goes by parameter.
        process_group: the ranks; the model's by default, else the default group.
        bits: width of the lanes: 32, 16 or 8. ``"auto"``: the width that the job's policy finds fastest, no
            narrower than `min_bits`. None, and float64: as `accuracy` says.
        min_bits: with ``bits="auto"``, the narrowest lanes allowed: 16 by default.
        accuracy: as in `Options`; without `bits`.
        blocks: as in `Options`.
        block_size: elements a block; 64 unless the controller says otherwise.
        density: share of the blocks that each rank sends, those with the largest gradients: 1 sends all.
            Sparse gradients are sent whole, and without error feedback.
        error_feedback: True adds the part that was left out to the next gradient; by default where lanes are
            narrow or `density` is under 1.
        compressor: of `worker_lib.compress`: each bucket's gradients go through a fork of it, in place of
            lanes, blocks and error feedback of this class. Sparse gradients do not. One that needs a common
            scale waits for that in the backward pass.
        transport, congestion, check, seal: as in `Options`. The last three are not for a process group of
            switchagg's own, which has its own.
        timeout: of a reduction; the process group's by default.

    Raises:
        UsageError: arguments that cannot work. SwitchError: there is no switch, or it is full.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        process_group: Any = None,
        bits: int | str | None = None,
        min_bits: int | None = None,
        accuracy: str | None = None,
        blocks: str = "auto",
        block_size: int | None = None,
        density: float = 1.0,
        error_feedback: bool | None = None,
        compressor: Compressor | None = None,
        transport: str | None = None,
        congestion: str | None = None,
        check: bool | None = None,
        seal: bool | str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if bits not in (None, 8, 16, 32, "auto"):
            raise UsageError(f"bits is {bits!r}; accepted: 32, 16, 8, 'auto', or None")
        if not isinstance(density, int | float) or not 0 < density <= 1:
            raise UsageError(f"density is {density!r}; accepted: greater than 0, at most 1")
        if density < 1 and blocks == "dense":
            raise UsageError("density under 1 chooses blocks: blocks must be 'auto'")
        others = (bits, min_bits, accuracy, blocks, block_size, density, error_feedback)
        if compressor is not None and others != (None, None, None, "auto", None, 1.0, None):
            raise UsageError(
                "compressor is given with bits, min_bits, accuracy, blocks, block_size, density or "
                "error_feedback; it decides on these itself: "
                "State(model, compressor=ErrorFeedback(TopBlocks(tau=0.1)))"
            )
        if compressor is not None and model is None:
            raise UsageError("a compressor's memory goes by parameter: pass the model, State(model, ...)")
        if error_feedback is None:
            error_feedback = model is not None and (bits not in (None, 32) or density < 1)
        if error_feedback and model is None:
            raise UsageError("error_feedback remembers by parameter: pass the model, State(model, ...)")
        self.bits, self.density, self.error_feedback = bits, float(density), error_feedback
        self._options = Options(
            bits=bits, min_bits=min_bits, accuracy=accuracy,
            blocks=blocks, block_size=block_size, transport=transport, congestion=congestion,
            check=check, seal=seal,
        )  # fmt: skip
        names = names_of(model)
        self._memories = BucketMemories(names)
        self._compressors = None if compressor is None else BucketCompressors(compressor, names)
        self._kinds = sparse.Kinds(self._options)
        self._seconds = None if timeout is None else timeout.total_seconds()
        self._started: list[Completion] = []  # of a backward pass, until its last bucket
        self._sums: dict[Any, SumOptions] = {}  # by place, size and type of a bucket
        group = process_group or getattr(model, "process_group", None) or dist.group.WORLD
        if group is None:
            raise UsageError("there is no process group: call torch.distributed.init_process_group first")
        if isinstance(group, SwitchGroup) and (congestion or check or seal):
            raise UsageError(
                "one of congestion, check and seal is given, and the process group has a session: they are "
                "those of init_process_group(..., pg_options=Options(seal=...))"
            )
        self._group = group
        self._joined = None if isinstance(group, SwitchGroup) else self._join(group, timeout)

    def _join(self, group: Any, timeout: timedelta | None) -> _Joined:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        name = c10d._get_process_group_name(group)
        store = dist.PrefixStore(f"switchagg-hook/{next(_made[name])}", c10d._get_process_group_store(group))
        limit = timeout or c10d._get_default_timeout(dist.get_backend(group))
        store = store_prefix(store, rank, size, limit)
        session, controller = join(store, f"{name}-hook", rank, size, limit, self._options)
        return _Joined(session, TaskThread("switchagg hook futures"), Staging("switchagg hook"), controller)

    @property
    def _through(self) -> _Joined | Collectives:
        """The job that this state has joined, or else its group's of now: members may have changed."""
        return self._joined or self._group.collectives

    @property
    def session(self) -> Session:
        """The session beneath, for its counters."""
        return self._through.session

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The memories of error feedback on this rank: ``{"residuals": {parameter: tensor}}``.

        With a compressor, also ``"compressors"``: a list, one entry a bucket. It differs between ranks, so
        each rank keeps its own.
        """
        state: dict[str, Any] = {"residuals": self._memories.state_dict()}
        if self._compressors is not None:
            state["compressors"] = self._compressors.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`.

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
        self._memories.load(residuals)

    def close(self) -> None:
        """Leaves the job, if this state has joined one. Safe to call twice."""
        if self._joined is not None:
            self._joined.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ one bucket

    def _hand_over(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts a bucket's reduction. The last of a backward pass runs here, and completes the others."""
        if bucket.index() == 0:
            self._started = []  # a pass that failed has left its own
        reduction = self._start(bucket)
        if not bucket.is_last():
            self._started.append(reduction)
            return reduction.future()
        reduction.drive(_DRIVE_SECONDS)
        started, self._started = self._started, []
        for before in started:
            before.settle()
        return reduction.future()

    def _start(self, bucket: Any) -> Completion:
        """Starts the reduction of a bucket: at once, on its GPU, or from its GPU through the feeder."""
        through = self._through  # what begins later does so among the same ranks
        if self._joined is not None and bucket.index() == 0:
            size, ranks = self._group.size(), through.session.world_size
            if size != ranks:
                raise UsageError(
                    f"the process group has {size} members, this State {ranks}: make a new one when members "
                    "change"
                )
        buffer = bucket.buffer()
        if through.staging.reaches(buffer):
            early = not bucket.is_last()
            held = buffer._values() if buffer.is_sparse else buffer
            lazy = early and held.nbytes <= _LAZY_BYTES
            return self._reduce(through, bucket, buffer, background=early, lazy=lazy)
        part: Running
        backs: Sequence[Step] = ()
        bits = self._options.lanes(buffer)[0]
        if reduces_on_device(buffer, bits) and self.density == 1 and through.session.world_size > 1:
            memory = None
            if self.error_feedback:
                memory = self._memories.of(bucket.parameters(), buffer.device)
            part = through.staging.reduce(
                through.session, buffer, bits=int(bits or 0), average=True, seconds=self._seconds,
                memory=memory,
            )  # fmt: skip
        else:
            deferred = through.staging.defer(
                lambda x: self._reduce(through, bucket, x, background=True), [buffer]
            )
            if deferred is None:
                return self._reduce(through, bucket, buffer, background=True)
            part, backs = deferred
        return Completion([part], buffer, backs, through.futures)

    def _reduce(
        self,
        through: _Joined | Collectives,
        bucket: Any,
        buffer: torch.Tensor,
        *,
        background: bool,
        lazy: bool = False,
    ) -> Completion:
        """Starts the reduction of a bucket's gradients on the CPU, in place."""
        works: Sequence[Running]
        kind = self._kinds.of(buffer, "avg")
        if kind is not None and kind.dtype.is_floating_point:
            works, finish = sparse.start(
                through.session, buffer, kind, timeout=self._seconds, background=background, lazy=lazy
            )
            return Completion(works, buffer, [finish], through.futures, lazy=lazy)
        at = buffer.data_ptr() if buffer.layout == torch.strided else 0
        sum_ = self._sums.get((at, buffer.numel(), buffer.dtype))
        if sum_ is None:
            _check(buffer)
            if self._compressors is not None:
                compressor = self._compressors.of(bucket.parameters())
                work = compressed(
                    through.session, buffer.detach(), compressor, "avg", None, self._seconds,
                    background=background,
                )  # fmt: skip
                return Completion([work], buffer, [], through.futures)
            sum_ = self._sum(through.session, bucket, buffer)
        sum_work = through.session._repeat(sum_, buffer, self._seconds, background=background, lazy=lazy)
        works = () if sum_work is None else (sum_work,)
        return Completion(works, buffer, (), through.futures, lazy=lazy)

    def _sum(self, session: Session, bucket: Any, buffer: torch.Tensor) -> SumOptions:
        """The sum of a bucket, kept for the next time unless it has a memory, or blocks are chosen."""
        bits, min_bits = self._options.lanes(buffer)
        memory = None
        if self.error_feedback and buffer.dtype in _FEEDBACK_TYPES:
            memory = self._memories.of(bucket.parameters())
        blocks: Any = self._options.blocks
        block = self._options.block_size
        if self.density < 1:
            block = block or session.mask_block_size
            blocks = self._largest(buffer.detach(), block, memory)
        sum_ = SumOptions("avg", bits, min_bits, blocks, block, memory)
        if memory is None and self.density == 1:
            sum_ = repeated(buffer, sum_)
            if len(self._sums) >= _SUMS:
                self._sums.clear()
            self._sums[buffer.data_ptr(), buffer.numel(), buffer.dtype] = sum_
        return sum_

    def _largest(self, x: torch.Tensor, block: int, memory: torch.Tensor | None) -> Any:
        """A mask of the blocks with the largest norms; without a memory the others become zero in x."""
        blocks = -(-x.numel() // block)
        total = x.float() if memory is None else x.float() + memory
        padded = torch.nn.functional.pad(total, (0, blocks * block - x.numel())).view(blocks, block)
        norms = padded.square().sum(1).nan_to_num(math.inf)
        mask = torch.zeros(blocks, dtype=torch.bool, device="cpu")
        mask[norms.topk(math.ceil(self.density * blocks)).indices] = True
        if memory is None:
            x.masked_fill_((~mask).repeat_interleave(block)[: x.numel()], 0)
        return mask.numpy()


def _check(buffer: torch.Tensor) -> None:
    """Raises `UsageError` for gradients that cannot be averaged."""
    if not dense(buffer) or not buffer.is_floating_point():
        raise UsageError(
            f"the gradients are {buffer.dtype}, {buffer.layout} on {buffer.device}; allreduce_hook takes "
            "floating point gradients on the CPU or a CUDA device, strided or sparse COO of up to 2^32 "
            "elements"
        )
    if torch_name(buffer.dtype) not in SUMMABLE:
        raise UsageError(f"the gradients are {buffer.dtype}, which cannot be summed")


def allreduce_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks through the switch, for `register_comm_hook`."""
    if torch.autograd._profiler_enabled():
        with ranged("allreduce_hook"):
            return state._hand_over(bucket)
    return state._hand_over(bucket)
