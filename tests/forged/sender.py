"""The forger: a process that sends packets with any source address, through a raw socket. It needs root.

    python -m tests.forged.sender < orders

An order is a line of JSON: kind, count, packets a second, seed, the job as `Job` has it, and the port that
gets the packets in place of the switch's or worker's, or 0. The answer is a line once all are sent.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from switchagg.wire.header import Header, Op, encode

Address = tuple[str, int]
_STEP: Final = 0.002  # seconds between two bursts
_DRAWN: Final = 64  # packets that differ; they are made before the first is sent


@dataclass(frozen=True)
class Job:
    """All that an attacker who had seen a worker's packets would know."""

    switch: Address
    worker: Address
    job: int
    token: int
    result_token: int
    base: int
    slots: int
    words: int
    first_seq: int

    def header(self, draw: random.Random, **other: Any) -> Header:
        """A header of the worker's next rounds, with some fields otherwise."""
        seq = (self.first_seq + draw.randrange(1 << 20)) % 2**32
        right = {"op": Op.SUM, "job": self.job, "token": self.token, "seq": seq}
        seq = other.get("seq", seq)
        return Header(**{"flags": 0, "slot": self.base + seq % self.slots, **right, **other})

    def contribution(self, draw: random.Random, **other: Any) -> bytes:
        """A worker's packet with words."""
        return encode(self.header(draw, **other), np.full(self.words, draw.getrandbits(32), np.uint32))


def _token(job: Job, draw: random.Random) -> bytes:
    return job.contribution(draw, token=job.token ^ 1 << draw.randrange(32))


def _slot(job: Job, draw: random.Random) -> bytes:
    seq = (job.first_seq + draw.randrange(1 << 20)) % 2**32
    return job.contribution(draw, seq=seq, slot=job.base + (seq + 1) % job.slots)


def _stale(job: Job, draw: random.Random) -> bytes:
    """Far from every round that the job can be in."""
    seq = (job.first_seq + (1 << 30) + draw.randrange(1 << 29)) % 2**32
    return job.contribution(draw, seq=seq)


def _version(job: Job, draw: random.Random) -> bytes:
    packet = bytearray(job.contribution(draw))
    packet[0] = (packet[0] & 0x0F) | draw.randrange(2, 16) << 4
    return bytes(packet)


def _op(job: Job, draw: random.Random) -> bytes:
    packet = bytearray(job.contribution(draw))
    packet[0] = (packet[0] & 0xF0) | draw.randrange(4, 16)
    return bytes(packet)


KINDS: Final[dict[str, tuple[str, Callable[[Job, random.Random], bytes]]]] = {
    "token": ("token", _token),
    "slot": ("slot", _slot),
    "job": ("job", lambda job, draw: job.contribution(draw, job=job.job ^ 1 << draw.randrange(16))),
    "source": ("source", lambda job, draw: job.contribution(draw)),
    "version": ("version", _version),
    "op": ("op", _op),
    "length": ("length", lambda job, draw: job.contribution(draw) + bytes(4)),
    "truncated": ("truncated", lambda job, draw: job.contribution(draw)[: draw.randrange(16)]),
    "stale": ("stale", _stale),
    "INIT of a worker": ("op", lambda job, draw: job.header(draw, op=Op.INIT).pack()),
    "RESULT to the switch": (
        "op", lambda job, draw: job.contribution(draw, op=Op.RESULT, token=job.result_token),
    ),
    "RESULT to a worker": (
        "results_ignored",
        lambda job, draw: job.contribution(
            draw, op=Op.RESULT, token=job.result_token ^ 1 << draw.randrange(32)
        ),
    ),
}  # fmt: skip
"""By name: the counter of the switch, or of the worker, and what is sent."""


def _datagram(source: Address, to: Address, payload: bytes) -> bytes:
    """IPv4 and UDP headers with the payload; the kernel fills in lengths and checksum of IPv4."""
    udp = struct.pack(">HHHH", source[1], to[1], 8 + len(payload), 0)
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, 64, socket.IPPROTO_UDP, 0,
        socket.inet_aton(source[0]), socket.inet_aton(to[0]),
    )  # fmt: skip
    return ip + udp + payload


def _drawn(job: Job, kind: str, sink: int, draw: random.Random) -> tuple[Address, list[bytes]]:
    """Returns the receiver and datagrams of a kind for it."""
    make = KINDS[kind][1]
    to_worker = kind == "RESULT to a worker"
    source, to = (job.switch, job.worker) if to_worker else (job.worker, job.switch)
    to = to[0], sink or to[1]
    made = []
    for _ in range(_DRAWN):
        if kind == "source":
            source = f"127.1.{draw.randrange(256)}.{draw.randrange(1, 255)}", draw.randrange(1, 1 << 16)
        made.append(_datagram(source, to, make(job, draw)))
    return to, made


def send(raw: socket.socket, to: Address, datagrams: list[bytes], count: int, rate: float) -> None:
    """Sends datagrams over and over, evenly at a rate."""
    begun, sent = time.monotonic(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - begun) * rate) + 1)
        for number in range(sent, due):
            raw.sendto(datagrams[number % len(datagrams)], (to[0], 0))
        sent = due
        time.sleep(_STEP)


def main() -> None:
    """Takes orders until its input ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        print("ready", flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            addresses = {name: tuple(order["job"][name]) for name in ("switch", "worker")}
            job = Job(**{**order["job"], **addresses})
            to, datagrams = _drawn(job, order["kind"], order["sink"], random.Random(order["seed"]))
            send(raw, to, datagrams, order["count"], order["rate"])
            print("sent", flush=True)


if __name__ == "__main__":
    main()
