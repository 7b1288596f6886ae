"""Measures the packets a second of a switch: a job of one worker, windows in GSO trains.

    python scripts/switch_throughput.py [--words 352] [--slots 1024] [--seconds 2] [--no-offload] [--latency]

The sender (this process's Python thread) and the switch (a native thread in it) share the cores; run it under
`perf record -g` to see where time goes.
"""

from __future__ import annotations

import socket
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np

from switchagg.cli.static_jobs import StaticJob, admit
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import HEADER_BYTES, Header, Op, encode

UDP_SEGMENT = 103
UDP_GRO = 104
MAX_TRAIN_BYTES = 65493  # longer ones are cut up on their way out, see native/shared/udp_port.h


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
    args = parser.parse_args()

    worker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    worker.bind(("127.0.0.1", 0))
    worker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
    worker.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    worker.settimeout(1.0)
    address: tuple[str, int] = worker.getsockname()
    slots = 2 if args.latency else args.slots
    entry = JobEntry(1, 0, slots, args.words, 9, (WorkerEntry(0, *address, 7),))
    faults = Faults(loss=args.loss, seed=1)
    with Switch(faults=faults, offload=not args.no_offload) as switch:
        admit(switch, StaticJob(entry, first_seq=0))
        worker.connect(switch.address)
        size = HEADER_BYTES + 4 * args.words
        window = slots // 2
        packet = encode(Header(Op.SUM, 0, 1, 7, 0, 0), np.arange(args.words, dtype=np.uint32))
        buffer = np.tile(np.frombuffer(packet, np.uint8), (window, 1))
        train = min(64, MAX_TRAIN_BYTES // size, window)
        inbox = bytearray(65536)
        lowest = np.arange(window, dtype=np.uint32)
        seq = packets = 0
        start = time.perf_counter()
        cpu = time.process_time()
        while time.perf_counter() - start < args.seconds:
            seqs = lowest + np.uint32(seq)
            buffer[:, 8:12] = seqs.astype(">u4").view(np.uint8).reshape(-1, 4)
            buffer[:, 12:14] = (seqs % slots).astype(">u2").view(np.uint8).reshape(-1, 2)
            for first in range(0, window, train):
                control = [(socket.IPPROTO_UDP, UDP_SEGMENT, size.to_bytes(2, "little"))]
                worker.sendmsg([buffer[first : first + train].data], control if train > 1 else [])
            awaited = window
            while awaited > 0:
                awaited -= -(-worker.recv_into(inbox) // size)
            seq += window
            packets += window
        seconds = time.perf_counter() - start
        cpu = time.process_time() - cpu
        port = switch.port_counters()
    print(
        f"{packets / seconds / 1e6:.3f} Mpackets/s, {packets * size / seconds / 1e9:.2f} GB/s each way, "
        f"{seconds / (packets / window) * 1e6:.1f} us a window of {window} packets of {size} bytes; "
        f"{cpu / seconds:.2f} cores; {packets / port['receive_calls']:.1f} packets a receive call, "
        f"{packets / port['send_calls']:.1f} a send call"
    )


if __name__ == "__main__":
    main()
