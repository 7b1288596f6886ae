"""The common parts of all methods: one worker's problem, arguments, and the log of a run's cost.

    problem   f_i, one worker's share of   F(x) = (1/n) sum_i f_i(x) + R(x)
    session   the other workers (a `worker_lib.Session`)
    steps     how many at most; each is one collective, unless the method says otherwise
    log       loss, distance and traffic after each step
    seed      of all that is random
    x0        where x starts, (d,); zeros by default

A method is a module with ``run(problem, session, *, steps, ..., log=None, x0=None) -> x``, x being float64 of
shape (d,). Every worker calls it with its own problem and log, and otherwise equal arguments; where the
method's docstring says so, the result is the same to the bit at every worker. An argument that is out of
range raises UsageError, whose message has the bound. A method that goes step by step is a class too, made
of problem, session and its own arguments (`Method`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.errors import UsageError, require
from switchagg.wire.header import HEADER_BYTES, IP_UDP_BYTES

if TYPE_CHECKING:
    from worker_lib.session import Session

Array = NDArray[np.float64]

ETHERNET_BYTES: Final = 38  # preamble 8, header 14, check sequence 4, gap 12
_LEAST_FRAME: Final = 46  # bytes that an Ethernet frame carries at least, padded


@runtime_checkable
class Problem(Protocol):
    """One worker's share of a finite sum: f_i(x) = mean over its samples of a loss, plus l2/2 ||x||^2.

    Attributes:
        dim: d, length of x.
        samples: the number that the worker holds.
        smoothness: L_i, Lipschitz constant of f_i's gradient.
        sample_smoothness: the largest such constant of a single sample's loss (with its l2).
        strong_convexity: mu_i >= 0.
    """

    @property
    def dim(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def smoothness(self) -> float: ...
    @property
    def sample_smoothness(self) -> float: ...
    @property
    def strong_convexity(self) -> float: ...

    def loss(self, x: Array) -> float:
        """f_i(x), without R."""

    def gradient(self, x: Array) -> Array:
        """Gradient of f_i at x; shape (d,), float64."""

    def batch_gradient(self, x: Array, indices: NDArray[np.int64]) -> Array:
        """Mean of the gradients of these samples' losses (with l2); its mean over all is `gradient`."""

    def hessian_product(self, x: Array, directions: Array) -> Array:
        """Hessian of f_i at x times directions of shape (d,) or (d, m)."""

    def regularizer(self, x: Array) -> float:
        """R(x), the same function at all workers."""

    def prox(self, x: Array, step: float) -> Array:
        """argmin over y of R(y) + ||y - x||^2 / (2 step)."""


# ---------------------------------------------------------------------- the log


@dataclass(frozen=True, slots=True)
class Record:
    """Result and cost of a run after `step` steps.

    Attributes:
        step: steps done.
        loss: value of the log's objective; None without one.
        distance: ||x - x*||, x* being the log's optimum; None without one.
        payload_bits: bits of the messages that this worker gave to the switch, without headers and padding.
        wire_bytes: sent and received by this worker, with all headers, Ethernet's preamble and gap included.
        wire_bytes_sent: the part of it that was sent.
        packets: sent, the header-only ones included, repeats not; as many come back.
        seconds: since the run began, without the time that measuring took.
    """

    step: int
    loss: float | None
    distance: float | None
    payload_bits: int
    wire_bytes: int
    wire_bytes_sent: int
    packets: int
    seconds: float


class Measured(Protocol):
    """The part of a session that a log uses."""

    def stats(self) -> dict[str, Any]:
        """See `worker_lib.Session.stats`."""


def wire_bytes(stats: dict[str, Any]) -> tuple[int, int]:
    """Bytes (sent, received) on the wire, from a session's counters.

    A packet without words is padded to the least Ethernet frame, which is counted. Received packets are taken
    to be padded as sent ones are.
    """
    each = IP_UDP_BYTES + ETHERNET_BYTES
    padding = max(0, _LEAST_FRAME - IP_UDP_BYTES - HEADER_BYTES)
    sent = int(stats["bytes_sent"]) + each * int(stats["packets_sent"]) + padding * int(stats["packets_skip"])
    return sent, int(stats["bytes_received"]) + each * int(stats["packets_received"])


