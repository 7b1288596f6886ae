"""GADMM: workers in a chain, each talking to its neighbours only; with changing chains, and quantized.

A. Elgabli, J. Park, A. S. Bedi, M. Bennis, V. Aggarwal: *GADMM: Fast and Communication Efficient Framework
for Distributed Machine Learning*, JMLR 21 (2020), arXiv 1909.00047, with D-GADMM; A. Elgabli et al.:
*Q-GADMM: Quantized Group ADMM for Communication Efficient Decentralized Machine Learning*, arXiv 1910.10453.

    heads   x_i = argmin f_i(x) - <p_i, x> + rho/2 sum over neighbours ||x - x_j||^2,   and send it
    tails   the same, with what the heads have just sent,                              and send it
    all     p_i += rho sum over neighbours (x_j - x_i)

The papers have a multiplier for each link, of which a worker needs only the difference of its two, p_i; at
the optimum this is the gradient of f_i, whatever the chain. So workers keep p_i when the chain changes, and
only models are sent to new neighbours. All that p_i have to be is zero in sum, which they stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms.base import Array, Log, Problem, checked_at_least, checked_start
from switchagg.algorithms.chain import Chain
from switchagg.errors import SwitchAggError, UsageError, require

if TYPE_CHECKING:
    from worker_lib.session import Session

_FLOAT_BITS: Final = 64
BITS: Final = (2, 16)
_STEPS: Final = 100
_HALVINGS: Final = 40
_PRECISION: Final = 1e-13  # of the gradient, relative to its parts


class Quantizer:
    """Q-GADMM's: a message is the difference to the one before, in 2^bits - 1 steps over its range.

    The range R is the largest difference; a difference lies between two of the levels -R, ..., R and is
    rounded to either at random, unbiased. Each coordinate is off by less than a step, 2 R / (2^bits - 1), and
    its variance is at most a quarter of a step squared.

    Args:
        size: d.
        bits: of a coordinate, 2 to 16.
        random: this worker's own.

    Attributes:
        sent: the vector as its receivers hold it; (d,).
    """

    def __init__(self, size: int, bits: int, random: np.random.Generator) -> None:
        if not isinstance(bits, int | np.integer) or not BITS[0] <= bits <= BITS[1]:
            raise UsageError(f"bits is {bits!r}; accepted: {BITS[0]} to {BITS[1]}, or None for float64")
        self.sent: Array = np.zeros(size)
        self._levels = (1 << int(bits)) - 1
        self._bits = int(bits)
        self._random = random

    def encode(self, x: Array) -> NDArray[np.uint8]:
        """Returns the message that brings `sent` near x, and updates `sent`."""
        difference = x - self.sent
        reach = float(np.abs(difference).max(initial=0.0))
        places = np.zeros(x.size)
        if reach > 0:
            exact = (difference + reach) / (2 * reach) * self._levels
            places = np.floor(exact + self._random.random(x.size)).clip(0, self._levels)
        message = np.concatenate(
            [np.array([reach]).view(np.uint8), pack(places.astype(np.uint32), self._bits)]
        )
        self.sent = decode(message, self.sent, self._bits)
        return message


def decode(message: NDArray[np.uint8], before: Array, bits: int) -> Array:
    """Returns a neighbour's vector from its message and its vector before."""
    reach = float(message[:8].view(np.float64)[0])
    places = unpack(message[8:], before.size, bits)
    return np.asarray(before + (places * (2 * reach / ((1 << bits) - 1)) - reach))


