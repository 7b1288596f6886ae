"""A neural n-gram language model, its gradient by hand, and Adagrad; numpy only.

The model is that of Bengio, Ducharme, Vincent and Jauvin, "A neural probabilistic language model" (JMLR 3,
2003), section 2, with one addition: besides the words of the context, each pair of neighbouring words has an
embedding of its own, found by hashing (n-gram features as in Bojanowski et al., TACL 5, 2017, section 3.2).

    context words w1..wc -> rows [w1..wc, pair(w1,w2)..pair(wc-1,wc)] -> embeddings, side by side: x
    h = tanh(x A + a)      logits = h B + b      loss = -log softmax(logits)[next word], mean over the batch

All parameters live in one flat float32 vector, the embedding table first, and so do all gradients: a step's
all-reduce is one call on one buffer, and a batch leaves most rows of that buffer zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchagg.demo.settings import Settings

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

# Adagrad starts from this much of squared gradient. With none, its first steps would scale every coordinate
# to full size, rounding noise included, and no two orders of summation would stay near each other.
ADAGRAD_START = 3e-4


@dataclass(frozen=True, slots=True)
class Views:
    """The tensors inside one flat vector; writing to one writes to the vector.

    Attributes:
        embedding: float32[rows, dimension].
        hidden, hidden_bias: float32[features * dimension, hidden], float32[hidden].
        output, output_bias: float32[hidden, vocabulary], float32[vocabulary].
        dense: everything behind the embedding table, flat.
    """

    embedding: Floats
    hidden: Floats
    hidden_bias: Floats
    output: Floats
    output_bias: Floats
    dense: Floats


def features(settings: Settings) -> int:
    """Embeddings that one example looks up: its words, and its pairs of neighbouring words."""
    return 2 * settings.context - 1


def parameter_count(settings: Settings) -> int:
    """Length of the flat parameter vector."""
    inputs = features(settings) * settings.dimension
    return (
        settings.rows * settings.dimension
        + (inputs + 1) * settings.hidden
        + (settings.hidden + 1) * settings.vocabulary
    )


def views(flat: Floats, settings: Settings) -> Views:
    """Cuts a flat vector, float32[parameter_count], into its tensors."""
    inputs = features(settings) * settings.dimension
    shapes = [
        (settings.rows, settings.dimension),
        (inputs, settings.hidden),
        (settings.hidden,),
        (settings.hidden, settings.vocabulary),
        (settings.vocabulary,),
    ]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    tensors = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    embedding, hidden, hidden_bias, output, output_bias = tensors
    return Views(embedding, hidden, hidden_bias, output, output_bias, dense=flat[ends[0] :])


def initial_parameters(settings: Settings) -> Floats:
    """Random weights, float32[parameter_count], from the seed; biases are zero."""
    generator = np.random.default_rng((settings.seed, 0))
    flat = np.zeros(parameter_count(settings), dtype=np.float32)
    tensors = views(flat, settings)
    for tensor, scale in (
        (tensors.embedding, 0.1),
        (tensors.hidden, tensors.hidden.shape[0] ** -0.5),
        (tensors.output, 0.5 * tensors.output.shape[0] ** -0.5),
    ):
        generator.standard_normal(out=tensor, dtype=np.float32)
        np.multiply(tensor, np.float32(scale), out=tensor)
    return flat


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples.

    Attributes:
        rows: int64[examples, features], embedding rows.
        targets: int64[examples], the word to predict.
    """

    rows: Integers
    targets: Integers


def examples(tokens: NDArray[np.int32], ends: Integers, settings: Settings) -> Batch:
    """Examples that predict the words at positions `ends` (at least `context`) from those before them."""
    window = tokens[ends[:, None] + np.arange(-settings.context, 0)].astype(np.int64)
    words_rows = settings.rows // 2
    pair_rows = settings.rows - words_rows
    # Two odd multipliers below 2**31 keep the products of 31-bit ranks inside int64.
    pairs = (window[:, :-1] * 0x2545F491 + window[:, 1:] * 0x4F6CDD1D) >> 7
    rows = np.concatenate([np.minimum(window, words_rows - 1), words_rows + pairs % pair_rows], axis=1)
    targets = np.minimum(tokens[ends], settings.vocabulary - 1).astype(np.int64)
    return Batch(rows, targets)


def global_batch(tokens: NDArray[np.int32], training: int, step: int, settings: Settings) -> Integers:
    """Positions of the words to predict in one step, int64[workers * batch], the same in every process."""
    generator = np.random.default_rng((settings.seed, 1, step))
    return generator.integers(
        settings.context, min(training, len(tokens)), settings.workers * settings.batch, dtype=np.int64
    )