class Log:
    """Records of one worker's run. One log serves one run.

    Args:
        every: steps between two records; the first and the last step are always recorded.
        optimum: x*, to record distances to.
        objective: called with x for the loss; not part of the time or the traffic that is recorded.
        target: the run ends at the first step whose distance is at most this. The distance is computed
            exactly rounded, so workers with the same x and the same optimum end at the same step.
        clock: seconds, never going back.

    Attributes:
        records: in order of steps.

    Raises:
        UsageError: `every` is not at least 1, or there is a target and no optimum.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        optimum: ArrayLike | None = None,
        objective: Callable[[Array], float] | None = None,
        target: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        checked_at_least("every", every, 1)
        if target is not None and optimum is None:
            raise UsageError(f"target is {target!r} without an optimum to measure the distance to; give both")
        self.records: list[Record] = []
        self._every = every
        self._optimum = None if optimum is None else np.asarray(optimum, np.float64)
        self._objective = objective
        self._target = target
        self._clock = clock
        self._sessions: list[tuple[Measured, NDArray[np.int64]]] = []
        self._payload = 0
        self._began: float | None = None
        self._reached = False

    # -- called by a method

    def begin(self, x: Array, *sessions: Measured) -> None:
        """Starts the clock and the counters, and records step 0. Sessions met later: `watch`."""
        for session in sessions:
            self.watch(session)
        self._began = self._clock()
        self._record(0, x)

    def watch(self, session: Measured) -> None:
        """Counts this session's traffic too, from now on (a sub-group's, for example)."""
        self._sessions.append((session, _counters(session)))

    def payload(self, bits: int) -> None:
        """This worker has given the switch a message of so many bits."""
        self._payload += bits

    def step(self, step: int, x: Array, *, last: bool = False) -> bool:
        """Notes that `step` steps are done, x being the result.

        Returns:
            True if the target is reached, so that the method should end.
        """
        if last or step % self._every == 0 or (self._target is not None and self._check(x)):
            self._record(step, x)
        return self._reached

    # -- called by users

    @property
    def reached(self) -> bool:
        """True once the target was reached."""
        return self._reached

    def first(self, *, distance: float | None = None, loss: float | None = None) -> Record | None:
        """The first record at most this far from the optimum, with at most this loss; None: there is none.

        NaN is never near.
        """

        def under(value: float | None, bound: float | None) -> bool:
            return bound is None or (value is not None and value <= bound)

        return next((r for r in self.records if under(r.distance, distance) and under(r.loss, loss)), None)

    def to_json(self) -> str:
        """Returns the records as a JSON list of objects."""
        return json.dumps([asdict(record) for record in self.records])

    def save(self, path: Path) -> None:
        """Writes `to_json` to a file."""
        path.write_text(self.to_json() + "\n")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns a log with the records that `to_json` wrote, for reading."""
        log = cls()
        log.records = [Record(**fields) for fields in json.loads(text)]
        return log

    # -- inside

    def _check(self, x: Array) -> bool:
        before = self._clock()
        assert self._target is not None
        self._reached = self._reached or self._distance(x) <= self._target
        self._exclude(before)
        return self._reached

    def _distance(self, x: Array) -> float:
        # math.fsum rounds once, so the result is the same on every processor.
        assert self._optimum is not None
        return math.sqrt(math.fsum(np.square(x.reshape(-1) - self._optimum.reshape(-1)).tolist()))

    def _exclude(self, before: float) -> None:
        assert self._began is not None
        self._began += self._clock() - before

    def _record(self, step: int, x: Array) -> None:
        now = self._clock()
        if self._began is None:
            self._began = now
        seconds = now - self._began
        growths = np.array([_counters(session) - start for session, start in self._sessions]).reshape(-1, 3)
        sent, received, packets = growths.sum(axis=0, dtype=np.int64).tolist()
        distance = None if self._optimum is None else self._distance(x)
        if distance is not None and self._target is not None and distance <= self._target:
            self._reached = True
        loss = None if self._objective is None else float(self._objective(x))
        record = Record(step, loss, distance, self._payload, sent + received, sent, packets, seconds)
        if self.records and self.records[-1].step == step:
            self.records[-1] = record
        else:
            self.records.append(record)
        self._exclude(now)


def _counters(session: Measured) -> NDArray[np.int64]:
    """Bytes sent, bytes received and packets, (3,), repeats not counted as packets."""
    stats = session.stats()
    return np.array([*wire_bytes(stats), int(stats["packets_data"]) + int(stats["packets_skip"])])


# ---------------------------------------------------------------------- arguments


