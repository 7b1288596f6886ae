"""Adam and LAMB whose moments travel compressed once their variance is frozen: two phases, for sums.

    warm-up      g = mean of all gradients, exact;    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
    afterwards   m_i = b1 m + (1 - b1) g_i at each rank;   m <- mean of all C(m_i), compressed;   v stays
    always       u = m / (sqrt(v) + epsilon)
    Adam         x <- x - rate u
    LAMB         x <- x - rate c u, in each tensor:  warm-up      c = |x| / |u|
                                                     afterwards   c = (mean of the warm-up's) max sqrt(v / w)

Adam is not linear in gradients, so error feedback on them does not work; with v frozen it is momentum SGD
with a fixed preconditioner, for which it does. Tang et al.: 1-bit Adam: Communication Efficient Large-Scale
Training with Adam's Convergence Speed, ICML 2021, arXiv 2102.02888. There a server decodes one bit from each
worker, adds, and sends one bit back. Here the switch adds, so what comes back is the sum itself, and any
compressor of `worker_lib.compress` can take the place of the signs.

LAMB's coefficients c have to follow the training, and cannot be computed from a variance that is frozen. So
the second phase keeps a variance w of the gradients that the moments imply, (m - b1 last m) / (1 - b1), as
all ranks know it, and scales the warm-up's mean coefficient by the largest ratio of the two. Li, Awan, Tang,
Rajbhandari, He: 1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence
Speed, arXiv 2104.06069, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError, require
from worker_lib.compress import ErrorFeedback, Signs
from worker_lib.compress.base import Compressor
from worker_lib.compress.power import dot
from worker_lib.outer import flat_parameter, flat_parameters, put
from worker_lib.session import Session

Floats = npt.NDArray[np.float32]

COEFFICIENTS: Final = (0.01, 10.0)  # bounds of LAMB's, as in 1-bit LAMB's experiments; so are those below
FACTORS: Final = (0.5, 4.0)  # bounds of what multiplies the mean coefficient in the second phase
CHANGE: Final = 0.1  # that factor's in a step, at most
KEPT: Final = 0.9  # of the mean coefficient in a step


class AdamMoments:
    """Adam's two phases on one vector: what the ranks average in a step, and the step that follows from it.

    All vectors are float32 of shape (n,), with n the sum of `sizes`.

    Args:
        x: parameters, end to end; changed in place.
        sizes: elements of each tensor.
        warm_up, betas, epsilon, weight_decay: as of `CompressedAdam`.

    Attributes:
        steps: so far.
        m, v: the moments, as all ranks have them.
    """

    state: ClassVar[tuple[str, ...]] = ("x", "m", "v")

    def __init__(
        self,
        x: Floats,
        sizes: Sequence[int],
        *,
        warm_up: int,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.x, self.m, self.v, self.steps = x, np.zeros_like(x), np.zeros_like(x), 0
        ends = np.cumsum(sizes).tolist()
        self._tensors = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._warm_up, self._betas = warm_up, betas
        self._epsilon, self._weight_decay = np.float32(epsilon), np.float32(weight_decay)

    @property
    def frozen(self) -> bool:
        """True from the second phase on: what the next step averages may be compressed."""
        return self.steps >= self._warm_up

    def message(self, gradient: Floats) -> Floats:
        """Returns what is averaged: `gradient` itself in the warm-up, then its moment in a new array."""
        if not self.frozen:
            return gradient
        first = np.float32(self._betas[0])
        moment: Floats = first * self.m + (1 - first) * gradient
        moment[self.v == 0] = 0
        return moment

    def take(self, mean: Floats, rate: float) -> None:
        """Takes a step with the mean of all ranks' messages; moves x."""
        first, second = (np.float32(b) for b in self._betas)
        last, frozen = self.m, self.frozen
        if frozen:
            self.m = mean
        else:
            self.m = first * self.m + (1 - first) * mean
            self.v = second * self.v + (1 - second) * mean * mean
        self.steps += 1
        divisor = self._root(self.v, min(self.steps, self._warm_up))
        ahead = self.m / np.float32(1 - self._betas[0] ** self.steps) / divisor
        if frozen:
            ahead[self.v == 0] = 0
        self._scale(ahead, divisor, last if frozen else None)
        self.x -= np.float32(rate) * ahead

    def _root(self, v: Floats, steps: int) -> Floats:
        """Returns what the moment is divided by; `steps` that v has in it."""
        root: Floats = np.sqrt(v / np.float32(1 - self._betas[1] ** steps)) + self._epsilon
        return root

    def _decay(self, ahead: Floats) -> None:
        if self._weight_decay:
            ahead += self._weight_decay * self.x

    def _scale(self, ahead: Floats, divisor: Floats, last: Floats | None) -> None:  # noqa: ARG002
        """Adds the weight decay and, in LAMB, multiplies by the coefficients; in place.

        Args:
            ahead: the step, before the rate.
            divisor: of the moment.
            last: in the second phase, the moment of the step before.
        """
        self._decay(ahead)


