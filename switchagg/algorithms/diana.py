"""DIANA: gradient descent on quantized differences to a memory; linear where quantized gradients stall.

Mishchenko, Gorbunov, Takac, Richtarik, "Distributed Learning with Compressed Gradient Differences" (arXiv
1901.09269); for any unbiased compressor Horvath et al. (arXiv 1904.05115).

    d_i = Q(grad f_i(x) - h_i)                  what worker i gives to the switch
    g   = h + mean d_i                          unbiased
    h_i <- h_i + alpha d_i,  h <- h + alpha mean d_i
    v  <- beta v + g,  x <- prox(x - gamma v), with step gamma / (1 - beta)

The memories are `compress.Differences`, around any unbiased compressor: quantized, sparsified, or both
(`chain`). Near x* the gradients settle, the differences vanish, and with them what Q scatters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms.base import Array, Problem, checked_gamma, checked_start, constants, runner
from switchagg.errors import UsageError, require
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.memories import Differences

if TYPE_CHECKING:
    from worker_lib.session import Session


_BLOCK: Final = 64  # elements; what a job skips unless it was told otherwise


class Counted(Compressor):
    """Does what `inner` does, and counts what it hands to the switch, for the log of a method.

    Attributes:
        bits: of all messages so far: words that were shared, lanes of blocks that were sent, and a bit a
            block where ranks do not all send the same ones.
    """

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        self.inner = inner
        self.bits = 0
        self._shared_bits = 0

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.inner.unbiased

    def check(self, size: int, round: Round) -> None:
        self.inner.prepare(size, round)

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        words = self.inner.share(x, round)
        if isinstance(words, Message):
            self._shared_bits = words.payload_bits
        else:
            self._shared_bits = 0 if words is None else 32 * words.size
        return words

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        message = self.inner.encode(x, shared, round)
        self.bits += self._shared_bits + sent_bits(message)
        return message

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        return self.inner.own(message, shared, round)

    def decode(self, total: NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        result = self.inner.decode(total, message, shared, round)
        self._done(result.size)
        return result

    def omega(self, size: int, workers: int = 1) -> float | None:
        return self.inner.omega(size, workers)

    def shared_omega(self, size: int, workers: int = 1) -> float:
        return self.inner.shared_omega(size, workers)

    def parts(self) -> Iterator[Compressor]:
        yield self.inner

    def describe(self) -> str:
        return self.inner.describe()


def sent_bits(message: Message) -> int:
    """Bits of the blocks that a rank sends of its message, and of the bitmap that says which."""
    values = message.values
    lane = message.bits or 8 * values.dtype.itemsize
    if isinstance(message.blocks, str):
        if message.blocks == "dense":
            return message.payload_bits
        starts = np.arange(0, values.size, message.block_size or _BLOCK)
        sent = np.logical_or.reduceat(values != 0, starts) if values.size else np.zeros(0, np.bool_)
        if sent.all():
            return message.payload_bits
    else:
        sent = np.asarray(message.blocks, np.bool_)
    block = message.block_size or _BLOCK
    inside = int(np.count_nonzero(np.repeat(sent, block)[: values.size]))
    return inside * lane + int(sent.size)


class CompressedAverage:
    """The average of all workers' vectors, compressed, with a memory or without.

    Args:
        dim: length of the vectors.
        compressor: unbiased; it is copied, so one may serve for several runs.
        alpha: how far memories move, in (0, 1 / (1 + omega)]; that bound by default.
        memory: whether differences to a memory travel, or the vectors themselves.

    Attributes:
        omega: variance of what travels, as the compressor states it.
        mean_omega: variance of its mean over the workers, relative to their mean square; at least omega / n.
        alpha: how far the memories move; 0 without them.

    Raises:
        UsageError: the compressor is biased or has no omega, or alpha is over its bound.
    """

    def __init__(
        self, session: Session, dim: int, compressor: Compressor, alpha: float | None, *, memory: bool
    ) -> None:
        if not isinstance(compressor, Compressor):
            raise UsageError(
                f"compressor is a {type(compressor).__name__}; accepted: a worker_lib.compress.Compressor"
            )
        if not compressor.unbiased:
            raise UsageError(
                f"compressor is {compressor.describe()}, which is biased; needed: an unbiased one "
                "(for a contraction there is EF21)"
            )
        inner = compressor.fork(0)
        omega = inner.omega(dim, session.world_size)
        if omega is None:
            raise UsageError(
                f"compressor is {compressor.describe()}, whose variance has no bound; needed: one that has"
            )
        mean_omega = inner.mean_omega(dim, session.world_size)
        assert mean_omega is not None
        self.omega, self.mean_omega = omega, mean_omega
        self._differences = Differences(inner, alpha) if memory else None
        self.alpha = 0.0 if self._differences is None else self._differences.rate(dim, session.world_size)
        self._session = session
        self._counted = Counted(inner if self._differences is None else self._differences)

    def __call__(self, x: Array) -> tuple[Array, int]:
        """The estimate of the average, and bits of this worker's messages. One or two collectives."""
        before = self._counted.bits
        out = np.empty_like(x)
        self._session.allreduce(x, compressor=self._counted, op="avg", out=out)
        return out, self._counted.bits - before

    def memories(self) -> tuple[Array, Array]:
        """h_i and h; zeros before the first round.

        Raises:
            UsageError: it has no memory.
        """
        if self._differences is None:
            raise UsageError("there is no memory: this was made with memory=False")
        found = self._differences.memories()
        return found["own"], found["sum"] / self._session.world_size


