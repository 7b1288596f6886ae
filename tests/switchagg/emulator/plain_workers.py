"""Workers of a job as plain UDP sockets, with no engine of ours in them."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from switchagg.addresses import bound_socket
from switchagg.control.jobs.job import init_packets
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import Address, JobEntry, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode

UDP_SEGMENT = 103
Words = npt.NDArray[np.uint32]


class PlainWorkers:
    """`count` sockets, the job entry that admits them, and packets from and to each."""

    def __init__(
        self,
        count: int,
        *,
        words: int = 16,
        slots: int = 8,
        job: int = 1,
        base: int = 0,
        first_seq: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.sockets = [bound_socket(socket.SOCK_DGRAM, host, 0) for _ in range(count)]
        for each in self.sockets:
            each.settimeout(60.0)
            # Packets that come while this process does not run must not be lost: nothing asks for them again.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.first_seq = first_seq
        self.entry = JobEntry(
            job=job,
            base=base,
            slots=slots,
            words=words,
            result_token=4000 + job,
            workers=tuple(WorkerEntry(bit, *self.address(bit), token=100 + bit) for bit in range(count)),
        )
        self._switch: Address | None = None

    def address(self, bit: int) -> Address:
        ip, port = self.sockets[bit].getsockname()[:2]
        return ip, port

    def join(self, switch: Switch) -> Self:
        switch.add_job(self.entry)
        for packet in init_packets(self.entry, self.first_seq).values():
            assert switch.packet_out(packet) == [packet]
        self._switch = switch.address
        return self

    def at(self, address: Address) -> Self:
        """Joined already, at a switch in another process."""
        self._switch = address
        return self

    def packet(
        self,
        bit: int,
        seq: int,
        words: Words | None = None,
        *,
        op: Op = Op.SUM,
        reply: int = 0,
        token: int = 0,
    ) -> bytes:
        slot = self.entry.base + seq % self.entry.slots
        return encode(Header(op, 0, self.entry.job, token or 100 + bit, seq % 2**32, slot, reply), words)

    def send(self, bit: int, seq: int, words: Words | None = None, **fields: Any) -> None:
        self.send_bytes(bit, self.packet(bit, seq, words, **fields))

    def send_bytes(self, bit: int, packet: bytes) -> None:
        assert self._switch is not None
        self.sockets[bit].sendto(packet, self._switch)

    def send_train(self, bit: int, packets: list[bytes]) -> None:
        """Equal packets in one UDP_SEGMENT call; raises OSError where the kernel has none."""
        assert self._switch is not None
        size = len(packets[0]).to_bytes(2, "little")
        self.sockets[bit].sendmsg(packets, [(socket.IPPROTO_UDP, UDP_SEGMENT, size)], 0, self._switch)

    def receive(self, bit: int) -> tuple[Header, Words | None]:
        """The next RESULT, its source, job and token checked."""
        payload, source = self.sockets[bit].recvfrom(65536)
        header, words = decode(payload)
        assert source[:2] == self._switch
        assert header.op is Op.RESULT
        assert (header.job, header.token) == (self.entry.job, self.entry.result_token)
        return header, words

    def pending(self, bit: int) -> int:
        """Discards the packets that wait at this socket, and returns their number."""
        self.sockets[bit].setblocking(False)
        count = 0
        try:
            while True:
                self.sockets[bit].recv(65536)
                count += 1
        except BlockingIOError:
            return count
        finally:
            self.sockets[bit].settimeout(60.0)

    def close(self) -> None:
        for each in self.sockets:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reduce_rounds(workers: PlainWorkers, rounds: int, rng: np.random.Generator) -> None:
    """Runs `rounds` seqs through the switch by the window rule, some blocks skipped, and checks every sum."""
    count = len(workers.sockets)
    window = workers.entry.slots // 2
    first = workers.first_seq
    for start in range(first, first + rounds, window):
        seqs = range(start, min(start + window, first + rounds))
        sums: dict[int, Words | None] = dict.fromkeys((seq % 2**32 for seq in seqs), None)
        for bit in range(count):
            for seq in seqs:
                words = None
                if rng.random() < 0.7:
                    words = rng.integers(0, 2**32, workers.entry.words, dtype=np.uint32)
                    before = sums[seq % 2**32]
                    sums[seq % 2**32] = words if before is None else before + words
                workers.send(bit, seq, words)
        for bit in range(count):
            results = {header.seq: words for header, words in (workers.receive(bit) for _ in seqs)}
            assert results.keys() == sums.keys()
            for key, words in sums.items():
                np.testing.assert_array_equal(results[key], words)
