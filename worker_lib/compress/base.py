"""The interface of compressors: a compressor makes messages that a switch can add.

A switch sums 32-bit words (and ORs them); it cannot decode. So compression has to commute with the sum:

    x_i --share--> words --OR over ranks--> shared          (only methods that need a common scale)
              `--> Message --SUM over ranks--> shared       (only methods of two sums)
    x_i --encode(shared)--> Message --SUM over ranks--> total --decode--> sum of Q_i(x_i), equal at all ranks
                               |
                               +--own--> Q_i(x_i): this rank's addend (memories need it)

A `Compressor` has no I/O in it; `worker_lib.compress.reduce` takes it through a session. Its state changes in
`decode` alone, so a round that fails leaves it as it was, at every rank.

Random numbers are of two kinds. Draws that all ranks share come from (seed, round) and need no
message. Draws of one rank come from a generator seeded with (seed, rank).
"""

from __future__ import annotations

import copy
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError

Floats = npt.NDArray[Any]  # one-dimensional, float32 or float64
Words = npt.NDArray[Any]  # uint32 from an OR; a message's values from a SUM


class RangeError(UsageError):
    """A sum is outside the range of its lanes, or values do not fit them. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Round:
    """The participants of one reduction.

    Attributes:
        rank: this process's.
        world_size: number of ranks.
    """

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One rank's contribution to a reduction.

    Attributes:
        values: one-dimensional; int32 words, which are added mod 2^32, or float32 or float64, of which the
            session makes lanes itself.
        bits: width of those lanes; None for words, and for the widest of the type.
        blocks: the blocks to send: "auto", "dense", "sparse", or a bool mask, one entry a block.
        block_size: elements of `values` a block; None for the job's.
        memory: float32, like `values`, zeroed: where the session leaves what narrow lanes do not carry.
        kept: state of the compressor between `encode` and `decode`.
    """

    values: npt.NDArray[Any]
    bits: int | None = None
    blocks: str | npt.NDArray[np.bool_] = "auto"
    block_size: int | None = None
    memory: npt.NDArray[np.float32] | None = None
    kept: Any = None

    @property
    def payload_bits(self) -> int:
        """Number of lane bits in this message, before zero blocks are skipped."""
        return int(self.values.size) * (self.bits or 8 * self.values.dtype.itemsize)


