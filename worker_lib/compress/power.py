"""PowerSGD: a low-rank approximation of the gradient, by one step of a power iteration, in two ordinary sums.

    matrix M_i (n x m) of each rank, Q (m x r) the same at all ranks
    1. P = sum of M_i Q           SUM;  every rank orthonormalizes P alike
    2. Q = sum of M_i' P          SUM;  the result is P Q' = P P' (sum of M_i)
       Q is where the next round starts (warm start)

Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
NeurIPS 2019, arXiv 1905.13727, Algorithm 1. Compressing is linear in the M_i, so both rounds are sums, in the
session's own lanes. It is biased: use it inside `ErrorFeedback`, as there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.shared_exponent import SharedExponent

Shapes = Sequence[tuple[int, ...]]


class PowerSGD(Compressor):
    """Rank-r approximations of the matrices that a vector is made of.

    A tensor of more than two axes is a matrix with its first axis as rows. Tensors of fewer than two, and
    those that would take no fewer numbers as factors, are sent in full with the second sum. A round costs two
    sums; the state is Q, which all ranks have.

    There is no delta: what a rank-r approximation loses depends on the matrix. All ranks compute P and the
    result by the same additions in the same order, so that they are the same to the bit on any processor.

    Args:
        rank: r.
        shapes: of the tensors that x is made of, in its order; DDP's hook tells a bucket's. Without, x is a
            square matrix, filled up with zeros.
        bits: width of the lanes of both factors: 32, 16, 8, or None for the widest.
        seed: of the first Q.

    Raises:
        UsageError: parameters that cannot work; shapes that do not make up x are refused in the first round.
    """

    draws_shared = True
    parameters = ("rank", "bits", "seed")

    def __init__(
        self, rank: int = 2, shapes: Shapes | None = None, bits: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(seed)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= 64:
            raise UsageError(f"rank is {rank!r}; accepted: 1 to 64")
        self.rank, self.bits = rank, bits
        self._lanes = SharedExponent(bits)
        self._shapes: Shapes | None = None
        self._factors: list[Floats] | None = None  # Q of each matrix
        if shapes is not None:
            self.lay_out(shapes)

    def lay_out(self, shapes: Shapes) -> None:
        """Sets the shapes of the tensors that x is made of."""
        self._shapes = [tuple(int(n) for n in shape) for shape in shapes]

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the shapes do not make up x, or so many ranks cannot share the lanes."""
        total = sum(math.prod(shape) for shape in self._shapes or ())
        if self._shapes is not None and total != size:
            raise UsageError(f"shapes have {total} elements in all, and x has {size}")
        self._lanes.check(size, round)

    # ------------------------------------------------------------------ one round

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns M Q of every matrix, for a sum."""
        products = [m @ q for m, q in self._pairs(x)]
        return self._lanes.encode(_joined(products, x.dtype), None, round) if products else None

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns M' P of every matrix, and what is sent in full."""
        pairs = list(self._pairs(x))
        bases, at = [], 0
        for m, q in pairs:
            assert shared is not None
            size = m.shape[0] * q.shape[1]
            part = shared[at : at + size].reshape(m.shape[0], q.shape[1])
            bases.append(orthonormal(part.astype(np.float64)).astype(x.dtype))
            at += size
        rest = [x[begin:end] for begin, end, matrix in self._parts(x.size) if matrix is None]
        values = _joined([m.T @ p for (m, _), p in zip(pairs, bases, strict=True)] + rest, x.dtype)
        inner = self._lanes.encode(values, None, round)
        return replace(inner, kept=(inner, bases, x.size))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns P times this rank's factors, as the lanes carried them."""
        inner, bases, size = message.kept
        return self._expanded(self._lanes.own(inner, None, round), bases, size)[0]

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns P Q' of every matrix; Q is kept for the next round, unless it is not finite."""
        inner, bases, size = message.kept
        result, factors = self._expanded(self._lanes.decode(total, inner, None, round), bases, size)
        if all(np.isfinite(q).all() for q in factors):
            self._factors = factors
        self._done(size)
        return result

    # ------------------------------------------------------------------ state

    def forget_shared(self) -> None:
        """Drops Q, which new participants do not have."""
        super().forget_shared()
        self._factors = None

    def _restart(self, stream: int) -> None:
        super()._restart(stream)
        self._factors = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, with the shapes and Q."""
        factors = None if self._factors is None else [q.copy() for q in self._factors]
        return super().state_dict() | {"shapes": self._shapes, "factors": factors}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        if state["shapes"] is not None:
            self.lay_out(state["shapes"])
        self._factors = None if state["factors"] is None else [np.array(q) for q in state["factors"]]

    # ------------------------------------------------------------------ inside

    def _parts(self, size: int) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
        """Yields the first and the last element of each part of x, and its rows and columns as a matrix."""
        if self._shapes is None:
            columns = math.isqrt(max(size - 1, 0)) + 1
            yield 0, size, self._matrix(-(-size // columns), columns)
            return
        at = 0
        for shape in self._shapes:
            count = math.prod(shape)
            rows = shape[0] if len(shape) > 1 else 0
            if count:
                yield at, at + count, self._matrix(rows, count // rows) if rows else None
            at += count

    def _matrix(self, rows: int, columns: int) -> tuple[int, int] | None:
        return (rows, columns) if self.rank * (rows + columns) < rows * columns else None

    def _pairs(self, x: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yields each matrix and its Q."""
        matrices = []
        for begin, end, matrix in self._parts(x.size):
            if matrix is not None:
                part, missing = x[begin:end], math.prod(matrix) - (end - begin)
                matrices.append(
                    np.pad(part, (0, missing)).reshape(matrix) if missing else part.reshape(matrix)
                )
        if self._factors is None:
            sizes = [m.shape[1] * self.rank for m in matrices]
            # Any numbers that span all directions do; raw words are the same in every version of NumPy.
            drawn = (self._shared_keys(sum(sizes)) >> np.uint64(11)) * 2.0**-53 - 0.5
            cuts = np.split(drawn, np.cumsum(sizes)[:-1]) if sizes else []
            factors = [q.reshape(-1, self.rank) for q in cuts]
        else:
            factors = self._factors
        for m, q in zip(matrices, factors, strict=True):
            yield m, q.astype(x.dtype, copy=False)

    def _expanded(self, values: Floats, bases: list[Floats], size: int) -> tuple[Floats, list[Floats]]:
        """Returns the vector that factors and the parts in full stand for, and the factors."""
        out = np.empty(size, values.dtype)
        factors, at, left = [], 0, iter(bases)
        parts = list(self._parts(size))
        for begin, end, matrix in parts:
            if matrix is not None:
                p = next(left)
                q = values[at : at + matrix[1] * p.shape[1]].reshape(matrix[1], p.shape[1])
                at += q.size
                factors.append(q.copy())
                out[begin:end] = _product(p, q).reshape(-1)[: end - begin]
        for begin, end, matrix in parts:
            if matrix is None:
                out[begin:end] = values[at : at + end - begin]
                at += end - begin
        return out, factors