def _forward(parameters: Views, batch: Batch) -> tuple[Floats, Floats, Floats]:
    inputs = parameters.embedding[batch.rows].reshape(len(batch.rows), -1)
    hidden = np.tanh(inputs @ parameters.hidden + parameters.hidden_bias)
    logits = hidden @ parameters.output + parameters.output_bias
    logits -= logits.max(axis=1, keepdims=True)
    return inputs, hidden, logits


def loss(parameters: Views, batch: Batch) -> float:
    """Mean negative log-likelihood of the targets, in nats a word."""
    _, _, logits = _forward(parameters, batch)
    return float(_losses(logits, batch.targets).mean())


def probabilities(parameters: Views, batch: Batch, temperature: float = 1.0) -> NDArray[np.float64]:
    """Chances of each word to be next, float64[examples, vocabulary]; low temperatures favour likely ones."""
    _, _, logits = _forward(parameters, batch)
    chances = np.exp(logits.astype(np.float64) / temperature)
    return np.asarray(chances / chances.sum(axis=1, keepdims=True), dtype=np.float64)


def _losses(logits: Floats, targets: Integers) -> NDArray[np.float64]:
    partition = np.exp(logits).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets].astype(np.float64)
    return np.asarray(np.log(partition) - chosen, dtype=np.float64)


def loss_and_gradient(parameters: Views, batch: Batch, gradient: Views) -> float:
    """Mean loss over the batch, and its gradient.

    Args:
        parameters: the weights.
        batch: the examples.
        gradient: receives the gradient. Its embedding part must be zero on entry: only the rows that the
            batch touches are written.

    Returns:
        The mean loss in nats a word.
    """
    inputs, hidden, logits = _forward(parameters, batch)
    count = len(batch.targets)
    chosen = np.arange(count)
    value = float(_losses(logits, batch.targets).mean())

    error = np.exp(logits, out=logits)
    error /= error.sum(axis=1, keepdims=True)
    error[chosen, batch.targets] -= 1
    error /= count
    np.matmul(hidden.T, error, out=gradient.output)
    error.sum(axis=0, out=gradient.output_bias)
    back = (error @ parameters.output.T) * (1 - hidden * hidden)
    np.matmul(inputs.T, back, out=gradient.hidden)
    back.sum(axis=0, out=gradient.hidden_bias)

    # Rows occur several times in a batch: sort, then add up each run.
    touched = batch.rows.reshape(-1)
    order = np.argsort(touched, kind="stable")
    ordered = touched[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    parts = (back @ parameters.hidden.T).reshape(len(touched), -1)
    gradient.embedding[ordered[starts]] = np.add.reduceat(parts[order], starts, axis=0)
    return value


def touched_rows(embedding: Floats) -> Integers:
    """Rows of float32[rows, dimension] that are not all zero bytes, so every row with a non-zero element."""
    # Bytes, not values: an OR of 64-bit words runs twice as fast as a comparison of floats with zero.
    width = np.uint64 if embedding.shape[1] % 2 == 0 else np.uint32
    return np.flatnonzero(np.bitwise_or.reduce(embedding.view(width), axis=1))


def touched_share(batch: Batch, settings: Settings) -> float:
    """Share of all parameters whose gradient a batch can make non-zero: its rows, and all dense layers."""
    total = parameter_count(settings)
    untouched = (settings.rows - len(np.unique(batch.rows))) * settings.dimension
    return (total - untouched) / total


class Adagrad:
    """Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011, figure 1, diagonal form).

    Embedding rows without gradient are skipped. That changes nothing: a zero gradient moves no weight and
    adds nothing to the sum of squares.
    """

    def __init__(self, settings: Settings) -> None:
        self._rate = np.float32(settings.learning_rate)
        self._settings = settings
        self._sums = views(
            np.full(parameter_count(settings), np.float32(ADAGRAD_START), dtype=np.float32), settings
        )

    def step(self, parameters: Views, gradient: Views) -> None:
        """Moves `parameters` against `gradient`, and zeroes the gradient's touched rows."""
        rows = touched_rows(gradient.embedding)
        part = gradient.embedding[rows]
        sums = self._sums.embedding[rows]
        sums += part * part
        self._sums.embedding[rows] = sums
        parameters.embedding[rows] -= self._rate * part / np.sqrt(sums)
        gradient.embedding[rows] = 0

        self._sums.dense[:] += gradient.dense * gradient.dense
        parameters.dense[:] -= self._rate * gradient.dense / np.sqrt(self._sums.dense)