class Compressor(ABC):
    """One rank's compressor for one tensor, whose size the first round fixes.

    Every rank makes it with the same arguments. One reduction at a time.

    Args:
        seed: seeds its random draws; the same at all ranks.

    Attributes:
        unbiased: true if the mean of `own` over its random draws is x.
        draws_shared: true if all ranks must draw the same random numbers.
        remembers: true if it has a memory with an entry for each element, so that elements must keep their
            indices from round to round.
        parameters: attributes that `describe` shows, by name.
        memory_names: its memories, by name.
        step: number of completed rounds.
    """

    unbiased: bool = False
    draws_shared: bool = False
    remembers: ClassVar[bool] = False
    parameters: tuple[str, ...] = ()
    memory_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, seed: int = 0) -> None:
        if not isinstance(seed, int) or seed < 0:
            raise UsageError(f"seed is {seed!r}; accepted: an integer from 0")
        self.seed = seed
        self.step = 0
        self.stream = 0
        self._size: int | None = None
        self._private: np.random.Generator | None = None
        self._memory: dict[str, Floats] = {}
        self._scalars: dict[str, float | None] = {}  # the same at all ranks; None: not known yet
        self._with: tuple[weakref.ref[Any], int] | None = None  # the members of the last round
        self._running = False

    # ------------------------------------------------------------------ one round

    def begin(self, session: Any, generation: int) -> None:
        """Begins a round with the members that `session` has in this generation.

        Raises:
            UsageError: the previous round is not complete.
        """
        if self._running:
            raise UsageError(
                f"{self.describe()} is in the middle of a reduction: wait for it first, or make a compressor "
                "for each tensor"
            )
        if self._with is not None and (self._with[0]() is not session or self._with[1] != generation):
            self.forget_shared()
        self._with = weakref.ref(session), generation
        self._running = True

    def end(self) -> None:
        """Ends the round, complete or failed."""
        self._running = False

    def prepare(self, size: int, round: Round) -> None:
        """Checks the size and the parameters before a round. Nothing has been sent yet.

        Raises:
            UsageError: a parameter does not fit this number of elements or ranks; the message has the bound.
        """
        if self._size is not None and size != self._size:
            raise UsageError(
                f"{self.describe()} has been used for {self._size} elements and gets {size}; "
                "make one compressor for each tensor"
            )
        self.check(size, round)

    def check(self, size: int, round: Round) -> None:  # noqa: B027  (most methods have nothing to check)
        """Checks this method's own parameters; called by `prepare`, with the same errors."""

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns words for an OR over all ranks before they encode, or a message for a SUM; None if no such
        round is needed."""
        return None

    @abstractmethod
    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns this rank's message.

        Args:
            x: this rank's vector.
            shared: the OR, or the SUM, over all ranks of what `share` returned.
            round: the participants.
        """

    @abstractmethod
    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns this rank's addend Q_i(x_i). Called after the sum and before `decode`."""

    @abstractmethod
    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum over ranks of their `own`, the same to the bit at all ranks, and advances the
        state.

        Args:
            total: the sum of all ranks' `values`.
            message: this rank's.
            shared, round: as in `encode`.

        Raises:
            RangeError: the sum is ambiguous; raised at all ranks.
        """

    # ------------------------------------------------------------------ constants of the theory

    def omega(self, size: int, workers: int = 1) -> float | None:
        """Returns omega of E|Q(x) - x|^2 <= omega |x|^2, for unbiased Q on `size` elements; None if there is
        none.

        With a shared scale |x| is the largest of all ranks', and `workers` their number.
        """
        return None

    def shared_omega(self, size: int, workers: int = 1) -> float:
        """Returns the part of omega that comes from draws which all ranks share; 0 by default.

        1 + omega = (1 + shared) (1 + own). Averaging over ranks shrinks the own part alone.
        """
        return 0.0

    def mean_omega(self, size: int, workers: int) -> float | None:
        """Returns w of E|mean Q_i(x_i) - mean x_i|^2 <= w mean |x_i|^2 over all ranks; None without an omega.

        A draw that all ranks share commutes with their mean and scatters it as it scatters one vector; what
        each rank draws for itself scatters by 1 / n: w = shared + (1 + shared) own / n.
        """
        omega, shared = self.omega(size, workers), self.shared_omega(size, workers)
        return None if omega is None else shared + (omega - shared) / workers

    def delta(self, size: int, workers: int = 1) -> float | None:
        """Returns delta of E|C(x) - x|^2 <= (1 - delta) |x|^2, in (0, 1]; None if there is none.

        An unbiased compressor with omega < 1 contracts too, with delta = 1 - omega.
        """
        omega = self.omega(size, workers) if self.unbiased else None
        return None if omega is None or omega >= 1 else 1 - omega

    def describe(self) -> str:
        """Returns name and parameters in one line."""
        values = ((name.lstrip("_"), getattr(self, name)) for name in self.parameters)
        shown = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!r}" for name, value in values
        ]
        return f"{type(self).__name__}({', '.join(shown)})" if shown else type(self).__name__

    # ------------------------------------------------------------------ state

    def parts(self) -> Iterator[Compressor]:
        """Yields the compressors inside this one."""
        yield from ()

    def with_parts(self) -> Iterator[Compressor]:
        """Yields this one and all that it is made of, at any depth, in order."""
        yield self
        for part in self.parts():
            yield from part.with_parts()

    def memories(self) -> dict[str, Floats]:
        """Returns state with an entry for each element of x, by name; none before the first round.

        Writing to it changes the state.
        """
        return dict(self._memory)

    def lay_out(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Tells the shapes of the tensors that x is made of, in its order; for methods that use them."""
        for part in self.parts():
            part.lay_out(shapes)

    def restore_memories(self, memories: Mapping[str, Floats]) -> None:
        """Sets memories to copies, for example after a tensor was cut into other buckets.

        Raises:
            UsageError: they are not its memories.
        """
        if set(memories) != set(self.memory_names):
            raise UsageError(
                f"memories are {sorted(memories)}; {self.describe()} needs {sorted(self.memory_names)}"
            )
        self._memory = {name: np.array(memory).reshape(-1) for name, memory in memories.items()}

    def scalars(self) -> dict[str, float | None]:
        """Returns scalar state by name, `step` excepted."""
        return dict(self._scalars)

    def restore_scalars(self, scalars: Mapping[str, float | None]) -> None:
        """Sets what `scalars` returned."""
        self._scalars = {name: scalars[name] for name in self._scalars}

    def forget_shared(self) -> None:
        """Drops the state that all ranks must share, because the participants change.

        Every rank calls it before the same round. This rank's own state, such as a residual, stays.
        """
        self.step = 0
        self._scalars = dict.fromkeys(self._scalars)
        for part in self.parts():
            part.forget_shared()

    def fork(self, stream: int) -> Self:
        """Returns a new compressor like this one, for another tensor, with draws of its own.

        Args:
            stream: number of the tensor; the same at all ranks.
        """
        other = copy.deepcopy(self)
        other._restart(stream)
        return other

    def _restart(self, stream: int) -> None:
        self.stream = stream
        self.step = 0
        self._size = None
        self._private = None
        self._memory = {}
        self._scalars = dict.fromkeys(self._scalars)
        for part in self.parts():
            part._restart(stream)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: arrays, numbers and text. It differs between ranks."""
        return {
            "name": type(self).__name__,
            "step": self.step,
            "stream": self.stream,
            "size": self._size,
            "private": None if self._private is None else self._private.bit_generator.state,
            "memories": {name: memory.copy() for name, memory in self.memories().items()},
            "scalars": self.scalars(),
            "parts": [part.state_dict() for part in self.parts()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`.

        Raises:
            UsageError: the state is another compressor's; nothing was changed.
        """
        self._check_state(state)
        self._load(state)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("name") != type(self).__name__:
            raise UsageError(f"state is of {state.get('name')!r}; needed: {type(self).__name__!r}")
        parts = list(self.parts())
        if len(parts) != len(state["parts"]):
            raise UsageError(f"state has {len(state['parts'])} parts; {self.describe()} has {len(parts)}")
        for part, its in zip(parts, state["parts"], strict=True):
            part._check_state(its)

    def _load(self, state: Mapping[str, Any]) -> None:
        self.step, self.stream, self._size = int(state["step"]), int(state["stream"]), state["size"]
        self._private = None
        if state["private"] is not None:
            self._private = np.random.default_rng()
            self._private.bit_generator.state = state["private"]
        self._memory = {}
        if state["memories"]:
            self.restore_memories({name: np.array(m) for name, m in state["memories"].items()})
        self.restore_scalars(state["scalars"])
        for part, its in zip(self.parts(), state["parts"], strict=True):
            part._load(its)

    def tag(self) -> str:
        """Returns text that must be the same at all ranks in a round."""
        draws = [f" draw {each.stream}/{each.step}" for each in self.with_parts() if each.draws_shared]
        return self.describe() + "".join(draws)

    def follow(self, other: Compressor) -> None:
        """Continues where `other` is, which has been used with the same ranks."""
        self._with = other._with

    # ------------------------------------------------------------------ for subclasses

    def _shared_keys(self, count: int) -> npt.NDArray[np.uint64]:
        """Returns random words of this round, the same at all ranks.

        Raw words, because NumPy keeps these the same from version to version.
        """
        seeds = np.random.SeedSequence((self.seed, self._salt(), self.stream, 0, self.step))
        keys: npt.NDArray[np.uint64] = np.random.PCG64(seeds).random_raw(count)
        return keys

    def _private_draws(self, round: Round) -> np.random.Generator:
        """Returns this rank's generator; it continues from round to round."""
        if self._private is None:
            self._private = np.random.default_rng((self.seed, self._salt(), self.stream, 1 + round.rank))
        return self._private

    def _salt(self) -> int:
        return zlib.crc32(type(self).__name__.encode())

    def _done(self, size: int) -> None:
        """Completes a round; called at the end of `decode`."""
        self.step += 1
        self._size = size