def _joined(parts: Sequence[Floats], dtype: np.dtype[Any]) -> Floats:
    return np.concatenate([part.reshape(-1) for part in parts]) if parts else np.zeros(0, dtype)


def _product(p: Floats, q: Floats) -> Floats:
    """Returns p q' by single multiplications and additions in order: the same bits on any processor."""
    out: Floats = np.multiply.outer(p[:, 0], q[:, 0])
    for column in range(1, p.shape[1]):
        out += np.multiply.outer(p[:, column], q[:, column])
    return out


def dot(a: Floats, b: Floats) -> float:
    """Returns a b, its additions in an order that does not depend on the processor."""
    products = a * b
    while products.size > 1:
        half = products.size // 2
        summed = products[:half] + products[half : 2 * half]
        products = np.append(summed, products[-1]) if products.size % 2 else summed
    return float(products[0]) if products.size else 0.0


def orthonormal(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns an orthonormal basis of p's columns by Gram and Schmidt; zeros for a column that others span.

    Args:
        p: (n, r), float64, of numbers that float32 holds.
    """
    out = np.zeros_like(p)
    for column in range(p.shape[1]):
        v = p[:, column].copy()
        largest = float(np.abs(v).max(initial=0.0))
        if not 0 < largest < math.inf:
            out[:, column] = 0.0 if largest == 0 else np.nan
            continue
        v /= largest
        before = dot(v, v)
        for _ in range(2):  # twice is enough
            for other in range(column):
                v -= dot(out[:, other], v) * out[:, other]
        after = dot(v, v)
        if after > 1e-12 * before:  # float32's rounding of p is no direction
            out[:, column] = v / math.sqrt(after)
    return out