class Momentum:
    """v <- beta v + g,  x <- prox(x - gamma v), with step gamma / (1 - beta).

    Args:
        dim: length of x.
        beta: in [0, 1).
    """

    def __init__(self, dim: int, beta: float) -> None:
        require(0 <= beta < 1, "momentum", repr(beta), "0 and up, under 1")
        self._beta = float(beta)
        self._velocity = np.zeros(dim)

    def step(self, problem: Problem, x: Array, estimate: Array, gamma: float) -> Array:
        """The next x."""
        self._velocity = self._beta * self._velocity + estimate
        # At rest v is g / (1 - beta): only with this step is a minimizer a fixed point.
        return problem.prox(x - gamma * self._velocity, gamma / (1 - self._beta))


class Diana:
    """One worker's part.

    The paper's compressors are independent between workers, so that their mean scatters with omega / n.
    Blocks that all workers draw alike scatter their mean as they scatter one vector. So the bound has
    w = omega_m + (1 + omega_m) omega_q / n in the place of omega / n, omega_m being the part of omega from
    shared draws and omega_q the rest (`Compressor.mean_omega`); the proof uses the mean's variance alone.

    Where a compressor's scale is shared by all workers, omega_q is relative to the largest difference of any
    worker, and the bounds of gamma and alpha are proved with n omega_q in its place; where workers'
    differences are of one size, as they are stated.

    Args:
        compressor: unbiased, with a known omega; made alike at all workers. It is copied.
        alpha: how far memories move, in (0, 1 / (1 + omega)]; that bound by default.
        step: gamma; by default 1 / (L (1 + 6 w)) (with w = omega / n: Gorbunov, Hanzely, Richtarik, arXiv
            1905.11261), L being the largest L_i, and at most 2 / L.
        momentum: beta, in [0, 1). Where there is an R, its proximal step is gamma / (1 - beta) (the paper has
            gamma, whose fixed points are no minimizers).
        memory: False for quantized gradient descent (QSGD), which does not converge to x* in general.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        average: holds the memories.
        gamma, gamma_bound: the step size, and the largest for which convergence is proved.
        rate: 1 - rate is the factor by which the expected error shrinks, at least, in each step, at
            gamma <= gamma_bound, with memories and without momentum.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        compressor: Compressor,
        alpha: float | None = None,
        step: float | None = None,
        momentum: float = 0.0,
        memory: bool = True,
        x0: ArrayLike | None = None,
    ) -> None:
        self.x = checked_start(problem, x0)
        self._problem = problem
        self._momentum = Momentum(problem.dim, momentum)
        self.average = CompressedAverage(session, problem.dim, compressor, alpha, memory=memory)
        known = constants(problem, session)
        self.gamma_bound = 1 / (known.smoothness * (1 + 6 * self.average.mean_omega))
        self.gamma = checked_gamma(step, known.smoothness, self.gamma_bound)
        self.rate = min(self.gamma * known.strong_convexity, self.average.alpha / 2)

    def step(self) -> int:
        """One step; one collective, or two where the compressor needs a common scale."""
        estimate, bits = self.average(self._problem.gradient(self.x))
        self.x = self._momentum.step(self._problem, self.x, estimate, self.gamma)
        return bits


run = runner(Diana)
