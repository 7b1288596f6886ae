"""Compressors with a memory round an inner one: error feedback, EF21, MARINA, DIANA's differences.

    x --plus or minus a memory--> y --inner--> message;  after the sum the memory moves by what was sent

    ErrorFeedback   p = x + b e,  C(p) is sent,  e = p - C(p);  b = 1, or less to forget
    EF21            worker i:  c_i = C(x_i - g_i) is sent,  g_i += c_i;        everyone:  G += sum of c_i
    EF21SGDM        the same with a moving average of x_i in its place
    Marina          x_i itself by a coin that all toss alike, else Q(x_i - x_i of the last round) and G += sum
    Differences     worker i:  d_i = Q(x_i - h_i) is sent,  h_i += alpha d_i;  everyone: H += alpha sum d_i

A round whose sum is not finite somewhere leaves the memory there as it was: one NaN must not stay for ever.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words


class Remembering(Compressor):
    """Compresses a vector made of x and a memory.

    Args:
        inner: the compressor of that vector.

    Raises:
        UsageError: `inner` is no compressor.
    """

    remembers = True

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        if not isinstance(inner, Compressor):
            raise UsageError(f"inner is a {type(inner).__name__}; accepted: a worker_lib.compress.Compressor")
        self.inner = inner

    @abstractmethod
    def ahead(self, x: Floats) -> Floats:
        """Returns the inner compressor's input, a new array."""

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the inner compressor refuses, or a memory has another size."""
        for name, memory in self._memory.items():
            if memory.size != size:
                raise UsageError(f"memory {name!r} has {memory.size} elements, and x has {size}")
        self.inner.prepare(size, round)

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns the inner compressor's shared words."""
        return self.inner.share(self.ahead(x), round)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns the inner compressor's message."""
        y = self.ahead(x)
        inner = self.inner.encode(y, shared, round)
        return replace(inner, kept=(inner, y))

    def parts(self) -> Iterator[Compressor]:
        """Yields the inner compressor."""
        yield self.inner

    def describe(self) -> str:
        """Returns the name and the inner compressor."""
        return f"{type(self).__name__}({self.inner.describe()})"

    def _of(self, name: str, x: Floats) -> Floats:
        """Returns a memory in x's type; zeros at first."""
        memory = self._memory.get(name)
        if memory is None or memory.dtype != x.dtype:
            memory = np.zeros_like(x) if memory is None else memory.astype(x.dtype)
            self._memory[name] = memory
        return memory


class Following(Remembering):
    """Compresses the difference of x to a memory h_i that follows x; the shared memory H follows the sum.

    State: two vectors like x, "own" (h_i) and "sum" (H), zero at first and whenever the participants change.
    Every rank keeps H from the same sums, so it is equal everywhere to the bit and never sent.
    """

    memory_names: ClassVar[tuple[str, ...]] = ("own", "sum")

    @abstractmethod
    def rate(self, size: int, workers: int) -> float:
        """Returns the step of the memories towards what was sent, in (0, 1]."""

    def ahead(self, x: Floats) -> Floats:
        """Returns the difference to this rank's memory."""
        result: Floats = x - self._of("own", x)
        return result

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns h_i plus what was sent."""
        inner, y = message.kept
        result: Floats = self._of("own", y) + self.inner.own(inner, shared, round)
        return result

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns H plus the sum of what was sent; then both memories move."""
        inner, y = message.kept
        sent = self.inner.own(inner, shared, round)
        change = self.inner.decode(total, inner, shared, round)
        h, every = self._of("own", y), self._of("sum", y)
        result: Floats = every + change
        rate = y.dtype.type(self.rate(y.size, round.world_size))
        h += rate * finite(sent, change)
        every += rate * finite(change, change)
        self._done(result.size)
        return result

    def forget_shared(self) -> None:
        """Drops both memories: H is a sum over other participants."""
        super().forget_shared()
        self._memory = {}


def finite(change: Floats, total: Floats) -> Floats:
    """Returns a memory's change, zero wherever the sum is not finite."""
    there = np.isfinite(total)
    if there.all():
        return change
    return np.where(there, change, change.dtype.type(0))


