"""Narrow lanes on a tensor's own device: `worker_lib`'s arithmetic in PyTorch's operations.

A GPU that quantizes before it copies moves 2 or 1 bytes an element over its bus where float32 has 4. Every
operation here is one of IEEE arithmetic, or on integers, and runs as a kernel of its own, so that no compiler
makes a fused multiply-add of two. So the results are those of the engine, to the bit.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from worker_lib.plan import NARROW_CHUNK, NO_EXPONENT, DType
from worker_lib.quantize import lane_top

_INFINITY: Final = 0x7F800000
_WORDS: Final = 8  # of a chunk's one-hot exponent


def one_hot(x: torch.Tensor) -> torch.Tensor:
    """The words of each chunk's exponent in a plan; int32 of shape (chunks, 8).

    One bit for the largest finite magnitude, so that the highest bit of an OR over ranks is the maximum; and
    the last one, if the chunk holds NaN or Inf.

    Args:
        x: float32, flat.
    """
    magnitude = _chunks(x.view(torch.int32)) & 0x7FFFFFFF
    special = magnitude >= _INFINITY
    top = torch.where(special, 0, magnitude).amax(1)
    exponent = torch.where(top == 0, NO_EXPONENT, top >> 23).to(torch.int32)
    word = torch.arange(_WORDS, device=x.device, dtype=torch.int32)
    bit = torch.ones_like(exponent) << (exponent & 31)
    words = torch.where((exponent[:, None] >> 5) == word, bit[:, None], 0).to(torch.int32)
    words[:, -1] |= torch.where(special.any(1), _signed(1 << 31), 0).to(torch.int32)
    return words


def agreed(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The content of an OR of `one_hot` words.

    Returns:
        The largest exponents, int32 of shape (chunks,), and the numbers of the chunks with NaN or Inf.
    """
    bits = words[:, :, None] >> torch.arange(32, device=words.device, dtype=torch.int32) & 1
    place = torch.arange(32 * _WORDS - 1, device=words.device, dtype=torch.int32)
    finite = bits.view(-1, 32 * _WORDS)[:, :-1]
    exponent = torch.where(finite == 1, place, NO_EXPONENT).amax(1).to(torch.int32)
    return exponent, (words[:, -1] < 0).nonzero()[:, 0]


def special_words(x: torch.Tensor, chunks: torch.Tensor) -> torch.Tensor:
    """Bits of the elements of some chunks: +Inf or NaN, then -Inf or NaN; int32 of shape (chunks, 2, 32)."""
    there = _chunks(x)[chunks]
    bits = torch.stack([there.isnan() | (there == torch.inf), there.isnan() | (there == -torch.inf)], 1)
    place = torch.arange(32, device=x.device, dtype=torch.int64)
    words = (bits.view(-1, 2, NARROW_CHUNK // 32, 32).long() << place).sum(-1)
    return words.to(torch.int32)  # modulo 2^32


def write_specials(y: torch.Tensor, chunks: torch.Tensor, words: torch.Tensor) -> None:
    """Writes NaN and Inf, as in the OR of `special_words`, over a flat result."""
    place = torch.arange(32, device=words.device, dtype=torch.int32)
    plus, minus = (words[..., None] >> place & 1).view(-1, 2, NARROW_CHUNK).bool().unbind(1)
    value = torch.where(plus & minus, torch.nan, torch.where(minus, -torch.inf, torch.inf))
    index = chunks[:, None] * NARROW_CHUNK + torch.arange(NARROW_CHUNK, device=y.device)
    there = (plus | minus) & (index < y.numel())
    y[index[there]] = value[there]


def quantize(x: torch.Tensor, exponent: torch.Tensor, *, bits: int, workers: int, key: int) -> torch.Tensor:
    """One rank's integers, int32 of x's shape: stochastic rounding by a hash of key and index.

    Args:
        x: float32, flat, finite.
        exponent: agreed by all ranks, of each chunk.
        bits: 16 or 8. workers: number of ranks. key: of `worker_lib.quantize.dither_key`.
    """
    top = lane_top(bits, workers)
    scaled = _each(_times_power(_chunks(x), 15 - _unbiased(exponent)) * float(top), x.numel())
    index = torch.arange(x.numel(), device=x.device, dtype=torch.int32)
    h = index * _signed(0x9E3779B1) + _signed(key)
    h = h ^ (h >> 16 & 0xFFFF)
    h = h * _signed(0x85EBCA6B)
    good = _per_element(exponent != NO_EXPONENT, x.numel())
    nearest = torch.where(good, torch.round(scaled), 0.0).to(torch.int32)  # 2^16 times the lane
    return nearest + (h >> 16 & 0xFFFF) >> 16


def dequantize(
    total: torch.Tensor, exponent: torch.Tensor, *, bits: int, workers: int, average: bool
) -> torch.Tensor:
    """The result, float32, from the sums of all ranks' integers."""
    top = lane_top(bits, workers)
    one = torch.tensor(1.0 / (top * workers if average else top), dtype=torch.float32, device=total.device)
    y = _each(_times_power(_chunks(total.to(torch.float32) * one), _unbiased(exponent) + 1), total.numel())
    largest = torch.finfo(torch.float32).max
    cut = _per_element(exponent == DType.F32.not_finite - 1, total.numel()) & y.isinf()
    if not average:
        cut &= total.abs() <= top
    y = torch.where(cut, torch.where(y > 0, largest, -largest), y)
    return torch.where(_per_element(exponent == NO_EXPONENT, total.numel()), 0.0, y)


def pack(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs lanes into words that can be added: word j holds lanes j, j + W, ...; int32 of shape (W,)."""
    lanes = 32 // bits
    width = -(-q.numel() // lanes)
    planes = torch.nn.functional.pad(q, (0, lanes * width - q.numel())).view(lanes, width)
    words = planes[0].clone()
    for i in range(1, lanes):
        words += planes[i] << bits * i
    return words


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The sums of lanes in summed words; int32 of shape (count,)."""
    planes, rest = [], words
    for _ in range(32 // bits):
        low = rest << 32 - bits >> 32 - bits  # sign-extended
        planes.append(low)
        rest = (rest - low >> bits) & (1 << 32 - bits) - 1
    return torch.cat(planes)[:count]


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def _chunks(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % NARROW_CHUNK)).view(-1, NARROW_CHUNK)


def _each(chunks: torch.Tensor, count: int) -> torch.Tensor:
    return chunks.reshape(-1)[:count]


def _per_element(of_chunk: torch.Tensor, count: int) -> torch.Tensor:
    return of_chunk.repeat_interleave(NARROW_CHUNK)[:count]


def _unbiased(exponent: torch.Tensor) -> torch.Tensor:
    return exponent.clamp(min=1) - 127


def _times_power(chunks: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Each chunk times its 2^k, in two factors on the same side of 1."""
    first = k.sign() * torch.div(k.abs(), 2, rounding_mode="floor")
    product: Any = (chunks * _power(first)[:, None]) * _power(k - first)[:, None]
    return product


def _power(k: torch.Tensor) -> torch.Tensor:
    return (k.to(torch.int32) + 127 << 23).view(torch.float32)
