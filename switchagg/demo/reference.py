"""The same training in one process, without any network: `python -m switchagg.demo.reference CONFIG`.

Each step takes the whole batch at once. The second reference shuffles the examples of every batch first. In
exact arithmetic that changes nothing; in float32 it changes the rounding. So the distance between the two is
what rounding alone does to a loss curve, and the yardstick for the distance of the switch's curve.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from switchagg.demo import corpus, messages, model
from switchagg.demo.settings import Settings
from switchagg.demo.worker import held_out_batch


def train(
    settings: Settings,
    tokens: NDArray[np.int32],
    training: int,
    emit: Callable[[messages.Message], None],
    *,
    shuffled: bool = False,
) -> NDArray[np.float32]:
    """Train on the batches that `settings.workers` workers would share, in this process.

    Args:
        settings: the run.
        tokens, training: the corpus, as in `worker.train`.
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


def main(config_text: str) -> int:
    """Run the reference; returns the exit status."""
    config = json.loads(config_text)
    try:
        train(
            Settings.from_json(json.dumps(config["settings"])),
            corpus.attach(config["corpus"]),
            config["training"],
            messages.emit,
            shuffled=config["shuffled"],
        )
        messages.emit(messages.Done(0))
    except (MemoryError, OSError) as error:
        messages.emit(messages.Failed(0, f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
