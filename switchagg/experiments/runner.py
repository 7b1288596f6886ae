"""Runs experiments one after the other, and for each of them a switch and its ranks.

run(experiments)            a Record of each; one that breaks off does not stop the next
  └─ experiment.run(runner)
       └─ runner.ranks(function, 4, {"steps": 100}, arguments=["--rate", "1Gbit"])
            ├─ switchagg host --rate 1Gbit
            └─ switchagg.experiments.rank  x 4:   function(session, {"steps": 100})  ->  results by rank
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from switchagg import __version__
from switchagg.errors import SwitchAggError
from switchagg.experiments.experiment import Experiment, Outcome
from switchagg.experiments.rank import to_builtin
from switchagg.launch.processes import ONE_THREAD, Child, Ended, Line, ProcessError, Processes
from switchagg.processor_time import everybody_seconds, family_seconds, process_seconds

SILENCE_SECONDS: Final = 240.0
_MAX_GIVEN: Final = 100_000  # bytes; the kernel takes 128 KiB in one argument


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all experiments of a command.

    Attributes:
        quick: the short form: some seconds, too little for the claim to mean much.
        seed: of data, batches and random compressors.
        parts: folder in which long experiments keep their parts; None: nowhere.
    """

    quick: bool = False
    seed: int = 0
    parts: Path | None = None


@dataclass(frozen=True, slots=True)
class RanksResult:
    """Results of a set of ranks.

    Attributes:
        results: the function's results, by rank, as JSON values.
        seconds: from the ranks' start to the last one's end, the interpreter's start included.
        cpu_seconds: processor time of each rank, by rank.
        switch_cpu_seconds: of switch and controller.
    """

    results: list[Any]
    seconds: float
    cpu_seconds: list[float]
    switch_cpu_seconds: float