class LambMoments(AdamMoments):
    """LAMB's two phases: Adam's, with a coefficient for each tensor.

    Attributes:
        w: in the second phase, the variance of the gradients that the moments imply; float32 (n,).
        mean: smoothed coefficient of each tensor in the warm-up; float64 (tensors,).
        factor: of each tensor, what multiplies that mean in the second phase; float64 (tensors,).
    """

    state = (*AdamMoments.state, "w", "mean", "factor")

    def __init__(self, x: Floats, sizes: Sequence[int], **settings: Any) -> None:
        super().__init__(x, sizes, **settings)
        self.w = np.zeros_like(x)
        self.mean, self.factor = np.zeros(len(sizes)), np.ones(len(sizes))

    def _scale(self, ahead: Floats, divisor: Floats, last: Floats | None) -> None:
        plain = ahead.copy() if self._weight_decay else ahead
        self._decay(ahead)
        if last is None:
            self.w = self.v
            for i, part in enumerate(self._tensors):
                own, step = _norm(self.x[part]), _norm(ahead[part])
                c = min(max(own / step, COEFFICIENTS[0]), COEFFICIENTS[1]) if own and step else 1.0
                self.mean[i] = KEPT * self.mean[i] + (1 - KEPT) * c
                ahead[part] *= np.float32(c)
            return
        first, second = (np.float32(b) for b in self._betas)
        implied = ((self.m - first * last) / (1 - first)).astype(np.float32, copy=False)
        self.w = second * self.w + (1 - second) * implied * implied
        ratios = divisor / self._root(self.w, self.steps)
        ratios[self.v == 0] = 0
        for i, part in enumerate(self._tensors):
            factor = float(ratios[part].max())
            if plain is not ahead and (step := _norm(ahead[part])):
                share = min(1.0, _norm(plain[part]) / step)  # the rest of the step is weight decay
                factor = factor * share + 1 - share
            for least, most in (FACTORS, (self.factor[i] * (1 - CHANGE), self.factor[i] * (1 + CHANGE))):
                factor = min(max(factor, least), most)
            self.factor[i] = factor
            ahead[part] *= np.float32(self.mean[i] / (1 - KEPT**self._warm_up) * factor)


def _norm(x: Floats) -> float:
    return math.sqrt(dot(x, x))


