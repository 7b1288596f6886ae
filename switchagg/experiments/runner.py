"""Where an experiment runs: `Lab.ranks` starts a switch and the ranks, and returns what each rank returned.

lab.ranks(function, 4, {"steps": 100}, rate="1Gbit")
  ├─ switchagg host --rate 1Gbit
  └─ switchagg.experiments.rank  x 4:   function(session, {"steps": 100})  ->  results by rank
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from switchagg.launch.processes import ONE_THREAD, Child, Ended, Line, ProcessError, Processes
from switchagg.processor_time import process_seconds

SILENCE_SECONDS: Final = 240.0
_MAX_GIVEN: Final = 100_000  # bytes; the kernel takes 128 KiB in one argument


@dataclass(frozen=True, slots=True)
class Settings:
    """How experiments are run.

    Attributes:
        quick: the short form: some seconds, too little for the claim to mean much.
        seed: of data, batches and random compressors.
    """

    quick: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a set of ranks.

    Attributes:
        results: what the function returned, by rank, as JSON values.
        seconds: from the ranks' start to the last one's end, the interpreter's start included.
        cpu_seconds: processor time of each rank, by rank.
        switch_cpu_seconds: of switch and controller.
    """

    results: list[Any]
    seconds: float
    cpu_seconds: list[float]
    switch_cpu_seconds: float


class Lab:
    """Given to every experiment.

    Args:
        say: takes a line for whoever watches.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.say = say
        self._jobs = 0

    @property
    def quick(self) -> bool:
        """Whether the short form is wanted."""
        return self.settings.quick

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.settings.seed

    def ranks(
        self,
        function: Callable[[Any, Any], Any],
        workers: int,
        given: Mapping[str, Any],
        *,
        arguments: Sequence[str] = (),
        connect: Mapping[str, Any] | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> Ran:
        """Call a function in `workers` processes at once, each with its session; returns what they returned.

        Args:
            function: of a module's top level: ``function(session, given)``. What it returns must be JSON
                values or NumPy's. It may call `switchagg.experiments.rank_api.say`.
            given: JSON values, the same for all ranks, up to 100 kB. Data is loaded by the ranks themselves.
            arguments: of `switchagg host`, such as ``["--rate", "1Gbit"]`` or ``["--loss", "0.01"]``.
            connect: of `worker_lib.connect`, such as ``{"timeout": 60.0, "transport": "udp"}``.
            silence: seconds without a word from any rank after which to give up.

        Raises:
            SwitchError: the switch did not start.
            ProcessError: a rank failed, ended early, or fell silent; the message says which, and how.
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
        return Ran(
            [answers[child]["result"] for child in members],
            time.monotonic() - started,
            [float(answers[child]["cpu_seconds"]) for child in members],
            switch_seconds,
        )

    def _collect(
        self, processes: Processes, members: Sequence[Child], silence: float
    ) -> dict[Child, dict[str, Any]]:
        """The last message of each rank, once all have ended well."""
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
