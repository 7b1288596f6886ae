"""A worker's end of a link (switchagg/native/shared/link.h) in plain Python; it can misbehave."""

from __future__ import annotations

import fcntl
import mmap
import os
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Protocol, Self

MAGIC = 0x53574C36
ENTRY = struct.Struct("=IIQ16s")  # region, size of the packet, offset of its words, header
ATTACH = struct.Struct("=III4xIIQ")  # magic, job, token; entries, bytes of a packet, bytes of packet memory
ATTACHED = struct.Struct("=II")
ANNOUNCE = struct.Struct("=IIQ")
RING = 192  # bytes: written, taken and asleep, a line of cache each
TAKEN = 64  # of the first ring: entries that the switch has taken
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _page(size: int) -> int:
    return (size + 4095) & ~4095


def _memory(size: int, seals: int) -> tuple[int, mmap.mmap]:
    descriptor = os.memfd_create("link", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    mapped = mmap.mmap(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor, mapped


class Admitted(Protocol):
    """A worker's place in a job."""

    @property
    def job(self) -> int: ...
    @property
    def token(self) -> int: ...


@dataclass(frozen=True)
class Claim:
    """A worker's place in a job, as somebody claims it."""

    job: int
    token: int


@dataclass
class Shape:
    """The layout of a link's memory, and the size of packet memory."""

    entries: int = 64
    packet_bytes: int = 16 + 4 * 16
    memory_bytes: int = 4096

    def __post_init__(self) -> None:
        self.up_entries = _page(2 * RING)
        self.down_entries = self.up_entries + self.entries * ENTRY.size
        self.spare = _page(self.down_entries + self.entries * ENTRY.size)
        self.bytes = _page(self.spare + self.entries * self.packet_bytes)


@dataclass
class LinkEnd:
    """Attached to a switch by the UNIX socket `name`, as a worker whose address the UDP socket `udp` has.

    `threads` is what the switch says of itself. Those after the first have the names ``NAME.1``, ``NAME.2``
    and so on.
    """

    socket: socket.socket
    memory: mmap.mmap
    packets: mmap.mmap
    bell: socket.socket
    shape: Shape
    threads: int = 1
    written: int = 0
    taken: int = 0
    regions: dict[int, mmap.mmap] = field(default_factory=dict)
    region_descriptors: dict[int, int] = field(default_factory=dict)

    @classmethod
    def attach(
        cls,
        name: str,
        udp: socket.socket,
        member: Admitted,
        shape: Shape | None = None,
        *,
        magic: int = MAGIC,
        size: int | None = None,
        packets: int | None = None,
        seals: int = SEALS,
        descriptors: int = 3,
    ) -> Self:
        """Attaches. Raises ConnectionError where the switch refuses."""
        shape = shape or Shape()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(60)
        link.connect(b"\0" + name.encode())
        made = [
            _memory(shape.bytes if size is None else size, seals),
            _memory(shape.memory_bytes if packets is None else packets, seals),
        ]
        message = ATTACH.pack(
            magic, member.job, member.token, shape.entries, shape.packet_bytes, shape.memory_bytes
        )
        given = [made[0][0], made[1][0], udp.fileno()][:descriptors]
        socket.send_fds(link, [message], given)
        for descriptor, _ in made:
            os.close(descriptor)
        answer, received, _, _ = socket.recv_fds(link, 64, 4)
        if len(answer) != ATTACHED.size or not received:
            link.close()
            raise ConnectionError("refused")
        said, threads = ATTACHED.unpack(answer)
        assert said == MAGIC
        return cls(link, made[0][1], made[1][1], socket.socket(fileno=received[0]), shape, threads)

    def send(
        self, packet: bytes, *, size: int | None = None, offset: int | None = None, region: int = 0
    ) -> None:
        """Hands one packet over; `size`, `offset` and `region` say something else than is so."""
        place = self.written % self.shape.entries
        self.packets[: len(packet) - 16] = packet[16:]
        entry = ENTRY.pack(region, len(packet) if size is None else size, offset or 0, packet[:16])
        start = self.shape.up_entries + place * ENTRY.size
        self.memory[start : start + ENTRY.size] = entry
        self.publish(self.written + 1)

    def publish(self, written: int) -> None:
        """Says how many entries there are."""
        self.written = written
        struct.pack_into("=I", self.memory, 0, written & 0xFFFFFFFF)
        self.bell.send(b"!", socket.MSG_DONTWAIT)

    def receive(self, timeout: float = 60.0) -> bytes | None:
        """The next packet; None at the link's end. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while struct.unpack_from("=I", self.memory, RING)[0] == self.taken & 0xFFFFFFFF:
                if selector.select(0.005) and not self._announcement():
                    return None
                if time.monotonic() > deadline:
                    raise TimeoutError("nothing came")
        start = self.shape.down_entries + self.taken % self.shape.entries * ENTRY.size
        region, size, offset, header = ENTRY.unpack_from(self.memory, start)
        while region and region not in self.regions:
            if not self._announcement():
                return None
        memory = self.regions[region] if region else self.memory
        packet = header + memory[offset : offset + size - 16]
        self.taken += 1
        struct.pack_into("=I", self.memory, RING + 64, self.taken & 0xFFFFFFFF)
        return packet

    def _announcement(self) -> bool:
        message, given, _, _ = socket.recv_fds(self.socket, 64, 4)
        if not message:
            return False
        magic, region, size = ANNOUNCE.unpack(message)
        assert magic == MAGIC
        self.regions[region] = mmap.mmap(given[0], size, prot=mmap.PROT_READ)
        self.region_descriptors[region] = given[0]
        return True

    def ended(self, timeout: float = 60.0) -> bool:
        """Returns whether the switch closes the link within `timeout` seconds."""
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(64) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Ends the link."""
        self.socket.close()
        self.bell.close()
        for descriptor in self.region_descriptors.values():
            os.close(descriptor)
