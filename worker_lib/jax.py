"""JAX: a sum over the ranks of a job inside a jitted function, on the CPU.

    import jax, worker_lib, worker_lib.jax as switch

    session = worker_lib.connect()

    @jax.jit
    def step(parameters, batch):
        gradients = jax.grad(loss)(parameters, batch)
        return switch.allreduce(session, gradients, op="avg")      # a pytree; one process is one rank

    XLA's thread --FFI call: addresses of operands and results--> handler --> Session.allreduce

XLA hands over its buffers by its foreign function interface (xla/ffi/api/c_api.h, version 0.3), whose
structures are declared below; nothing is copied. Calls carry an ordered effect, so that XLA runs them in
program order, also where they do not depend on each other: ranks must call the same collectives in the same
order.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
from jax._src import effects
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from switchagg.errors import SwitchAggError, UsageError
from worker_lib.arguments import SUMMABLE
from worker_lib.session import Session

_API_VERSION: Final = (0, 3)  # of the structures below; XLA refuses a handler of one that it does not know
_METADATA: Final = 1  # type of the extension by which XLA asks for the version
_EXECUTE: Final = 3  # stage
_INTERNAL: Final = 13  # error code
_TOKEN: Final = 17
_TYPES: Final[dict[int, Any]] = {
    4: np.int32, 5: np.int64, 8: np.uint32, 9: np.uint64,
    10: np.float16, 11: np.float32, 12: np.float64, 16: ml_dtypes.bfloat16,
}  # fmt: skip


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _Extension(Structure):
    _fields_ = [
        ("size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(_Metadata)),
    ]  # fmt: skip


class _ErrorArguments(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("error", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))),
    ]  # fmt: skip


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("buffers", POINTER(POINTER(_Buffer))),
    ]  # fmt: skip

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Returns the buffers but tokens as arrays, which share their memory."""
        every = [self.buffers[i].contents for i in range(self.count)]
        return [_array(buffer) for buffer in every if buffer.dtype != _TOKEN]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", POINTER(_Extension)), ("api", POINTER(_Api)), ("context", c_void_p),
        ("stage", c_int), ("operands", _Buffers), ("results", _Buffers),
    ]  # fmt: skip


_HANDLER: Final = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))


def _array(buffer: _Buffer) -> np.ndarray[Any, Any]:
    shape = tuple(buffer.dims[: buffer.rank])
    dtype = np.dtype(_TYPES[buffer.dtype])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(buffer.data), dtype).reshape(shape)


def _handler(call: Callable[[list[Any], list[Any]], None]) -> Any:
    """Wraps a function of operands and results as XLA calls it."""

    def handle(frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        if frame.extension and frame.extension.contents.type == _METADATA:
            version = frame.extension.contents.metadata.contents.version
            version.major, version.minor = _API_VERSION
            return None
        try:
            if frame.stage == _EXECUTE:
                call(frame.operands.arrays(), frame.results.arrays())
        except BaseException as error:  # the caller is C++
            where = "worker_lib" if isinstance(error, SwitchAggError) else type(error).__module__
            message = f"{where}.{type(error).__name__}: {error}".encode()
            given = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL)
            made: int | None = frame.api.contents.error(ctypes.byref(given))
            return made
        return None

    return _HANDLER(handle)


class _Effect(effects.Effect):  # type: ignore[misc]
    __str__ = lambda _: "switchagg"  # noqa: E731


