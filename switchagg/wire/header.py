"""The wire format, version 1: the one place where a SwitchAgg packet is defined.

    Ethernet | IPv4 | UDP, port 48879 | header, 16 bytes | payload: none, or exactly K 32-bit words

All fields are big-endian and the length is the UDP length:

     0       4       8              16                              32
    +-------+-------+---------------+-------------------------------+
    |version|  op   |     flags     |              job              |
    +-------+-------+---------------+-------------------------------+
    |                             token                             |
    +---------------------------------------------------------------+
    |                              seq                              |
    +-------------------------------+-------------------------------+
    |             slot              |             reply             |
    +-------------------------------+-------------------------------+

A packet without payload is a SKIP: "I take part in this round, my block is zero." The C++ header
(`switchagg.wire.cpp_header`), the scapy layer (`switchagg.wire.scapy_layer`) and the Wireshark dissector
(`switchagg.wire.wireshark`) are made from `FIELDS` and the enums here. What a switch counts about packets
(`DropReason`, `Event`) is defined here too, because every engine reports it under the same names.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag, StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import SwitchAggError, UsageError

VERSION: Final = 1
HEADER_BYTES: Final = 16
DEFAULT_PORT: Final = 48879  # 0xBEEF
MIN_WORDS: Final = 16
MAX_WORKERS: Final = 32  # of a job on one switch, leaves of a root among them
BLOCK_SLOTS: Final = 64  # consecutive slots that one thread of a software switch has, of those with several
MAX_STRIPES: Final = 16  # switches that a job's packets are dealt to
MAX_WEIGHT: Final = 32  # of one of them
MAX_TREE_WORKERS: Final = 256  # of a job on a tree of switches: a rank has 8 bits in a plan
IP_UDP_BYTES: Final = 28  # IPv4 without options, and UDP
IPV6_UDP_BYTES: Final = 48
MAX_UDP_PAYLOAD: Final = 65507
MAX_WORDS: Final = (MAX_UDP_PAYLOAD - HEADER_BYTES) // 4


class Op(IntEnum):
    """The type of a packet."""

    SUM = 0  # add the words, modulo 2^32
    OR = 1  # combine the words with bitwise or
    RESULT = 2  # from the switch: a finished slot
    INIT = 3  # from the controller's port only: set a slot's state


class Flag(IntFlag):
    """Bits of `flags`. A receiver ignores the others."""

    PAYLOAD = 1  # K words follow the header
    RETRANSMISSION = 2  # sent before; `reply` is its time, or of a leaf's the worker
    DIRECTED = 4  # one worker alone gets the words: of a contribution that `reply` names, of a RESULT another
    CE = 8  # congestion experienced (RFC 3168): a queue has marked this packet, or one that its words are of
    ECT = 16  # the sender answers such marks, so the IP header is ECT(0)


class DropReason(StrEnum):
    """Reasons for a switch to drop a packet, in the order in which it checks."""

    truncated = "truncated"  # shorter than a header
    version = "version"  # not version 1
    op = "op"  # an op that may not come from this side, as a RESULT that is not the parent's
    length = "length"  # the payload is not what the flags or the job's K say
    job = "job"  # no such job here
    source = "source"  # the job has no worker at this address and port
    token = "token"  # not this worker's token
    slot = "slot"  # not base + (seq mod P)
    stale = "stale"  # admitted, but neither this slot's current round nor its next
    duplicate = "duplicate"  # already taken into a slot that is not full yet


class Event(StrEnum):
    """A switch's counters besides drops.

    ``received = accepted + duplicates_answered + inits + delivered + the sum over all drop reasons`` and
    ``accepted = stored + added + ored + skips``.
    """

    received = "received"  # packets that came in, from workers or from the controller's port
    accepted = "accepted"  # contributions taken into a slot
    fresh = "fresh"  # of these, the first of a slot's round
    stored = "stored"  # of these, with the round's first words
    added = "added"  # of these, with words that were added to words already there
    ored = "ored"  # of these, with words that were or-ed into words already there
    skips = "skips"  # of these, without words
    retransmissions = "retransmissions"  # admitted packets flagged as sent before, whatever became of them
    duplicates_answered = "duplicates_answered"  # repeats answered with the stored result, or sent up again
    results = "results"  # rounds completed
    empty_results = "empty_results"  # of these, without words: every worker skipped
    inits = "inits"  # slots initialised by the controller
    delivered = "delivered"  # RESULTs of the switch above that were handed down to workers


COUNTERS: Final[tuple[str, ...]] = (*(r.value for r in DropReason), *(e.value for e in Event))


@dataclass(frozen=True, slots=True)
class Field:
    """One header field, in wire order."""

    name: str
    bits: int
    meaning: str
    hexadecimal: bool = False  # how a person wants to see it


FIELDS: Final[tuple[Field, ...]] = (
    Field("version", 4, "1"),
    Field("op", 4, "0 SUM, 1 OR, 2 RESULT, 3 INIT"),
    Field(
        "flags",
        8,
        "bit 0: payload present; bit 1: retransmission; bit 2: words for one; bits 3, 4: CE, ECT",
        hexadecimal=True,
    ),
    Field("job", 16, "job id"),
    Field(
        "token", 32, "a worker's secret for this job; in a RESULT the job's result token", hexadecimal=True
    ),
    Field("seq", 32, "sequence number of this packet in the job, modulo 2^32"),
    Field("slot", 16, "base + (seq mod P)"),
    Field("reply", 16, "0; of a repeat its time; bit + 1 of the worker that a leaf or a directed one names"),
)

_STRUCT: Final = struct.Struct(">BBHIIHH")
assert sum(field.bits for field in FIELDS) == 8 * HEADER_BYTES == 8 * _STRUCT.size


class WireError(SwitchAggError):
    """Bytes that are not a version 1 packet.

    Attributes:
        reason: the reason under which a switch counts such a packet.
    """

    def __init__(self, message: str, reason: DropReason) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """The 16 bytes in front of every payload."""

    op: Op
    flags: int
    job: int
    token: int
    seq: int
    slot: int
    reply: int = 0
    version: int = VERSION

    def pack(self) -> bytes:
        """Returns the 16 bytes. Raises `UsageError` for a value that its field cannot hold."""
        for field in FIELDS:
            value = getattr(self, field.name)
            if not 0 <= value < 1 << field.bits:
                raise UsageError(
                    f"{field.name} is {value}; a {field.bits}-bit field holds 0..{2**field.bits - 1}"
                )
        return _STRUCT.pack(
            self.version << 4 | self.op, self.flags, self.job, self.token, self.seq, self.slot, self.reply
        )

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Reads the header at the start of `data`.

        Raises:
            WireError: `data` is too short, or its version or op is not known.
        """
        if len(data) < HEADER_BYTES:
            raise WireError(f"{len(data)} bytes; a header has {HEADER_BYTES}", DropReason.truncated)
        first, flags, job, token, seq, slot, reply = _STRUCT.unpack_from(data)
        if first >> 4 != VERSION:
            raise WireError(f"version {first >> 4}; this is version {VERSION}", DropReason.version)
        try:
            op = Op(first & 15)
        except ValueError:
            raise WireError(f"op {first & 15}; known are 0..{max(Op)}", DropReason.op) from None
        return cls(op, flags, job, token, seq, slot, reply)


