"""Measures a switch's packets a second and processor time: a job of one worker, windows in GSO trains.

    python -m scripts.switch_throughput [--words 352] [--slots 1024] [--seconds 2] [--no-offload] [--latency]
    python -m scripts.switch_throughput --threads 1,2,4 --rounds 15       in turn, all in one run
    python -m scripts.switch_throughput --threads 1,2,4,8 --senders 8     on a computer with so many cores
    python -m scripts.switch_throughput --hosts 127.0.0.1,::1 --rounds 15
    python -m scripts.switch_throughput --threads 1,2 --by shm --rounds 15    through shared memory

Senders are processes, each with a job of its own; the switch is native threads in this one. Where they
share cores the figures are of both; run it under `perf record -g` to see where time goes. "Gb/s a core" is
what moves in a second of the switch's processor time, each way.
"""

from __future__ import annotations

import socket
import statistics
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from scripts.sum_times import median_interval
from switchagg.addresses import bound_socket
from switchagg.cli.static_jobs import StaticJob, admit
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import HEADER_BYTES, Header, Op, encode
from worker_lib import _native
from worker_lib.plan import DType

UDP_SEGMENT = 103
UDP_GRO = 104
MAX_TRAIN_BYTES = 65473  # longer ones are cut up on their way out, see native/shared/udp_port.h


@dataclass(frozen=True, slots=True)
class Run:
    """One run: packets that were answered, and seconds."""

    packets: int
    seconds: float
    processor: float  # of all threads and senders
    switch: list[float]  # processor time of the switch's threads, the busiest first
    calls: tuple[int, int]  # to receive and to send
    strays: int


def measure(args: Namespace, threads: int, senders: int, host: str) -> Run:
    """Runs a switch with so many threads, at this address, and so many jobs of one worker each."""
    slots = 2 if args.latency else args.slots
    context = get_context("fork")
    ends: list[Any] = []
    entries = []
    for number in range(senders):
        at = "::1" if host == "::" else host
        worker: Any
        if args.by == "plain":
            worker = bound_socket(socket.SOCK_DGRAM, at, 0)
            port: int = worker.getsockname()[1]
        else:
            worker = _native.Socket(_native.ip_number(at), 0, 32 << 20, not args.no_offload)
            port = worker.port
        entries.append(
            JobEntry(1 + number, number * slots, slots, args.words, 9, (WorkerEntry(0, at, port, 7),))
        )
        near, far = context.Pipe()
        send = _send if args.by == "plain" else _send_by_engine
        context.Process(target=send, args=(args, worker, entries[-1], far), daemon=True).start()
        worker.close()
        far.close()
        ends.append(near)
    with Switch(
        host, faults=Faults(loss=args.loss, seed=1), offload=not args.no_offload, threads=threads
    ) as switch:
        for entry in entries:
            admit(switch, StaticJob(entry, first_seq=0))
        before = _thread_times()
        cpu = time.process_time()
        for end in ends:
            end.send(((entries[0].workers[0].ip, switch.address[1]), switch.block, switch.link))
        sent = [end.recv() for end in ends]
        cpu = time.process_time() - cpu
        used = [each - before.get(key, 0.0) for key, each in _thread_times().items()]
        counters = switch.port_counters()
    busiest = sorted(used, reverse=True)[:threads]
    calls = counters["receive_calls"], counters["send_calls"]
    packets, seconds = sum(each[0] for each in sent), max(each[1] for each in sent)
    return Run(
        packets, seconds, cpu + sum(each[2] for each in sent), busiest, calls, counters.get("strays", 0)
    )