class ErrorFeedback(Remembering):
    """Error feedback around any compressor. The memory is this rank's alone: d numbers, "residual".

    EF-SGD (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv 1901.09847), with
    the memory in units of x, which is the same while the step size does not change. After Seide et al., 1-bit
    SGD (Interspeech 2014).

    With a decay below 1 an old residual fades: SparseLoCo's accumulator (Sarfi et al., arXiv 2508.15706), in
    place of an outer momentum.

    Args:
        inner: the compressor of x plus the residual.
        decay: b, what is left of the residual in the next round, in (0, 1].

    Raises:
        UsageError: `inner` is no compressor, or decay is out of bounds.
    """

    memory_names = ("residual",)

    def __init__(self, inner: Compressor, decay: float = 1.0) -> None:
        super().__init__(inner)
        if not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise UsageError(f"decay is {decay!r}; accepted: greater than 0, at most 1")
        self.decay = float(decay)

    def ahead(self, x: Floats) -> Floats:
        """Returns x plus what is left of the residual."""
        residual = self._of("residual", x)
        result: Floats = x + (residual if self.decay == 1 else x.dtype.type(self.decay) * residual)
        return result

    def describe(self) -> str:
        """Returns the name, the inner compressor, and a decay below 1."""
        return super().describe() if self.decay == 1 else f"{super().describe()[:-1]}, decay={self.decay:g})"

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns what was sent."""
        return self.inner.own(message.kept[0], shared, round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum of what was sent; the rest becomes the residual."""
        inner, y = message.kept
        left = y - self.inner.own(inner, shared, round)
        result = self.inner.decode(total, inner, shared, round)
        residual = self._of("residual", y)
        there = np.isfinite(result)
        if there.all():
            residual[:] = left
        else:
            residual[there] = left[there]
        self._done(result.size)
        return result


class EF21(Following):
    """EF21: compressed differences for a compressor that contracts, one with a delta. State as `Following`'s.

    Richtarik, Sokolov, Fatkhullin: EF21, NeurIPS 2021, arXiv 2106.05203.

    Args:
        inner: a compressor with a `delta`, such as `TopBlocks`, `RandomBlocks(scaled=False)`, or a fine
            quantizer. One without is refused in the first round.
    """

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the inner compressor refuses or does not contract."""
        super().check(size, round)
        if self.inner.delta(size, round.world_size) is None:
            raise UsageError(
                f"inner is {self.inner.describe()}, which has no delta in (0, 1] on {size} elements and "
                f"{round.world_size} workers; EF21 needs a contraction: TopBlocks, RandomBlocks("
                "scaled=False), or a quantizer with omega under 1"
            )

    def rate(self, size: int, workers: int) -> float:
        """Returns 1."""
        return 1.0


class EF21SGDM(EF21):
    """EF21 with a moving average of x in its place, which makes it converge with stochastic gradients.

    v_i <- (1 - eta) v_i + eta x_i, and C(v_i - g_i) is sent. EF21 alone may diverge where gradients are
    noisy, whatever the batch. State: that of EF21 and v_i, "average".

    Fatkhullin, Tyurin, Richtarik: Momentum Provably Improves Error Feedback!, NeurIPS 2023, arXiv 2305.15155
    (EF21-SGDM), which has its rate for any contraction and any batch.

    Args:
        inner: as for `EF21`.
        eta: in (0, 1]; 1 is EF21. The momentum of an optimizer with this result is in it already.

    Raises:
        UsageError: eta is out of bounds.
    """

    memory_names = ("own", "sum", "average")

    def __init__(self, inner: Compressor, eta: float = 0.1) -> None:
        super().__init__(inner)
        if not isinstance(eta, int | float) or not 0 < eta <= 1:
            raise UsageError(f"eta is {eta!r}; accepted: greater than 0, at most 1")
        self.eta = float(eta)

    def ahead(self, x: Floats) -> Floats:
        """Returns the difference of the average to this rank's memory; the first average is x."""
        if "average" not in self._memory:
            return super().ahead(x)
        eta, average = x.dtype.type(self.eta), self._of("average", x)
        result: Floats = average + eta * (x - average) - self._of("own", x)
        return result

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns G; the average moves too."""
        _, y = message.kept
        average = self._of("own", y) + y
        result = super().decode(total, message, shared, round)
        there = np.isfinite(result)
        self._memory["average"] = np.where(there, average, self._memory.get("average", y.dtype.type(0)))
        return result

    def describe(self) -> str:
        """Returns the name, the inner compressor and eta."""
        return f"EF21SGDM({self.inner.describe()}, eta={self.eta:g})"


class Marina(Following):
    """MARINA: compressed differences to the last round's x, and now and then x itself.

    With probability p, by a coin that all ranks toss alike, x is sent in full, at all ranks; else
    Q(x_i - x_i of the last round), which is added to what came before. The first round goes in full. State:
    that of `Following`, and the last x, "last". The sum is right on average only over the coin.

    Gorbunov, Burlachenko, Li, Richtarik: MARINA: Faster Non-Convex Distributed Learning with Compression,
    ICML 2021, arXiv 2102.07845. Gradient descent with a step of at most
    1 / (L (1 + sqrt((1 - p) omega / (p n)))) finds stationary points, with `mean_omega` in the
    place of omega / n.

    Args:
        inner: an unbiased compressor.
        p: in (0, 1]; by default 1 / (1 + omega), with which both kinds of round cost about the same in all.
        seed: of the coins.

    Raises:
        UsageError: `inner` is biased, or p is out of bounds.
    """

    draws_shared = True
    memory_names = ("own", "sum", "last")

    def __init__(self, inner: Compressor, p: float | None = None, seed: int = 0) -> None:
        super().__init__(inner)
        if not inner.unbiased:
            raise UsageError(
                f"inner is {inner.describe()}, which is biased; MARINA needs an unbiased compressor "
                "(for a contraction there is EF21)"
            )
        if p is not None and (not isinstance(p, int | float) or not 0 < p <= 1):
            raise UsageError(f"p is {p!r}; accepted: greater than 0, at most 1")
        self.p, self.seed = p, seed

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the inner compressor refuses, or neither p nor its omega is known."""
        super().check(size, round)
        self.chance(size, round.world_size)

    def chance(self, size: int, workers: int) -> float:
        """Returns p for vectors of this size."""
        omega = self.inner.omega(size, workers)
        if self.p is None and omega is None:
            raise UsageError(f"p is not given, and {self.inner.describe()} has no omega to set it by")
        return float(self.p) if self.p is not None else 1 / (1 + (omega or 0.0))

    def rate(self, size: int, workers: int) -> float:
        """Returns 1."""
        return 1.0

    def ahead(self, x: Floats) -> Floats:
        """Returns the difference to the last round's x."""
        result: Floats = x - self._of("last", x)
        return result

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns the inner compressor's shared words; None in a round in full."""
        return None if self._in_full(x.size, round) else super().share(x, round)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns the inner compressor's message, or x."""
        if self._in_full(x.size, round):
            return Message(x, kept=(None, x))
        inner = self.inner.encode(self.ahead(x), shared, round)
        return replace(inner, kept=(inner, x))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns what this rank has added to the sum."""
        inner, x = message.kept
        if inner is None:
            return message.values
        result: Floats = self._of("own", x) + self.inner.own(inner, shared, round)
        return result

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum; memories move if it is finite."""
        inner, x = message.kept
        if inner is None:
            own, result = x, total
        else:
            own = self.own(message, shared, round)
            result = self._of("sum", x) + self.inner.decode(total, inner, shared, round)
        if np.isfinite(result).all():
            self._memory = {"own": own.copy(), "sum": result.copy(), "last": x.copy()}
        self._done(x.size)
        return result

    def _in_full(self, size: int, round: Round) -> bool:
        if not self._memory:
            return True
        return int(self._shared_keys(1)[0]) * 2.0**-64 < self.chance(size, round.world_size)