def _flagged(header: Header, flags: int) -> Header:
    return header if header.flags == flags else replace(header, flags=flags)


def encode(header: Header, words: npt.NDArray[np.uint32] | None = None) -> bytes:
    """Returns a whole UDP payload.

    Args:
        header: its payload flag is set or cleared to agree with `words`.
        words: uint32 of shape (K,), in host order; None makes a packet without payload.

    Raises:
        UsageError: `words` has another dtype or shape, or a count outside 16..16,372.
    """
    if words is None:
        return _flagged(header, header.flags & ~int(Flag.PAYLOAD)).pack()
    if words.dtype != np.uint32 or words.ndim != 1 or not MIN_WORDS <= words.size <= MAX_WORDS:
        raise UsageError(
            f"words is {words.dtype} of shape {words.shape}; a payload is uint32 of shape (K,), "
            f"{MIN_WORDS} <= K <= {MAX_WORDS}"
        )
    return _flagged(header, header.flags | Flag.PAYLOAD).pack() + words.astype(">u4").tobytes()


def decode(data: bytes) -> tuple[Header, npt.NDArray[np.uint32] | None]:
    """Splits a whole UDP payload into its header and its words, uint32 of shape (K,) in host order, or None.

    Raises:
        WireError: the bytes are not a packet; `reason` says which check failed.
    """
    header = Header.unpack(data)
    payload = len(data) - HEADER_BYTES
    if not header.flags & Flag.PAYLOAD:
        if payload:
            raise WireError(
                f"{payload} bytes after the header of a packet without payload", DropReason.length
            )
        return header, None
    if payload % 4 or payload < 4 * MIN_WORDS:
        raise WireError(f"a payload of {payload} bytes; at least {MIN_WORDS} words", DropReason.length)
    return header, np.frombuffer(data, ">u4", offset=HEADER_BYTES).astype(np.uint32)


def max_words(mtu: int, *, ipv6: bool = False) -> int:
    """Returns the largest K whose packet fits `mtu`, the bytes of an IP packet (364 for 1500; 359 of IPv6).

    Raises `UsageError` where not even the smallest K fits.
    """
    headers = IPV6_UDP_BYTES if ipv6 else IP_UDP_BYTES
    words = (min(mtu - headers, MAX_UDP_PAYLOAD) - HEADER_BYTES) // 4
    if words < MIN_WORDS:
        raise UsageError(
            f"an MTU of {mtu} bytes has room for {max(words, 0)} words; "
            f"at least {MIN_WORDS} are needed, an MTU of {headers + HEADER_BYTES + 4 * MIN_WORDS}"
        )
    return words
