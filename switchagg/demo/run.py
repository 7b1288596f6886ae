"""The parent of the demo: starts every process, collects their messages, and makes an `Outcome` of them.

corpus ─memfd─> worker 0..n-1 <─UDP─> switch
                  └── JSON lines ──> here ──> Progress
then the same batches again in two reference processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from switchagg.demo import corpus, messages
from switchagg.demo.outcome import CorpusFacts, Outcome, ReferenceRun, TrainingRun, combine
from switchagg.demo.settings import Settings
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchError
from switchagg.launch.processes import ONE_THREAD, Child, Ended, Line, ProcessError, Processes

if TYPE_CHECKING:
    from switchagg.demo.progress import Progress

HOST_SECONDS = 20.0
COLLECTIVE_SECONDS = 30.0
SILENCE_SECONDS = 2 * COLLECTIVE_SECONDS


def run(settings: Settings, lanes: Sequence[int], progress: Progress) -> Outcome:
    """Trains through the switch once for each of `lanes`, then in single processes.

    Raises:
        SwitchError: the switch did not start, or ended early.
        ProcessError: a worker or reference failed; the message says which, how and when.
        CorpusError: there is no source text to train on.
    """
    started = time.monotonic()
    with Processes() as processes, ExitStack() as stack:
        # The switch starts up while this process reads.
        host = processes.start("the switch", host_command(settings))
        progress.phase("reading the standard library's source")
        text = corpus.load(settings.corpus_bytes)
        descriptor = corpus.share(text.tokens)
        stack.callback(os.close, descriptor)
        common = {"settings": asdict(settings), "corpus": descriptor, "training": text.training}
        progress.phase("starting the switch")
        controller = _controller_url(processes, host, progress)
        runs = []
        for bits in lanes:
            config = {
                **common,
                "settings": {**asdict(settings), "bits": bits},
                "controller": controller,
                "job": f"demo-{bits}",
                "timeout": COLLECTIVE_SECONDS,
            }
            progress.training(bits, settings)
            workers = [
                _start_worker(processes, f"worker {rank}", {**config, "rank": rank})
                for rank in range(settings.workers)
            ]
            runs.append(_train(processes, host, workers, bits, progress))
        processes.close()
        progress.phase("the same batches in one process")
        reference, shuffled = _run_references(common, settings, progress)
    facts = CorpusFacts(
        text.files, text.size, len(text.tokens), len(text.words), 1 - text.training / len(text.tokens)
    )
    outcome = Outcome(settings, facts, runs, reference, shuffled)
    sample = runs[0].sample
    if sample is not None:
        words = [text.words[word] for word in sample.words]
        outcome.sample_text = "".join(words[: sample.given]), "".join(words[sample.given :])
    outcome.seconds = time.monotonic() - started
    return outcome


def _start_worker(processes: Processes, name: str, config: dict[str, Any]) -> Child:
    return processes.start(
        name,
        [sys.executable, "-P", "-m", "switchagg.demo.worker", json.dumps(config)],
        environment=os.environ | ONE_THREAD,
        descriptors=[config["corpus"]],
    )


def host_command(settings: Settings) -> list[str]:
    """Command line of the process that holds controller and switch."""
    command = [sys.executable, "-P", "-m", "switchagg.cli.main", "host"]
    faults = Faults(
        loss=settings.packet_loss,
        duplicate=settings.packet_duplicate,
        reorder=settings.packet_reorder,
        seed=settings.seed,
    )
    rate = [] if settings.rate is None else Rate.parse(settings.rate).options()
    return [*command, "--ignore-stdin", "--parent", str(os.getpid()), *faults.options(), *rate]


def _controller_url(processes: Processes, host: Child, progress: Progress) -> str:
    """Waits until the host serves, and returns its controller's URL."""
    try:
        for event in processes.events(HOST_SECONDS):
            if not isinstance(event, Line):
                raise SwitchError(f"the switch did not start: {host.ending()}")
            try:
                announced = json.loads(event.text)
                for warning in announced.get("warnings", []):
                    progress.note(f"the switch warns: {warning}")
                return str(announced["controller"])
            except (ValueError, KeyError, TypeError, AttributeError):
                raise SwitchError(
                    f"the switch did not start: instead of its address it said {event.text[:200]!r}"
                ) from None
    except ProcessError:
        raise SwitchError(
            f"the switch did not start: it has not given its address within {HOST_SECONDS:g} s"
        ) from None
    raise AssertionError("events() ends by an exception only")


