"""A training process of the demo: `python -m switchagg.demo.worker CONFIG`, CONFIG being JSON from `run.py`.

    worker     each step: gradient of this rank's share of the batch, one all-reduce of the flat gradient in
               place, Adagrad. Weights are never exchanged after the first broadcast. They stay equal because
               the sums are equal to the bit.
    reference  the same batches, each taken at once, in one process without a network

The second reference shuffles the examples of every batch. In exact arithmetic that changes nothing; in
float32 it changes the rounding. So the distance between the two references is what rounding alone does to a
loss curve, and the yardstick for the distance of the switch's curve.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from switchagg.demo import corpus, messages, model
from switchagg.demo.settings import Settings
from switchagg.errors import SwitchAggError

if TYPE_CHECKING:
    from worker_lib.session import Session

HELD_OUT_EXAMPLES = 4096
_SAMPLE_WORDS = 160
_TEMPERATURE = 0.7


def train(
    session: Session,
    settings: Settings,
    tokens: NDArray[np.int32],
    training: int,
    emit: Callable[[messages.Message], None],
) -> NDArray[np.float32]:
    """Trains in step with the other ranks of the session.

    Args:
        session: the job; its world size is `settings.workers`.
        settings: the run, equal on every rank.
        tokens: the corpus, int32[length].
        training: tokens from here on are held out.
        emit: takes messages: steps, digests and comparisons of every rank, the rest of rank 0 only.

    Returns:
        The flat parameters, float32[model.parameter_count(settings)].
    """
    rank = session.rank
    flat = np.empty(model.parameter_count(settings), dtype=np.float32)
    if rank == 0:
        flat = model.initial_parameters(settings)
    session.broadcast(flat, root=0)
    flat_gradient = np.zeros_like(flat)
    parameters, gradient = model.views(flat, settings), model.views(flat_gradient, settings)
    optimizer = model.Adagrad(settings)
    held_out = held_out_batch(tokens, training, settings)
    checkpoints = settings.checkpoints()

    def share(step: int) -> model.Batch:
        ends = model.global_batch(tokens, training, step, settings)
        return model.examples(tokens, ends[rank * settings.batch : (rank + 1) * settings.batch], settings)

    emit(messages.Ready(rank))

    for step in range(1, settings.steps + 1):
        started = time.perf_counter()
        batch = share(step)
        loss = model.loss_and_gradient(parameters, batch, gradient)
        computed = time.perf_counter()
        before = session.stats()
        session.allreduce(flat_gradient, op="avg", bits=settings.bits)
        usage = messages.usage(before, session.stats())
        reduced = time.perf_counter()
        optimizer.step(parameters, gradient)
        updated = time.perf_counter()
        touched = model.touched_share(batch, settings)
        spent = computed - started, reduced - computed, updated - reduced
        emit(messages.Step(rank, step, loss, touched, *spent, usage))
        if step in checkpoints:
            emit(messages.Digest(rank, step, digest(flat)))
            if rank == 0:
                emit(messages.HeldOut(step, model.loss(parameters, held_out)))

    if settings.dense_steps:
        for comparison in _compare_dense(session, settings, parameters, flat_gradient, share):
            emit(comparison)
    if rank == 0:
        emit(_sample(parameters, tokens, training, settings))
    return flat


def train_alone(
    settings: Settings,
    tokens: NDArray[np.int32],
    training: int,
    emit: Callable[[messages.Message], None],
    *,
    shuffled: bool = False,
) -> NDArray[np.float32]:
    """Trains in this process on the batches that `settings.workers` workers would share.

    Args:
        settings, tokens, training: as in `train`.
        emit: takes Step and HeldOut messages, of rank 0.
        shuffled: permute the examples of every batch.

    Returns:
        The flat parameters, float32[model.parameter_count(settings)].
    """
    flat = model.initial_parameters(settings)
    parameters = model.views(flat, settings)
    gradient = model.views(np.zeros_like(flat), settings)
    optimizer = model.Adagrad(settings)
    held_out = held_out_batch(tokens, training, settings)
    checkpoints = settings.checkpoints()
    for step in range(1, settings.steps + 1):
        ends = model.global_batch(tokens, training, step, settings)
        if shuffled:
            ends = np.random.default_rng((settings.seed, 3, step)).permutation(ends)
        loss = model.loss_and_gradient(parameters, model.examples(tokens, ends, settings), gradient)
        optimizer.step(parameters, gradient)
        emit(messages.Step(0, step, loss))
        if step in checkpoints:
            emit(messages.HeldOut(step, model.loss(parameters, held_out)))
    return flat


def digest(parameters: NDArray[np.float32]) -> str:
    """SHA-256 of the parameters' bytes, in hexadecimal."""
    return hashlib.sha256(parameters.view(np.uint8).data).hexdigest()