def _send(args: Namespace, worker: socket.socket, entry: JobEntry, end: Any) -> None:
    """Sends windows for so many seconds, and then packets that were answered, seconds and processor time."""
    worker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
    worker.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    worker.settimeout(5.0)
    switch, block, _ = end.recv()
    worker.connect(switch)
    size = HEADER_BYTES + 4 * args.words
    slots, window = entry.slots, entry.slots // 2
    packet = encode(Header(Op.SUM, 0, entry.job, 7, 0, entry.base), np.arange(args.words, dtype=np.uint32))
    buffer = np.tile(np.frombuffer(packet, np.uint8), (window, 1))
    train = min(64, MAX_TRAIN_BYTES // size, window)
    block = block or window
    inbox = bytearray(65536)
    lowest = np.arange(window, dtype=np.uint32)
    seq = packets = 0
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < args.seconds:
        seqs = lowest + np.uint32(seq)
        buffer[:, 8:12] = seqs.astype(">u4").view(np.uint8).reshape(-1, 4)
        buffer[:, 12:14] = (entry.base + seqs % slots).astype(">u2").view(np.uint8).reshape(-1, 2)
        first = 0
        while first < window:
            last = min(first + train, window, (first // block + 1) * block)
            control = [(socket.IPPROTO_UDP, UDP_SEGMENT, size.to_bytes(2, "little"))]
            worker.sendmsg([buffer[first:last].data], control if last - first > 1 else [])
            first = last
        awaited = window
        while awaited > 0:
            awaited -= -(-worker.recv_into(inbox) // size)
        seq += window
        packets += window
    end.send((packets, time.perf_counter() - start, time.process_time() - cpu))


def _send_by_engine(args: Namespace, worker: _native.Socket, entry: JobEntry, end: Any) -> None:
    """The same with a worker's engine, by UDP or through shared memory: sums of a million integers."""
    (ip, port), block, link = end.recv()
    admission = _native.Admission(
        switch_ip=_native.ip_number(ip), switch_port=port, job=entry.job, token=7, result_token=9,
        base=entry.base, slots=entry.slots, words=entry.words, first_seq=0, rank=0, workers=1,
        window_limit=entry.slots, link=link if args.by == "shm" else "", block=block,
    )  # fmt: skip
    engine = _native.Engine(worker, admission)
    x = np.ones(1 << 20, np.int32)
    call = _native.Call(
        kind=0, op=0, dtype=int(DType.I32), bits=32, sparse=False, block=16, count=x.size,
        fingerprint_count=x.size, input=x.ctypes.data, in_end=x.size, output=x.ctypes.data, out_end=x.size,
    )  # fmt: skip
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < args.seconds:
        work = engine.submit(call, 60_000_000_000, background=False)
        assert work is not None
        while engine.wait(work, 50_000_000) == 0:
            pass
        assert work.status == 1, f"status {work.status}"
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    end.send((engine.stats()["packets_sent"], seconds, used))
    engine.close()


def _thread_times() -> dict[int, float]:
    return {each.id: each.user_time + each.system_time for each in psutil.Process().threads()}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=352)
    parser.add_argument("--slots", type=int, default=1024, help="the window is half of them")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--loss", type=float, default=0.0, help="only to see what the fault device costs, e.g. 1e-9"
    )
    parser.add_argument("--no-offload", action="store_true")
    parser.add_argument("--latency", action="store_true", help="one small packet at a time instead")
    parser.add_argument(
        "--by",
        choices=("plain", "udp", "shm"),
        default="plain",
        help="sockets that keep a window in flight, or engines of workers, by UDP or through shared memory",
    )
    parser.add_argument("--threads", default="1", help="a list, such as 1,2")
    parser.add_argument("--senders", type=int, default=1, help="processes with a job each (%(default)s)")
    parser.add_argument("--hosts", default="127.0.0.1", help="a list, such as 127.0.0.1,::1")
    parser.add_argument("--rounds", type=int, default=1, help="that each of these is measured in")
    args = parser.parse_args()
    cases = [(int(each), host) for each in args.threads.split(",") for host in args.hosts.split(",")]
    runs: dict[tuple[int, str], list[Run]] = {each: [] for each in cases}
    for number in range(args.rounds):
        for case in cases if number % 2 else cases[::-1]:
            runs[case].append(measure(args, case[0], args.senders, case[1]))
    size = HEADER_BYTES + 4 * args.words
    for (threads, host), all_of in runs.items():
        rates = [each.packets / each.seconds for each in all_of]
        costs = [1e9 * sum(each.switch) / each.packets for each in all_of]
        rate, cost = statistics.median(rates), statistics.median(costs)
        shares = [statistics.median(each.switch[i] / each.seconds for each in all_of) for i in range(threads)]
        last = all_of[-1]
        used = statistics.median(each.processor / each.seconds for each in all_of)
        print(
            f"{threads} threads at {host}, {args.senders} senders: "
            f"{rate / 1e6:.3f} Mpackets/s of {size} bytes, "
            f"{rate * size / 1e9:.2f} GB/s each way; switch {cost:.0f} ns a packet, "
            f"{8 * size / cost:.1f} Gb/s a core; cores: {' + '.join(f'{share:.2f}' for share in shares)} "
            f"of {used:.2f}; {last.packets / last.calls[0]:.1f} packets a receive call, "
            f"{last.packets / last.calls[1]:.1f} a send call; {sum(each.strays for each in all_of)} strays"
        )
        if (threads, host) != cases[0]:
            pairs = zip(all_of, runs[cases[0]], strict=True)
            ratios = [sum(a.switch) / a.packets / (sum(b.switch) / b.packets) for a, b in pairs]
            print(f"  processor time a packet, over the first: {median_interval(np.array(ratios))}")


if __name__ == "__main__":
    main()