def _messages(
    processes: Processes, host: Child | None, members: Sequence[Child]
) -> Iterator[tuple[Child, messages.Message]]:
    """Messages of `members` until all have ended well.

    Raises:
        SwitchError: the host ended.
        ProcessError: a member failed, or ended without saying Done.
    """
    running = set(members)
    done: set[Child] = set()
    for event in processes.events(SILENCE_SECONDS):
        assert isinstance(event, Line | Ended)
        child = event.child
        if isinstance(event, Line):
            if child not in running:
                continue
            try:
                message = messages.decode(event.text)
            except ValueError:
                child.keep(event.text)
                continue
            if isinstance(message, messages.Failed):
                cause = processes.first_cause()
                if cause is host and cause is not None:
                    raise SwitchError(f"the switch is gone: {cause.ending()}")
                if cause is not None and cause is not child:
                    raise ProcessError(cause.ending())
                raise ProcessError(f"{child.name}: {message.message}")
            if isinstance(message, messages.Done):
                done.add(child)
            yield child, message
        elif child is host:
            raise SwitchError(f"the switch is gone: {child.ending()}")
        elif child in running:
            if child not in done or child.status:
                raise ProcessError(child.ending())
            running.discard(child)
            if not running:
                return


def _train(
    processes: Processes, host: Child, workers: Sequence[Child], bits: int, progress: Progress
) -> TrainingRun:
    result = TrainingRun(bits)
    pending: dict[int, list[messages.Step]] = {}
    started = time.monotonic()
    try:
        for _, message in _messages(processes, host, workers):
            match message:
                case messages.Ready():
                    started = time.monotonic()
                case messages.Step():
                    steps = pending.setdefault(message.step, [])
                    steps.append(message)
                    if len(steps) == len(workers):
                        record = combine(pending.pop(message.step))
                        result.steps.append(record)
                        result.seconds = time.monotonic() - started
                        progress.step(record)
                case messages.Digest():
                    digests = result.digests.setdefault(message.step, {})
                    digests[message.rank] = message.sha256
                    if len(digests) == len(workers):
                        _note_digests(message.step, digests, progress)
                case messages.HeldOut():
                    result.held_out[message.step] = message.loss
                case messages.Comparison():
                    result.comparisons.append(message)
                case messages.Sample():
                    result.sample = message
    except (ProcessError, SwitchError) as error:
        done = result.steps[-1].step if result.steps else 0
        where = f"after step {done}" if done else "before the first step"
        raise type(error)(f"{error} ({where}; the run was stopped)") from None
    return result


def _note_digests(step: int, digests: dict[int, str], progress: Progress) -> None:
    distinct = set(digests.values())
    if len(distinct) == 1:
        progress.note(
            f"step {step}: all {len(digests)} workers hold the same weights, {distinct.pop()[:16]}…"
        )
    else:
        shown = ", ".join(f"{rank}: {sha256[:16]}…" for rank, sha256 in sorted(digests.items()))
        progress.note(f"step {step}: THE WEIGHTS DIFFER: {shown}")


def _run_references(
    common: dict[str, Any], settings: Settings, progress: Progress
) -> tuple[ReferenceRun, ReferenceRun]:
    results = (ReferenceRun(), ReferenceRun())
    with Processes() as processes:
        children = [
            _start_worker(processes, name, {**common, "shuffled": shuffled})
            for name, shuffled in (("the reference", False), ("the shuffled reference", True))
        ]
        for child, message in _messages(processes, None, children):
            result = results[children.index(child)]
            match message:
                case messages.Step():
                    result.losses.append(message.loss)
                    progress.reference(sum(len(part.losses) for part in results), 2 * settings.steps)
                case messages.HeldOut():
                    result.held_out[message.step] = message.loss
    return results