class CompressedAdam:
    """Adam on the mean gradient of all ranks. Every rank makes it, with equal arguments.

    It begins with rank 0's parameters. They stay the same to the bit at all ranks. An element whose gradient
    was 0 at all ranks throughout the warm-up has no variance to divide by and does not move afterwards.

    Args:
        session: of all ranks.
        parameters: float32 arrays, or CPU tensors such as ``model.parameters()``; changed in place.
        rate: learning rate; the attribute of this name may be set between steps.
        warm_up: steps before the variance is frozen, from 1. The paper takes 15 to 20 % of the training.
        betas, epsilon: as in Adam (Kingma and Ba, arXiv 1412.6980), with its correction of the bias.
        weight_decay: decoupled, as in AdamW.
        compressor: of the first moments; by default ``ErrorFeedback(Signs())``.

    Attributes:
        rate: of the next step.

    Raises:
        UsageError: an argument cannot work; the message has what is accepted.
    """

    moments: ClassVar[type[AdamMoments]] = AdamMoments

    def __init__(
        self,
        session: Session,
        parameters: Iterable[Any],
        *,
        rate: float,
        warm_up: int,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        compressor: Compressor | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._arrays, shapes = flat_parameters(self._parameters)
        whole = isinstance(warm_up, int) and not isinstance(warm_up, bool)
        require(whole and warm_up >= 1, "warm_up", repr(warm_up), "steps from 1")
        require(0 < rate < np.inf, "rate", repr(rate), "greater than 0")
        require(all(0 <= b < 1 for b in betas), "betas", repr(betas), "two numbers from 0, under 1")
        require(0 < epsilon < np.inf, "epsilon", repr(epsilon), "greater than 0")
        require(0 <= weight_decay < np.inf, "weight_decay", repr(weight_decay), "0 and up")
        self.rate, self._session = rate, session
        self._compressor = ErrorFeedback(Signs()) if compressor is None else compressor
        self._compressor.lay_out(shapes)
        x = np.concatenate(self._arrays)
        session.broadcast(x, root=0)
        put(self._arrays, x)
        self._moments = self.moments(
            x, [each.size for each in self._arrays],
            warm_up=warm_up, betas=betas, epsilon=epsilon, weight_decay=weight_decay,
        )  # fmt: skip

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._moments.steps

    def step(self, gradients: Iterable[Any] | None = None) -> None:
        """Takes a step.

        Args:
            gradients: of this rank, one for each parameter, of its size and type. By default the tensors'
                ``grad``, where None counts as 0.

        Raises:
            UsageError: gradients do not fit; nothing was sent.
            RangeError: a compressor's; see there.
        """
        message = self._moments.message(self._gradient(gradients))
        compressor = self._compressor if self._moments.frozen else None
        self._moments.take(self._session.allreduce(message, op="avg", compressor=compressor), self.rate)
        put(self._arrays, self._moments.x)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. The compressor's differs between ranks: each keeps its own."""
        kept = {name: getattr(self._moments, name).copy() for name in self._moments.state}
        return {"steps": self.steps, **kept, "compressor": self._compressor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict`, with its parameters.

        Raises:
            UsageError: it is of other parameters, of another optimizer or compressor; nothing was changed.
        """
        needed = {"steps", *self._moments.state, "compressor"}
        if set(state) != needed:
            has, wanted = (", ".join(sorted(names)) for names in (set(state), needed))
            raise UsageError(f"state has {has}; needed: one of a {type(self).__name__}, with {wanted}")
        for name in self._moments.state:
            given, here = np.asarray(state[name]).size, getattr(self._moments, name).size
            if given != here:
                raise UsageError(f"{name} in state has {given} elements; here: {here}")
        self._compressor.load_state_dict(state["compressor"])
        self._moments.steps = int(state["steps"])
        for name in self._moments.state:
            setattr(self._moments, name, np.array(state[name]))
        put(self._arrays, self._moments.x)

    # ------------------------------------------------------------------ inside

    def _gradient(self, gradients: Iterable[Any] | None) -> Floats:
        """Returns this rank's gradients end to end, a new array."""
        given = [each.grad for each in self._parameters] if gradients is None else list(gradients)
        if len(given) != len(self._arrays):
            raise UsageError(f"{len(given)} gradients; needed: {len(self._arrays)}, one for each parameter")
        parts = []
        for number, (each, array) in enumerate(zip(given, self._arrays, strict=True)):
            name = f"gradient {number}"
            part = np.zeros_like(array) if each is None else flat_parameter(each, name, write=False)[0]
            if part.size != array.size:
                raise UsageError(f"{name} has {part.size} elements; its parameter has {array.size}")
            parts.append(part)
        return np.concatenate(parts)


class CompressedLamb(CompressedAdam):
    """LAMB on the mean gradient of all ranks, for large batches. Arguments and state as `CompressedAdam`'s.

    Each parameter is a layer with a coefficient of its own. LAMB: You et al., Large Batch Optimization for
    Deep Learning, ICLR 2020, arXiv 1904.00962, with the correction of the bias.
    """

    moments = LambMoments
