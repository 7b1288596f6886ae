"""All-reduces inside of jitted functions, 4 processes: bits of the session's own calls, in program order."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from worker_lib import Session

from .harness import processes

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed (pip install 'switchagg[jax]')", allow_module_level=True)

RANKS = 4


def bits(session: Session, seed: int) -> int:
    import jax
    import ml_dtypes

    import worker_lib.jax as switch

    rng = np.random.default_rng((seed, session.rank))
    compared = 0
    for dtype in (np.float32, ml_dtypes.bfloat16, np.int32):
        for shape in ((), (0,), (1000,), (300, 1000)):
            for options in ({}, {"bits": 32}, {"accuracy": "exact"}, {"op": "avg"}):
                if dtype is np.int32 and options:
                    continue
                x = np.asarray(rng.standard_normal(shape) * 100).astype(dtype)
                wanted = session.allreduce(x.copy(), **options)  # type: ignore[arg-type]
                for call in (
                    jax.jit(lambda x, options=options: switch.allreduce(session, x, **options)),
                    lambda x, options=options: switch.allreduce(session, x, **options),
                ):
                    total = np.asarray(call(x))
                    assert total.dtype == dtype
                    assert total.tobytes() == wanted.tobytes(), (dtype, shape, options)
                    compared += 1
    return compared


@pytest.mark.usefixtures("both_transports")
def test_bits_are_those_of_the_session(host: EmbeddedController) -> None:
    with processes(host.url, RANKS, bits, seed_of_this_run()) as ranks:
        for rank in ranks:
            assert rank.finish().get() == 2 * (2 * 4 * 4 + 4)


def derivatives(session: Session) -> None:
    import jax
    import jax.numpy as jnp

    import worker_lib.jax as switch

    rank, weights = session.rank, jnp.arange(3.0)
    total_rank = sum(range(RANKS))

    def loss(x: Any) -> Any:
        return (switch.allreduce(session, x * x) * weights * (rank + 1)).sum()

    x = jnp.arange(3.0) + rank
    # The sum over ranks of their losses is sum_i w_i * (sum of rank + 1) * sum_q x_qi ** 2.
    wanted = 2 * x * weights * (total_rank + RANKS)
    assert jnp.allclose(jax.grad(loss)(x), wanted)
    assert jnp.allclose(jax.jit(jax.grad(loss))(x), wanted)
    slope = jax.jvp(loss, (x,), (jnp.ones(3),))[1]
    assert jnp.allclose(
        slope, sum((2 * (jnp.arange(3.0) + q) * weights).sum() for q in range(RANKS)) * (rank + 1)
    )
    average = jax.grad(lambda x: (switch.allreduce(session, x, op="avg") * weights).sum())(x)
    assert jnp.allclose(average, weights)
    tree = {"a": x, "b": [jnp.full((2, 2), rank), jnp.ones(5, jnp.bfloat16)]}
    sums = switch.allreduce(session, tree)
    assert (sums["a"] == jnp.arange(3.0) * RANKS + total_rank).all()
    assert (sums["b"][0] == total_rank).all()
    assert (sums["b"][1] == RANKS).all()
    mapped = jax.vmap(lambda y: switch.allreduce(session, y), in_axes=1)(jnp.ones((2, 3)) * rank)
    assert mapped.shape == (3, 2)
    assert (mapped == total_rank).all()


def order(session: Session) -> None:
    import jax
    import jax.numpy as jnp

    import worker_lib.jax as switch

    sizes = [100_000, 1, 5000, 70_000, 12, 300] * 5

    @jax.jit
    def independent(arrays: list[Any]) -> list[Any]:
        return [switch.allreduce(session, x) for x in arrays]

    @jax.jit
    def unused(x: Any) -> Any:
        switch.allreduce(session, x + 1)  # still a collective, at all ranks
        return x

    def body(carry: Any, _: Any) -> Any:
        return switch.allreduce(session, carry, op="avg"), carry

    arrays = [jnp.full(size, float(session.rank + i)) for i, size in enumerate(sizes)]
    for _ in range(3):
        results = independent(arrays)  # several programs on their way at once
        unused(arrays[0])
    last, steps = jax.jit(lambda x: jax.lax.scan(body, x, length=4))(arrays[1])
    for i, result in enumerate(results):
        assert (result == RANKS * i + sum(range(RANKS))).all()
    assert (last == 1 + sum(range(RANKS)) / RANKS).all()
    assert steps.shape == (4, 1)
    jax.effects_barrier()
    assert session.stats()["collectives"] >= 3 * (len(sizes) + 1) + 4
    session.barrier()


@pytest.mark.parametrize("function", [derivatives, order])
def test_in_programs(host: EmbeddedController, function: Any) -> None:
    with processes(host.url, RANKS, function) as ranks:
        for rank in ranks:
            rank.finish().get()


def refusals(session: Session) -> str:
    import jax
    import jax.numpy as jnp

    import worker_lib.jax as switch

    for call, problem in (
        (lambda: switch.allreduce(session, jnp.ones(3), op="max"), "op is 'max'; accepted: 'sum' and 'avg'"),
        (lambda: switch.allreduce(session, jnp.ones(3, jnp.complex64)), "an array is complex64; accepted"),
        (lambda: switch.allreduce(session, jnp.ones(3, int), op="avg"), "op is 'avg' of int32"),
    ):
        with pytest.raises(UsageError, match=problem):
            call()
    try:
        jax.jit(lambda x: switch.allreduce(session, x))(jnp.ones(10 + session.rank)).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return "no error"


def test_errors_have_their_names(host: EmbeddedController) -> None:
    with processes(host.url, 2, refusals) as ranks:
        for rank in ranks:
            assert "worker_lib.MismatchError: ranks" in rank.finish().get()
