"""Adam whose moments travel compressed once its variance is frozen: 1-bit Adam's two phases, for sums.

    warm-up      g = mean of all gradients, exact;    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
    afterwards   m_i = b1 m + (1 - b1) g_i at each rank;   m <- mean of all C(m_i), compressed;   v stays
    always       x <- x - rate m / (sqrt(v) + epsilon)

Adam is not linear in gradients, so error feedback on them does not work; with v frozen it is momentum SGD
with a fixed preconditioner, for which it does. Tang et al.: 1-bit Adam: Communication Efficient Large-Scale
Training with Adam's Convergence Speed, ICML 2021, arXiv 2102.02888. There a server decodes one bit from each
worker, adds, and sends one bit back. Here the switch adds, so what comes back is the sum itself, and any
compressor of `worker_lib.compress` can take the place of the signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError, require
from worker_lib.compress import ErrorFeedback, Signs
from worker_lib.compress.base import Compressor
from worker_lib.outer import flat_parameter, flat_parameters, put
from worker_lib.session import Session

Floats = npt.NDArray[np.float32]


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
        steps: so far.

    Raises:
        UsageError: an argument cannot work; the message has what is accepted.
    """

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
        self.rate, self.steps = rate, 0
        self._session, self._warm_up, self._betas = session, warm_up, betas
        self._epsilon, self._weight_decay = epsilon, weight_decay
        self._compressor = ErrorFeedback(Signs()) if compressor is None else compressor
        self._compressor.lay_out(shapes)
        self._x = np.concatenate(self._arrays)
        session.broadcast(self._x, root=0)
        put(self._arrays, self._x)
        self._m, self._v = np.zeros_like(self._x), np.zeros_like(self._x)

    def step(self, gradients: Iterable[Any] | None = None) -> None:
        """Takes a step.

        Args:
            gradients: of this rank, one for each parameter, of its size and type. By default the tensors'
                ``grad``, where None counts as 0.

        Raises:
            UsageError: gradients do not fit; nothing was sent.
            RangeError: a compressor's; see there.
        """
        gradient = self._gradient(gradients)
        first, second = (np.float32(b) for b in self._betas)
        frozen = self.steps >= self._warm_up
        if frozen:
            moment = first * self._m + (1 - first) * gradient
            moment[self._v == 0] = 0
            self._m = self._session.allreduce(moment, op="avg", compressor=self._compressor)
        else:
            self._session.allreduce(gradient, op="avg")
            self._m = first * self._m + (1 - first) * gradient
            self._v = second * self._v + (1 - second) * gradient * gradient
        self.steps += 1
        seen = min(self.steps, self._warm_up)  # steps that v has in it
        corrected = np.sqrt(self._v / np.float32(1 - self._betas[1] ** seen)) + np.float32(self._epsilon)
        ahead = self._m / np.float32(1 - self._betas[0] ** self.steps) / corrected
        if frozen:
            ahead[self._v == 0] = 0
        if self._weight_decay:
            ahead += np.float32(self._weight_decay) * self._x
        self._x -= np.float32(self.rate) * ahead
        put(self._arrays, self._x)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. The compressor's differs between ranks: each keeps its own."""
        return {
            "steps": self.steps,
            "x": self._x.copy(),
            "m": self._m.copy(),
            "v": self._v.copy(),
            "compressor": self._compressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict`, with its parameters.

        Raises:
            UsageError: it is of other parameters, or of another compressor; nothing was changed.
        """
        if state["x"].size != self._x.size:
            raise UsageError(f"state has {state['x'].size} elements; here: {self._x.size}")
        self._compressor.load_state_dict(state["compressor"])
        self.steps = int(state["steps"])
        self._x, self._m, self._v = (np.array(state[name], np.float32) for name in ("x", "m", "v"))
        put(self._arrays, self._x)

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