class Runner:
    """Given to every experiment: its settings, and the means to start ranks.

    Args:
        say: takes a line for the user who watches.
        name: of the experiment, for its parts.

    Attributes:
        before: seconds that earlier runs spent on the parts that this one took over.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None], name: str = "") -> None:
        self.quick, self.seed = settings.quick, settings.seed
        self.say = say
        self.before = 0.0
        self._name, self._parts = name, settings.parts
        self._jobs = 0

    def part(self, key: str, make: Callable[[], Any]) -> Any:
        """Returns a part of a long experiment: an interrupted run's, or one made now and kept for the next.

        Args:
            key: of the part, unique in the experiment.
            make: makes it, of JSON values or NumPy's. Parts of another version, seed or form are made again.
        """
        if self._parts is None:
            return make()
        whose = {"version": __version__, "seed": self.seed, "quick": self.quick, "key": key}
        path = self._parts / f"{self._name}-{zlib.crc32(json.dumps(whose).encode()):08x}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            if kept["whose"] == whose:
                self.say(f"{key}: taken over")
                self.before += kept["seconds"]
                return kept["value"]
        started = time.monotonic()
        value = make()
        kept = {"whose": whose, "seconds": time.monotonic() - started, "value": value}
        self._parts.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(kept, default=to_builtin))
        written.replace(path)
        return json.loads(path.read_text())["value"]

    def ranks(
        self,
        function: Callable[[Any, Any], Any],
        workers: int,
        given: Mapping[str, Any],
        *,
        arguments: Sequence[str] = (),
        connect: Mapping[str, Any] | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> RanksResult:
        """Calls a function in `workers` processes at once, each with its session.

        Args:
            function: of a module's top level: ``function(session, given)``. Its result must be JSON values or
                NumPy's. It may call `switchagg.experiments.rank.say`.
            given: JSON values, the same for all ranks, up to 100 kB. Data is loaded by the ranks themselves.
            arguments: of `switchagg host`, such as ``["--rate", "1Gbit"]`` or ``["--loss", "0.01"]``.
            connect: of `worker_lib.connect`, such as ``{"timeout": 60.0, "transport": "udp"}``.
            silence: seconds without a word from any rank after which to give up.

        Raises:
            SwitchError: the switch did not start.
            ProcessError: a rank failed, ended early, or fell silent; the message names it and the cause.
            ValueError: `given` is too large.
        """
        from worker_lib.embedded import start_embedded

        size = len(json.dumps(dict(given)))
        if size > _MAX_GIVEN:
            raise ValueError(f"{size} bytes given to ranks; let them load what is large")
        self._jobs += 1
        started = time.monotonic()
        with start_embedded(arguments=arguments, quiet=True) as host, Processes() as processes:
            config = {
                "module": function.__module__,
                "function": function.__qualname__,
                "controller": host.controller,
                "switch_pid": host.pid,
                "job": f"experiment-{self._jobs}",
                "world_size": workers,
                "connect": {"timeout": 60.0, **(connect or {})},
                "given": dict(given),
            }
            members = []
            for rank in range(workers):
                text = json.dumps({**config, "rank": rank})
                command = [sys.executable, "-P", "-m", "switchagg.experiments.rank", text]
                members.append(processes.start(f"rank {rank}", command, environment=os.environ | ONE_THREAD))
            answers = self._collect(processes, members, silence)
            switch_seconds = process_seconds(host.pid)
        return RanksResult(
            [answers[child]["result"] for child in members],
            time.monotonic() - started,
            [float(answers[child]["cpu_seconds"]) for child in members],
            switch_seconds,
        )

    def _collect(
        self, processes: Processes, members: Sequence[Child], silence: float
    ) -> dict[Child, dict[str, Any]]:
        """Returns the last message of each rank, once all have ended with status 0."""
        answers: dict[Child, dict[str, Any]] = {}
        running = set(members)
        for event in processes.events(silence):
            assert isinstance(event, Line | Ended)
            child = event.child
            if isinstance(event, Ended):
                if child not in answers or child.status:
                    raise ProcessError(child.ending())
                running.discard(child)
                if not running:
                    break
                continue
            try:
                message = json.loads(event.text)
                assert isinstance(message, dict)
            except (ValueError, AssertionError):
                child.keep(event.text)
                continue
            if "say" in message:
                self.say(str(message["say"]))
            elif "failed" in message:
                cause = processes.first_cause()
                if cause is not None and cause is not child:
                    raise ProcessError(cause.ending())
                raise ProcessError(f"{child.name}: {message['failed']}")
            elif "result" in message:
                answers[child] = message
        return answers


class Verdict(StrEnum):
    """Result of an experiment in a word."""

    HELD = "held"
    NOT_HELD = "not held"
    FAILED = "failed"  # it broke off
    SKIPPED = "skipped"  # a package has to be installed first


@dataclass(frozen=True, slots=True)
class Record:
    """An experiment and its result.

    Attributes:
        outcome: None where it failed or was skipped.
        seconds: duration, with that of the parts that an interrupted run had left.
        reason: cause of a failure, or of being skipped.
        others: share of the cores' time that other processes took meanwhile.
        processor: seconds of processor time of this command and its processes, parts taken over not counted.
    """

    experiment: Experiment
    outcome: Outcome | None
    seconds: float = 0.0
    reason: str = ""
    others: float = 0.0
    processor: float = 0.0
    skipped: bool = False

    @property
    def verdict(self) -> Verdict:
        """The result in a word."""
        if self.outcome is None:
            return Verdict.SKIPPED if self.skipped else Verdict.FAILED
        return Verdict.HELD if self.outcome.held else Verdict.NOT_HELD


def run(
    experiments: Sequence[Experiment], settings: Settings, say: Callable[[str], None]
) -> Iterator[Record]:
    """Yields each experiment's record as it ends.

    Args:
        say: takes a line for the user who watches.
    """
    for experiment in experiments:
        if (reason := experiment.missing()) is not None:
            yield Record(experiment, None, reason=reason, skipped=True)
            continue
        say(f"{experiment.name}: {experiment.title}")
        started, mine = time.monotonic(), family_seconds()
        others = everybody_seconds() - mine
        outcome, reason = None, ""
        runner = Runner(settings, _prefixed(say, experiment.name), experiment.name)
        try:
            outcome = experiment.run(runner)
        except SwitchAggError as error:
            reason = str(error)
        seconds = time.monotonic() - started
        processor = family_seconds()
        others = everybody_seconds() - processor - others
        share = min(1.0, max(0.0, others / seconds / len(os.sched_getaffinity(0))))
        yield Record(experiment, outcome, seconds + runner.before, reason, share, processor - mine)


def _prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda line: say(f"{name}: {line}")