def held_out_batch(tokens: NDArray[np.int32], training: int, settings: Settings) -> model.Batch:
    """Examples from the held-out text, evenly spaced, the same in every process."""
    first = training + settings.context
    count = min(HELD_OUT_EXAMPLES, len(tokens) - first)
    ends = np.linspace(first, len(tokens) - 1, count).astype(np.int64)
    return model.examples(tokens, ends, settings)


def _compare_dense(
    session: Session,
    settings: Settings,
    parameters: model.Views,
    flat_gradient: NDArray[np.float32],
    share: Callable[[int], model.Batch],
) -> Iterator[messages.Comparison]:
    """Sums a few fresh gradients both ways, without training on them."""
    gradient = model.views(flat_gradient, settings)
    sparse, dense = np.empty_like(flat_gradient), np.empty_like(flat_gradient)
    for step in range(settings.steps + 1, settings.steps + 1 + settings.dense_steps):
        model.loss_and_gradient(parameters, share(step), gradient)
        stats = [session.stats()]
        for out, blocks in ((sparse, "auto"), (dense, "dense")):
            session.allreduce(flat_gradient, op="avg", bits=settings.bits, blocks=blocks, out=out)
            stats.append(session.stats())
        yield messages.Comparison(
            session.rank,
            messages.usage(stats[0], stats[1]),
            messages.usage(stats[1], stats[2]),
            bool(np.array_equal(sparse, dense)),
        )
        gradient.embedding[model.touched_rows(gradient.embedding)] = 0


def _sample(
    parameters: model.Views, tokens: NDArray[np.int32], training: int, settings: Settings
) -> messages.Sample:
    """Lets the model go on from the middle of the held-out text, word by word."""
    generator = np.random.default_rng((settings.seed, 2))
    start = (training + len(tokens)) // 2
    words = [int(word) for word in tokens[start : start + settings.context]]
    given = len(words)
    for _ in range(_SAMPLE_WORDS):
        window = np.array([*words[-settings.context :], 0], dtype=np.int32)
        chances = model.probabilities(
            parameters,
            model.examples(window, np.array([settings.context], dtype=np.int64), settings),
            _TEMPERATURE,
        )[0]
        # The last class stands for every rarer word: there is no text to print for it.
        chances[-1] = 0
        words.append(int(generator.choice(len(chances), p=chances / chances.sum())))
    return messages.Sample(words, given)


def main(config_text: str) -> int:
    """Trains as the config says; returns the exit status."""
    config = json.loads(config_text)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank: int = config.get("rank", 0)
    try:
        settings = Settings(**config["settings"])
        tokens, training = corpus.attach(config["corpus"]), config["training"]
        if "shuffled" in config:
            train_alone(settings, tokens, training, messages.emit, shuffled=config["shuffled"])
        else:
            import worker_lib

            with worker_lib.connect(
                config["controller"],
                job=config["job"],
                rank=rank,
                world_size=settings.workers,
                timeout=config["timeout"],
            ) as session:
                train(session, settings, tokens, training, messages.emit)
        messages.emit(messages.Done(rank))
    except SwitchAggError as error:
        messages.emit(messages.Failed(rank, str(error)))
        return 1
    except (ImportError, MemoryError, OSError) as error:
        messages.emit(messages.Failed(rank, f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