def pack(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Numbers of `bits` bits end to end, the low bit first."""
    flags = (values[:, None] >> np.arange(bits, dtype=np.uint32)) & 1
    return np.packbits(flags.astype(np.uint8).reshape(-1), bitorder="little")


def unpack(data: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.int64]:
    """Returns the numbers that `pack` packed."""
    flags = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.asarray(flags.astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64)))


def run(
    problem: Problem,
    session: Session,
    *,
    steps: int,
    rho: float,
    bits: int | None = None,
    change_every: int | None = None,
    seed: int = 0,
    log: Log | None = None,
    x0: ArrayLike | None = None,
) -> Array:
    """Runs GADMM; with `bits` Q-GADMM, with `change_every` D-GADMM.

    Args:
        problem: f_i, convex, with Hessian products; no regularizer R.
        session: of all workers; their groups take slots of their own.
        steps: iterations, in each of which every worker sends once.
        rho: penalty of disagreement, over 0.
        bits: of a coordinate on the wire, 2 to 16; None for float64.
        change_every: iterations between two chains, drawn at random from `seed`; None for one chain, in the
            order of ranks.
        log: of this worker's model. All steps are taken, whatever its target: no worker could end alone.

    Returns:
        This worker's model. All agree in the limit, and not before.

    Raises:
        UsageError: an argument is out of range; nothing was sent.
        SwitchError: the switch has no room for the groups.
    """
    steps = checked_at_least("steps", steps, 1)
    require(0 < rho < np.inf, "rho", repr(rho), "greater than 0")
    if change_every is not None:
        checked_at_least("change_every", change_every, 1)
    x = checked_start(problem, x0)
    if problem.regularizer(np.ones(problem.dim)) != 0:
        raise UsageError("the problem has a regularizer R, which GADMM has no step for; accepted: R = 0")
    worker = _Worker(problem, session, x, rho, bits, seed, log)
    if log is not None:
        log.begin(x, session)
    order = np.arange(session.world_size)
    chains = np.random.default_rng((seed, 1))
    chain = worker.join(order)
    try:
        for step in range(1, steps + 1):
            if change_every is not None and step > 1 and (step - 1) % change_every == 0:
                chain.close()
                chain = worker.join(chains.permutation(order))
                worker.meet(chain)
            worker.iterate(chain)
            if log is not None:
                log.step(step, worker.x, last=step == steps)
    finally:
        chain.close()
    return worker.x


class _Worker:
    """One worker's variables."""

    def __init__(
        self,
        problem: Problem,
        session: Session,
        x: Array,
        rho: float,
        bits: int | None,
        seed: int,
        log: Log | None,
    ) -> None:
        self.x = x
        self._problem, self._session, self._rho, self._bits, self._log = problem, session, rho, bits, log
        self._price = np.zeros(x.size)  # p_i
        self._theirs: dict[int, Array] = {}  # the last models of neighbours, decoded
        self._quantizer: Quantizer | None = None
        if bits is not None:
            self._quantizer = Quantizer(x.size, bits, np.random.default_rng((seed, 2, session.rank)))
            self._quantizer.sent = x.copy()

    def join(self, order: NDArray[Any]) -> Chain:
        size = self.x.nbytes if self._bits is None else self._message_bytes
        chain = Chain(self._session, order.tolist(), size, self._log)
        # Everybody starts from the same x0, which is what neighbours hold of each other.
        self._theirs = {rank: self._theirs.get(rank, self.x) for rank in chain.neighbours}
        return chain

    def meet(self, chain: Chain) -> None:
        """Exchanges models with new neighbours."""
        mine = self._shown
        for heads in (True, False):
            self._theirs.update(chain.exchange(mine, heads=heads))
        self._sent(_FLOAT_BITS * mine.size)

    def iterate(self, chain: Chain) -> None:
        for heads in (True, False):
            if chain.head == heads:
                self._solve()
                self._send(chain, heads)
            else:
                self._receive(chain, heads)
        apart = (y - self._shown for y in self._theirs.values())
        self._price += self._rho * sum(apart, np.zeros(self.x.size))

    @property
    def _shown(self) -> Array:
        """This worker's model as its neighbours know it."""
        return self.x if self._quantizer is None else self._quantizer.sent

    @property
    def _message_bytes(self) -> int:
        """Of a quantized message: the range and the places in it."""
        return 8 + -(-self.x.size * (self._bits or 0) // 8)

    def _solve(self) -> None:
        linear = self._price + self._rho * sum(self._theirs.values(), np.zeros(self.x.size))
        self.x = minimize(self._problem, linear, self._rho * len(self._theirs), self.x)

    def _send(self, chain: Chain, heads: bool) -> None:
        message: NDArray[Any] = self.x if self._quantizer is None else self._quantizer.encode(self.x)
        chain.exchange(message, heads=heads)
        self._sent(8 * message.nbytes)

    def _receive(self, chain: Chain, heads: bool) -> None:
        if self._bits is None:
            self._theirs.update(chain.exchange(self.x, heads=heads))
            return
        empty = np.zeros(self._message_bytes, np.uint8)
        for rank, message in chain.exchange(empty, heads=heads).items():
            self._theirs[rank] = decode(message, self._theirs[rank], self._bits)

    def _sent(self, bits: int) -> None:
        if self._log is not None:
            self._log.payload(bits)


def minimize(problem: Problem, linear: Array, weight: float, x: Array) -> Array:
    """The minimizer of f_i(x) - <linear, x> + weight/2 ||x||^2, to the precision that float64 gives.

    Newton's method, its directions by conjugate gradients on Hessian products, its steps halved while they do
    not make the function smaller. One step where f_i is quadratic.

    Args:
        problem: with f_i's loss, gradient and Hessian products.
        linear: (d,). weight: 0 and up; over 0 unless f_i is strongly convex.
        x: the start; not changed.

    Raises:
        UsageError: the minimizer is not unique.
        SwitchAggError: it was not found, for example because a loss or its gradient is not finite.
    """
    if not problem.strong_convexity + weight > 0:
        raise UsageError(
            f"weight is {weight!r} and the problem is not strongly convex; accepted: a weight greater than 0"
        )

    def value(y: Array) -> float:
        return problem.loss(y) - float(linear @ y) + weight / 2 * float(y @ y)

    here = value(x)
    for _ in range(_STEPS):
        own = problem.gradient(x)
        slope = own - linear + weight * x
        scale = float(np.linalg.norm(own) + np.linalg.norm(linear) + weight * np.linalg.norm(x))
        size = float(np.linalg.norm(slope))
        if size <= _PRECISION * scale:
            return x
        direction = _newton(problem, x, slope, weight)
        step = 1.0
        for _ in range(_HALVINGS):
            y = x - step * direction
            there = value(y)
            if there < here:
                break
            step /= 2
        else:
            # The gain of a step is within rounding: this is the minimum in float64.
            if float(slope @ direction) <= 1e-11 * (abs(here) + scale * float(np.linalg.norm(x))):
                return np.asarray(x - direction)
            break
        x, here = y, there
    raise SwitchAggError("the local problem has no minimizer that Newton's method finds: is its loss convex?")


def _newton(problem: Problem, x: Array, slope: Array, weight: float) -> Array:
    """Solves (Hessian + weight) v = slope by conjugate gradients."""
    v = np.zeros_like(x)
    residual = slope.copy()
    p = residual.copy()
    size = float(residual @ residual)
    goal = size * 1e-28
    for _ in range(10 * x.size + 20):
        if size <= goal:
            break
        ahead = problem.hessian_product(x, p) + weight * p
        curve = float(p @ ahead)
        if not curve > 0:
            break
        along = size / curve
        v += along * p
        residual -= along * ahead
        now = float(residual @ residual)
        p = residual + now / size * p
        size = now
    return v
