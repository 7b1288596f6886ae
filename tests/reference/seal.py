"""Keys, pads and contributions of sealed sums, as docs/protocol.md (section 15) defines them.

In the engine they are `switchagg/native/worker/seal.cpp` and `check.cpp`. AES is that of the command
`openssl`.
"""

from __future__ import annotations

import hmac
import struct
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from tests.reference.check import _MASK, _PRIME, _STEP, digest, mixed

WORDS: Final = 6
_LABEL: Final = b"switchagg seal 1"


class Keys:
    """The keys of a generation of `len(nonces)` ranks."""

    def __init__(self, secret: bytes, nonces: Sequence[bytes]) -> None:
        key = hmac.digest(secret, _LABEL + struct.pack(">I", len(nonces)) + b"".join(nonces), "sha256")
        self.pads = hmac.digest(key, b"pads", "sha256")
        self.weights = hmac.digest(key, b"weights", "sha256")


def keystream(key: bytes, block: bytes, words: int) -> list[int]:
    """Words of AES-256 in counter mode, big-endian, from a counter block on."""
    command = ["openssl", "enc", "-aes-256-ctr", "-nopad", "-K", key.hex(), "-iv", block.hex()]
    done = subprocess.run(command, input=bytes(4 * words), capture_output=True, check=True, timeout=60)
    return list(struct.unpack(f">{words}I", done.stdout))


def pad(keys: Keys, rank: int, packet_number: int, words: int) -> list[int]:
    """F(rank) of a packet."""
    return keystream(keys.pads, struct.pack(">HQ", rank, packet_number) + bytes(6), words)


def check_words(keys: Keys, words: Sequence[int], packet_number: int, digest: tuple[int, int]) -> list[int]:
    """The six words behind a contribution's others, without pads."""
    secret = keystream(keys.weights, bytes(16), 2 * (2 + len(words)))
    out = []
    for i in range(2):
        weights = secret[i * (2 + len(words)) + 2 :][: len(words)]
        signed = [(w - (w >> 31 << 32), v - (v >> 31 << 32)) for w, v in zip(weights, words, strict=True)]
        total = sum(w * v for w, v in signed) + packet_number * _STEP + mixed(digest[i])
        total &= _MASK
        out += [total & 0xFFFFFF, total >> 24 & 0xFFFFFF, 1 << 24 | total >> 48]
    return out


def point(keys: Keys, which: int, words: int) -> int:
    """The point of digests of one of the two sums; packets have `words` words beside check words."""
    secret = keystream(keys.weights, bytes(16), 2 * (2 + words))
    first, second = secret[which * (2 + words) :][:2]
    return (first << 32 | second) % _PRIME


def digests(keys: Keys, agreed: Iterable[int], words: int) -> tuple[int, int]:
    """Those of the two sums, of what ranks have agreed on; packets have `words` words beside check words."""
    told = list(agreed)
    return digest(0, told, point(keys, 0, words)), digest(0, told, point(keys, 1, words))


def contribution(
    keys: Keys,
    rank: int,
    ranks: int,
    words: Sequence[int],
    packet_number: int,
    digest: tuple[int, int],
    *,
    alone: bool = False,
) -> list[int]:
    """All K words of a rank's packet; `alone`: the others send SKIPs."""
    plain = [*words, *check_words(keys, words, packet_number, digest)]
    own = pad(keys, rank, packet_number, len(plain))
    last = alone or rank + 1 == ranks
    other = [0] * len(plain) if last else pad(keys, rank + 1, packet_number, len(plain))
    return [(v + f - g) % (1 << 32) for v, f, g in zip(plain, own, other, strict=True)]
