"""The heartbeat: a datagram by which a worker says that it lives, and what it has done so far.

    "SAHB" | version 1 | count of fields | 0 0 | cookie, 16 bytes | sequence, 64 bits | fields, 64 bits each

All numbers are big-endian. The cookie is the member's secret, which came with its admission; it tells whose
heartbeat this is. The sequence grows with every heartbeat of a member, so a late one is known. Fields are
appended in later versions of this library, never moved: a receiver takes those it knows and ignores the
rest, and takes 0 for those that are not there. `switchagg/native/worker/heartbeat.cpp` writes the same
bytes. No I/O.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, fields
from typing import Final, Self

from switchagg.errors import SwitchAggError, UsageError

MAGIC: Final = b"SAHB"
VERSION: Final = 1
COOKIE_BYTES: Final = 16
MIN_DEADLINE: Final = 1.0  # seconds of silence after which a job may take a rank for lost
MAX_DEADLINE: Final = 3600.0
_HEAD: Final = struct.Struct(f">4sBBH{COOKIE_BYTES}sQ")
HEAD_BYTES: Final = _HEAD.size
MAX_BYTES: Final = HEAD_BYTES + 255 * 8
_U64: Final = 1 << 64
SAMPLED_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)  # elements a block in which samples are counted
NOW: Final = frozenset({"rtt_ns", "policy_word", "policy_lanes"})  # latest values; all other fields only grow


class HeartbeatError(SwitchAggError):
    """Bytes that are no heartbeat."""


@dataclass(frozen=True, slots=True)
class Report:
    """A member's counters since it joined. Times are nanoseconds; all but those of `NOW` only grow.

    Attributes:
        collectives: that are complete. elements, bytes_reduced: of their tensors, as the caller sees them.
        packets_sent, packets_received, bytes_sent, bytes_received: datagrams and UDP payload, with repeats.
        retransmissions: packets sent again. blocks_total, blocks_own, blocks_union: all blocks of the
        tensors; those that are non-zero on this rank;
            those that are non-zero on at least one rank. A dense collective counts all blocks as non-zero.
        scan_ns, quantize_ns, send_ns, receive_ns, wait_ns, decode_ns: the engine's time by activity.
        plan_ns: waited while nothing but plans was under way and every rank had arrived.
        busy_ns: in which a collective was under way.
        rtt_ns: the smoothed round trip now.
        position: packet number, the packets sent for the first time.
        sampled_blocks, sampled_own: blocks of 16 elements sampled of the tensors
            (`switchagg/native/worker/density.h`), and the number of them that are non-zero on this rank.
        sampled_own_32 to sampled_own_1024: the same elements in larger blocks.
        sampled_sums, sampled_sum and up: the same for sums in lanes of 32 bits and more: blocks of 16
            sampled, and the number of each size that are non-zero on at least one rank.
        policy_collectives, policy_elements, policy_ns: of the collectives that leave their settings to the
            job's skip policy: their number, their elements, and their time from the arrival of the last rank,
            with the scanning before it.
        policy_word: of the policy in force now. policy_lanes: the narrowest lanes that the last call allowed
            the policy to choose; 0 for none.
        exact_elements, bounded_elements: of `elements`, those of exact and of bounded sums.
        refined_elements: of the latter, about, those that took more than the first words.
    """

    collectives: int = 0
    elements: int = 0
    bytes_reduced: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    retransmissions: int = 0
    blocks_total: int = 0
    blocks_own: int = 0
    blocks_union: int = 0
    scan_ns: int = 0
    quantize_ns: int = 0
    send_ns: int = 0
    receive_ns: int = 0
    wait_ns: int = 0
    decode_ns: int = 0
    plan_ns: int = 0
    busy_ns: int = 0
    rtt_ns: int = 0
    position: int = 0
    sampled_blocks: int = 0
    sampled_own: int = 0
    sampled_own_32: int = 0
    sampled_own_64: int = 0
    sampled_own_128: int = 0
    sampled_own_256: int = 0
    sampled_own_512: int = 0
    sampled_own_1024: int = 0
    sampled_sums: int = 0
    sampled_sum: int = 0
    sampled_sum_32: int = 0
    sampled_sum_64: int = 0
    sampled_sum_128: int = 0
    sampled_sum_256: int = 0
    sampled_sum_512: int = 0
    sampled_sum_1024: int = 0
    policy_collectives: int = 0
    policy_elements: int = 0
    policy_ns: int = 0
    policy_word: int = 0
    policy_lanes: int = 0
    exact_elements: int = 0
    bounded_elements: int = 0
    refined_elements: int = 0

    @property
    def sampled_own_by_size(self) -> tuple[int, ...]:
        """Blocks that were not zero on this rank, one for each of `SAMPLED_SIZES`."""
        return self.sampled_own, *(getattr(self, f"sampled_own_{size}") for size in SAMPLED_SIZES[1:])

    @property
    def sampled_sum_by_size(self) -> tuple[int, ...]:
        """Blocks that were not zero in the sum."""
        return self.sampled_sum, *(getattr(self, f"sampled_sum_{size}") for size in SAMPLED_SIZES[1:])

    def since(self, before: Report) -> Report:
        """Returns the difference from an earlier report of the same member; `NOW` as it is."""
        return Report(
            *(
                now if name in NOW else max(0, now - then)
                for name, now, then in zip(FIELDS, astuple(self), astuple(before), strict=True)
            )
        )

    def plus(self, later: Report) -> Report:
        """Two such differences as one; `NOW` as the later one has it."""
        return Report(
            *(
                second if name in NOW else first + second
                for name, first, second in zip(FIELDS, astuple(self), astuple(later), strict=True)
            )
        )


FIELDS: Final = tuple(field.name for field in fields(Report))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat.

    Attributes:
        cookie: 16 bytes.
        sequence: 0 to 2^64 - 1.
        report: the member's counters.
    """

    cookie: bytes
    sequence: int
    report: Report

    def pack(self) -> bytes:
        """The datagram.

        Raises:
            UsageError: the cookie is not 16 bytes, or a number does not fit 64 bits.
        """
        if len(self.cookie) != COOKIE_BYTES:
            raise UsageError(f"cookie has {len(self.cookie)} bytes; accepted: {COOKIE_BYTES}")
        values = astuple(self.report)
        for name, value in (("sequence", self.sequence), *zip(FIELDS, values, strict=True)):
            if not 0 <= value < _U64:
                raise UsageError(f"{name} is {value}; accepted: 0 to 2^64 - 1")
        head = _HEAD.pack(MAGIC, VERSION, len(values), 0, self.cookie, self.sequence)
        return head + struct.pack(f">{len(values)}Q", *values)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Reads a datagram.

        Raises:
            HeartbeatError: the bytes are not a heartbeat.
        """
        if len(data) < HEAD_BYTES:
            raise HeartbeatError(f"{len(data)} bytes; a heartbeat has at least {HEAD_BYTES}")
        magic, version, count, _, cookie, sequence = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise HeartbeatError(f"it begins with {magic!r}; a heartbeat begins with {MAGIC!r}")
        if version != VERSION:
            raise HeartbeatError(f"version {version}; this is version {VERSION}")
        if len(data) != HEAD_BYTES + 8 * count:
            raise HeartbeatError(f"{len(data)} bytes; with {count} fields there are {HEAD_BYTES + 8 * count}")
        known = min(count, len(FIELDS))
        return cls(cookie, sequence, Report(*struct.unpack_from(f">{known}Q", data, HEAD_BYTES)))