_EFFECT: Final = _Effect()
for _set in (
    effects.ordered_effects,
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _set.add_type(_Effect)

_primitive: Final = Primitive("switchagg_allreduce")
_primitive.multiple_results = True
_sessions: Final[list[Session]] = []
_kept: Final[list[Any]] = []  # handlers, which XLA calls as long as this process lives


@cache
def _target(session_number: int, options: tuple[tuple[str, Any], ...]) -> str:
    """Registers the handler of a session's calls with these options, and returns its name.

    The name says everything that the handler knows: JAX's cache of programs goes by it, in other processes
    too.
    """
    session, named = _sessions[session_number], dict(options)

    def call(operands: list[Any], results: list[Any]) -> None:
        works = [
            session.allreduce_async(x, out=out, **named) for x, out in zip(operands, results, strict=True)
        ]
        for work in works:
            work.wait()

    name = f"switchagg_allreduce_{session_number}_" + "_".join(f"{k}={v}" for k, v in options)
    handler = _handler(call)
    _kept.append(handler)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    return name


def allreduce(
    session: Session,
    x: Any,
    op: str = "sum",
    *,
    bits: int | None = None,
    accuracy: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Sums or averages arrays over the ranks of a session, as `jax.lax.psum` does over those of an axis.

    Works in and outside of `jax.jit`, in `lax.scan`, `lax.fori_loop` and `lax.cond` (which must take the same
    branches at all ranks), under `jax.vmap`, and on JAX's CPU backend. Differentiable in both modes, as the
    linear map from all ranks' x to all ranks' results that it is: what the derivative of the *sum over ranks*
    of their outputs needs. So the cotangents are summed (or averaged) over the ranks, too. To have each rank
    differentiate its own loss, as data-parallel training does, reduce the gradients, after `jax.grad`.

    Args:
        session: of this process. Call `jax.effects_barrier()` before its other collectives and before
            `session.close()`: JAX returns before it has run a program.
        x: a pytree of arrays, of the same shapes and types at all ranks: float32, float64, float16, bfloat16,
            int32, int64, uint32 or uint64.
        op: ``"sum"``, or ``"avg"`` of floats.
        bits, accuracy, timeout: as in `Session.allreduce`, whose results these are, to the bit, leaf by leaf.

    Returns:
        A pytree like x.

    Raises:
        UsageError: an argument cannot work.
        jax.errors.JaxRuntimeError: the collective failed, when a result is waited for; the message has the
            error of `Session.allreduce`, with its name.
    """
    if op not in ("sum", "avg"):
        raise UsageError(f"op is {op!r}; accepted: 'sum' and 'avg'")
    leaves, tree = jax.tree.flatten(x)
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]
    for leaf in leaves:
        if leaf.dtype.name not in SUMMABLE:
            raise UsageError(f"an array is {leaf.dtype.name}; accepted: {', '.join(SUMMABLE)}")
        if op == "avg" and not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            raise UsageError(f"op is 'avg' of {leaf.dtype.name}; accepted: floats; sum and divide")
    if session not in _sessions:
        _sessions.append(session)
    given = {"op": op, "bits": bits, "accuracy": accuracy, "timeout": timeout}
    results: dict[int, Any] = {}
    # Integers have no derivative, and so a call of their own.
    for floats in (True, False):
        places = [
            i
            for i, leaf in enumerate(leaves)
            if bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)) == floats
        ]
        if places:
            options = given if floats else given | {"bits": None, "accuracy": None}
            target = _target(_sessions.index(session), tuple(options.items()))
            sums = _primitive.bind(*(leaves[i] for i in places), target=target)
            results.update(zip(places, sums, strict=True))
    return jax.tree.unflatten(tree, [results[i] for i in range(len(leaves))])


@cache
def _compiled(target: str) -> Any:
    return jax.jit(lambda *x: _primitive.bind(*x, target=target))


def _lowered(ctx: Any, *operands: Any, target: str) -> Any:
    token = jax.core.abstract_token
    inner = dataclasses.replace(ctx, avals_in=[token, *ctx.avals_in], avals_out=[token, *ctx.avals_out])
    lower = jax.ffi.ffi_lowering(target, has_side_effect=True)
    after, *results = lower(inner, ctx.tokens_in.get(_EFFECT), *operands)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_EFFECT: after})))
    return results


def _transposed(cotangents: Sequence[Any], *operands: Any, target: str) -> Any:
    del operands
    return _primitive.bind(*map(ad.instantiate_zeros, cotangents), target=target)


_primitive.def_impl(lambda *x, target: _compiled(target)(*x))
_primitive.def_effectful_abstract_eval(
    lambda *x, target: ([jax.core.ShapedArray(each.shape, each.dtype) for each in x], {_EFFECT})  # noqa: ARG005
)
mlir.register_lowering(_primitive, _lowered, platform="cpu")
ad.deflinear2(_primitive, _transposed)
batching.primitive_batchers[_primitive] = lambda x, axes, target: (_primitive.bind(*x, target=target), axes)
atexit.register(jax.effects_barrier)  # runs before the sessions are closed
