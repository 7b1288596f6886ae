"""Compression that survives the sum: quantizers, sparsifiers and memories whose messages a switch can add.

session.allreduce(x, compressor=ErrorFeedback(chain(TopBlocks(tau=0.1), Dithering(levels=8))))
"""

from worker_lib.compress.base import Compressor, Message, RangeError, Round
from worker_lib.compress.dithering import Dithering
from worker_lib.compress.intsgd import IntSGD
from worker_lib.compress.memories import EF21, EF21SGDM, Differences, ErrorFeedback, Marina
from worker_lib.compress.modular import Modular
from worker_lib.compress.power import PowerSGD
from worker_lib.compress.rotation import Rotation
from worker_lib.compress.rounding import StochasticRounding
from worker_lib.compress.shared_exponent import SharedExponent
from worker_lib.compress.signs import Signs
from worker_lib.compress.sparsifiers import RandomBlocks, Threshold, TopBlocks, chain

__all__ = [
    "EF21",
    "EF21SGDM",
    "Compressor",
    "Differences",
    "Dithering",
    "ErrorFeedback",
    "IntSGD",
    "Marina",
    "Message",
    "Modular",
    "PowerSGD",
    "RandomBlocks",
    "RangeError",
    "Rotation",
    "Round",
    "SharedExponent",
    "Signs",
    "StochasticRounding",
    "Threshold",
    "TopBlocks",
    "chain",
]