def checked_at_least(name: str, value: int, least: int) -> int:
    """A whole number that is not too small."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(whole and value >= least, name, repr(value), f"a whole number, {least} and up")
    return int(value)


def checked_share(name: str, value: float) -> float:
    """A share of a whole, in (0, 1]."""
    require(0 < value <= 1, name, repr(value), "greater than 0, at most 1")
    return float(value)


def checked_step(name: str, value: float | None, bound: float, why: str, default: float) -> float:
    """A step size or rate in (0, bound]; None stands for the default."""
    if value is None:
        return default
    # The tolerance admits a bound computed in another order of operations.
    admitted = 0 < value <= bound * (1 + 1e-12)
    require(admitted, name, repr(value), f"greater than 0, at most {bound:.6g} ({why})")
    return float(value)


def checked_gamma(step: float | None, smoothness: float, default: float) -> float:
    """A step size up to plain gradient descent's bound; the default, a method's own, may be far lower."""
    return checked_step("step", step, 2 / smoothness, "2 / L", default)


def checked_batch(batch: int | None, samples: int) -> None:
    """Refuses a batch that a worker's samples cannot fill; None stands for all of them."""
    accepted = f"1 to {samples} samples, or None for all"
    require(batch is None or 1 <= batch <= samples, "batch", repr(batch), accepted)


def checked_start(problem: Problem, x0: ArrayLike | None) -> Array:
    """A copy of the starting point, zeros by default."""
    if x0 is None:
        return np.zeros(problem.dim)
    x = np.array(x0, np.float64)
    if x.shape != (problem.dim,):
        raise UsageError(f"x0 has shape {x.shape}; needed: ({problem.dim},)")
    if not np.isfinite(x).all():
        raise UsageError("x0 holds NaN or infinity; accepted: finite values")
    return x


def objective(problems: Sequence[Problem]) -> Callable[[Array], float]:
    """Returns F of all workers' problems together, for a check or a log that holds them all."""
    checked_at_least("number of problems", len(problems), 1)

    def value(x: Array) -> float:
        return math.fsum(p.loss(x) for p in problems) / len(problems) + problems[0].regularizer(x)

    return value


def mean_gradient(problems: Iterable[Problem], x: Array) -> Array:
    """Returns the gradient of F's smooth part from all problems."""
    rows = np.stack([p.gradient(x) for p in problems])
    return np.asarray(rows.mean(axis=0))


# ---------------------------------------------------------------------- runs


class Method(Protocol):
    """One worker's part of a method that goes step by step.

    Attributes:
        x: the iterate.
    """

    x: Array

    def step(self) -> int:
        """Takes one step, together with the other workers; returns the bits of this worker's messages."""


def drive(method: Method, session: Session, steps: int, log: Log | None) -> Array:
    """Takes `steps` steps, or fewer if the log says that its target is reached. Returns the last x."""
    checked_at_least("steps", steps, 0)
    if log is not None:
        log.begin(method.x, session)
    for step in range(1, steps + 1):
        bits = method.step()
        if log is not None:
            log.payload(bits)
            if log.step(step, method.x, last=step == steps):
                break
    return method.x


class Run(Protocol):
    """The function ``run`` of a method; `arguments` are those of its class. Returns the last x."""

    def __call__(
        self, problem: Problem, session: Session, *, steps: int, log: Log | None = None, **arguments: Any
    ) -> Array: ...


def runner(method: Callable[..., Method]) -> Run:
    """Returns the function that makes a `method` and takes its steps, with the docstring of `method`."""

    def run(
        problem: Problem, session: Session, *, steps: int, log: Log | None = None, **arguments: Any
    ) -> Array:
        return drive(method(problem, session, **arguments), session, steps, log)

    run.__doc__ = method.__doc__
    return run


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of the problem that all workers learn by one exchange before the first step.

    Attributes:
        smoothness: the largest L_i.
        mean_smoothness: mean L_i, which bounds that of F's smooth part.
        sample_smoothness: the largest of a sample's loss.
        strong_convexity: the mean mu_i, which F has at least.
        samples: the largest N_i.
    """

    smoothness: float
    mean_smoothness: float
    sample_smoothness: float
    strong_convexity: float
    samples: int


def constants(problem: Problem, session: Session) -> Constants:
    """Gathers every worker's constants; one collective, the same result at all of them.

    Raises:
        UsageError: the workers' problems have different dimensions.
    """
    p = problem
    mine = [p.dim, p.smoothness, p.sample_smoothness, p.strong_convexity, p.samples]
    rows: Array = session.allgather(np.array(mine, np.float64))
    if not (rows[:, 0] == problem.dim).all():
        raise UsageError(
            f"the workers' problems have dimensions {rows[:, 0].astype(int).tolist()}; needed: one for all"
        )
    n = len(rows)
    return Constants(
        float(rows[:, 1].max()),
        math.fsum(rows[:, 1].tolist()) / n,
        float(rows[:, 2].max()),
        math.fsum(rows[:, 3].tolist()) / n,
        int(rows[:, 4].max()),
    )
