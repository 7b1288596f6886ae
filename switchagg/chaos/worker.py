"""A rank's process: all-reduces for ever, each checked; it joins again after every error.

    python -m switchagg.chaos.worker '{"controller": ..., "job": ..., "rank": 0, ...}'

A tensor opens with a header, three elements a rank, in which each rank has written the number of its call. So
the sum itself says which contributions are in it, and what the rest must be, whoever was lost or came back
meanwhile. Lines of JSON on standard output tell the parent of results, errors and wrong sums. Ends on
SIGTERM.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import worker_lib
from switchagg.launch.signals import stop_signals_exit

Array = npt.NDArray[Any]
DIGITS: Final = 3  # elements of a call's number, 12 bits each
_DIGIT: Final = 4096
_TELL: Final = 0.05  # seconds between two lines of results
_REST: Final = 0.05  # seconds between an error and the next attempt
_PACE: Final = 0.001  # seconds between two collectives: all processes share few cores
_TEXT: Final = 600  # characters of an error


@dataclass(frozen=True, slots=True)
class Task:
    """The tensors of a job.

    Attributes:
        dtype: "float32", "float64" or "int32".
        bits: of `Session.allreduce`.
        elements: behind the header.
        world_size: ranks at first.
        seed: of the values.
    """

    dtype: str
    bits: int | str
    elements: int
    world_size: int
    seed: int

    def values(self, place: int) -> Array:
        """Returns the values of a rank, which each call shifts by one. Their sums are exact in every type."""
        rng = np.random.default_rng((self.seed, place))
        if self.dtype == "int32":
            x = rng.integers(-(2**31), 2**31, self.elements, dtype=np.int32)
        else:
            x = (rng.integers(-4096, 4096, self.elements) / 8).astype(self.dtype)
        # Half of all blocks of 256 elements are zero here, and so mostly some of the sum's.
        x[np.repeat(rng.random(-(-self.elements // 256)) < 0.5, 256)[: self.elements]] = 0
        return x


class Checker:
    """Makes a rank's tensors and checks the sums."""

    def __init__(self, task: Task, place: int) -> None:
        self._task, self._place = task, place
        self._values = [task.values(each) for each in range(task.world_size)]
        self._header = DIGITS * task.world_size

    def tensor(self, call: int) -> Array:
        """Returns this rank's tensor of its call number `call`."""
        header = np.zeros(self._header, self._task.dtype)
        header[DIGITS * self._place : DIGITS * (self._place + 1)] = [
            call // _DIGIT**digit % _DIGIT for digit in range(DIGITS)
        ]
        return np.concatenate([header, self._shifted(self._place, call)])

    def calls(self, result: Array) -> list[int]:
        """Returns the call of each rank whose contribution the header tells of; 0 where there is none."""
        digits = result[: self._header].reshape(-1, DIGITS)
        return [int(sum(int(digit) * _DIGIT**i for i, digit in enumerate(each))) for each in digits]

    def error(self, call: int, places: tuple[int, ...], result: Array) -> str:
        """Returns in words what is wrong with a result; nothing for one that is right."""
        digits = result[: self._header]
        if not bool(((digits >= 0) & (digits < _DIGIT) & (digits == np.floor(digits))).all()):
            return f"the header is {digits.tolist()}, which holds no calls"
        calls = self.calls(result)
        inside = [place for place, each in enumerate(calls) if each]
        if calls[self._place] != call:
            return f"the header has call {calls[self._place]} of this rank, which made call {call}"
        if inside != sorted(places):
            return f"contributions of ranks {inside} are in it, and the session has ranks {sorted(places)}"
        exact = np.zeros(self._task.elements, self._task.dtype)
        for place in inside:
            exact += self._shifted(place, calls[place])
        body = result[self._header :]
        if np.array_equal(body, exact):
            return ""
        wrong = np.flatnonzero(body != exact)
        first = int(wrong[0])
        return (
            f"{len(wrong)} of {len(exact)} elements are wrong, the first of them element {first}: "
            f"{body[first]} instead of {exact[first]}; ranks {inside}, calls {calls}"
        )

    def _shifted(self, place: int, call: int) -> Array:
        return np.roll(self._values[place], call % max(1, self._task.elements))


def say(**fields: Any) -> None:
    """Writes a line for the parent process."""
    print(json.dumps(fields), flush=True)


class Rank:
    """One rank of a job, from process to process the same place.

    Args:
        given: `task`, a `Task`; `first`, the number before its first call; the rest is for `connect`.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._task = Task(**given["task"])
        self._connect = given["connect"]
        self._call = int(given["first"])
        self._place = int(self._connect["rank"])
        self._checker = Checker(self._task, self._place)
        self._done: list[list[Any]] = []
        self._told = time.monotonic()
        self._began = 0.0

    def run(self) -> None:
        """Joins and adds for ever."""
        while True:
            self._began = time.monotonic()
            doing = "connect"
            try:
                with worker_lib.connect(**self._connect) as session:
                    doing = "allreduce"
                    say(kind="joined")
                    self._reduce(session)
            except worker_lib.SwitchAggError as error:
                self._tell_error(doing, error)
            time.sleep(_REST)

    def _reduce(self, session: worker_lib.Session) -> None:
        while True:
            self._began = time.monotonic()
            self._call += 1
            x = self._checker.tensor(self._call)
            try:
                session.allreduce(x, bits=self._task.bits)
            except (worker_lib.WorkerLostError, worker_lib.MismatchError) as error:
                if self._connect["on_loss"] == "fail":
                    raise
                self._tell_error("allreduce", error)  # the session goes on
                continue
            self._take(session, x)
            time.sleep(_PACE)

    def _take(self, session: worker_lib.Session, x: Array) -> None:
        now = time.monotonic()
        if wrong := self._checker.error(self._call, session.places, x):
            say(kind="wrong", call=self._call, text=wrong)
            return
        self._done.append([self._began, now, self._checker.calls(x), zlib.crc32(x.tobytes())])
        if now > self._told + _TELL:
            self._tell()

    def _tell(self) -> None:
        if self._done:
            say(kind="done", collectives=self._done)
        self._done = []
        self._told = time.monotonic()

    def _tell_error(self, doing: str, error: worker_lib.SwitchAggError) -> None:
        self._tell()
        seconds = time.monotonic() - self._began
        text = str(error)[:_TEXT]
        say(kind="error", doing=doing, error=type(error).__name__, text=text, seconds=round(seconds, 3))


def main() -> None:
    """Runs until SIGTERM."""
    faulthandler.register(signal.SIGUSR1)  # a rank that hangs is asked where
    with stop_signals_exit():
        Rank(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
