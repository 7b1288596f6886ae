"""Compression that survives the sum: quantizers, sparsifiers and memories whose messages a switch can add.

session.allreduce(x, compressor=Dithering(levels=8))
"""

from worker_lib.compress.base import Compressor, Message, RangeError, Round
from worker_lib.compress.dithering import Dithering
from worker_lib.compress.reduce import allreduce, allreduce_async
from worker_lib.compress.rounding import StochasticRounding
from worker_lib.compress.shared_exponent import SharedExponent

__all__ = [
    "Compressor",
    "Dithering",
    "Message",
    "RangeError",
    "Round",
    "SharedExponent",
    "StochasticRounding",
    "allreduce",
    "allreduce_async",
]