class Differences(Following):
    """DIANA's compressed differences to a memory, around any unbiased compressor. State as `Following`'s.

    As gradients settle, differences go to zero, and with them the noise of compression (Mishchenko et al.,
    Distributed Learning with Compressed Gradient Differences, arXiv 1901.09269; any unbiased Q:
    Horvath et al., arXiv 1904.05115).

    Args:
        inner: an unbiased compressor. alpha: step of the memories, in (0, 1 / (1 + omega)] if the inner
        compressor's omega is known, the bound
            of arXiv 1904.05115; that bound by default.

    Raises:
        UsageError: `inner` is biased, or alpha is not positive. Alpha over its bound is refused in the first
            round, when omega is known.
    """

    def __init__(self, inner: Compressor, alpha: float | None = None) -> None:
        super().__init__(inner)
        if not inner.unbiased:
            raise UsageError(
                f"inner is {inner.describe()}, which is biased; differences need an unbiased compressor "
                "(for a contraction there is EF21)"
            )
        if alpha is not None and (not isinstance(alpha, int | float) or not 0 < alpha <= 1):
            raise UsageError(f"alpha is {alpha!r}; accepted: greater than 0, at most 1 / (1 + omega)")
        self.alpha = alpha

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """True, as the inner compressor."""
        return True

    def rate(self, size: int, workers: int) -> float:
        """Returns alpha for vectors of this size.

        Raises:
            UsageError: alpha is over its bound, or neither alpha nor an omega is known.
        """
        omega = self.inner.omega(size, workers)
        if omega is None:
            if self.alpha is None:
                raise UsageError(f"alpha is not given, and {self.inner.describe()} has no omega to set it by")
            return float(self.alpha)
        bound = 1 / (1 + omega)
        if self.alpha is None:
            return bound
        if self.alpha > bound * (1 + 1e-12):
            raise UsageError(
                f"alpha is {self.alpha:g}; accepted: at most 1 / (1 + omega) = {bound:.6g}, where omega is "
                f"{omega:.6g} for {self.inner.describe()} on {size} elements and {workers} workers"
            )
        return float(self.alpha)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if alpha is over its bound or the inner compressor refuses."""
        super().check(size, round)
        self.rate(size, round.world_size)

    def describe(self) -> str:
        """Returns the name and the inner compressor."""
        alpha = "" if self.alpha is None else f", alpha={self.alpha:g}"
        return f"Differences({self.inner.describe()}{alpha})"
