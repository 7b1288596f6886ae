"""Measures the packets a second of the P4 model: our program, K words, every packet accepted and answered.

    python scripts/p4model_throughput.py [p4/switchagg_v1model.p4] [--words 64] [--workers 2] [--profile]

One thread, no sockets: frames in, frames out. A round is a packet of each worker, and the RESULT to each.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np

from switchagg.control.jobs.job import init_packets
from switchagg.emulator.p4_jobs import install
from switchagg.errors import SwitchAggError
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, encode

ADDRESS = p4_program.SwitchAddress(0x0200000000FE, "10.0.255.254")
SLOTS = 512


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=Path, default=Path("p4/switchagg_v1model.p4"))
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=512)
    parser.add_argument("--profile", action="store_true", help="say which functions take the time")
    args = parser.parse_args()

    began = time.perf_counter()
    switch = open_switch(args.program, defines=[f"AGG_WORDS={args.words}", f"AGG_SLOTS={SLOTS}"])
    print(f"translated in {time.perf_counter() - began:.2f} s")
    make = p4_program.tna if switch.program.architecture == "tna" else p4_program.v1model
    target = make(words=args.words, slots=SLOTS)
    workers = tuple(WorkerEntry(i, f"10.0.0.{i + 1}", 4000 + i, 1000 + i) for i in range(args.workers))
    job = JobEntry(1, 0, SLOTS, args.words, 99, workers)
    stations = {worker.bit: p4_program.Station(worker.bit + 1, 0x0A0000 + worker.bit) for worker in workers}
    install(switch, p4_entries.switch_entries(target, ADDRESS, tuple(range(args.workers + 2))))
    install(switch, p4_entries.job_entries(target, job, p4_program.JobPlace(0, stations)))
    for packet in init_packets(job, 0).values():
        out = switch.process(target.controller_port, p4_frames.packet_out(target, ADDRESS, packet))
        assert [p4_frames.packet_in(data) for _, data in out] == [packet]

    generator = np.random.default_rng(1)
    frames = []
    for seq in range(args.rounds):
        for worker in workers:
            words = generator.integers(0, 2**32, args.words, np.uint32)
            header = Header(Op.SUM, Flag.PAYLOAD, job.job, worker.token, seq, seq % SLOTS)
            station = stations[worker.bit]
            source = station.mac, worker.ip, worker.port
            destination = ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port
            frames.append((station.port, p4_frames.frame(encode(header, words), source, destination)))

    profile = cProfile.Profile()
    began, busy = time.perf_counter(), time.process_time()
    answers = profile.runcall(run, switch, frames) if args.profile else run(switch, frames)
    seconds, used = time.perf_counter() - began, time.process_time() - busy
    assert answers == len(frames), "a packet was dropped"
    print(
        f"{len(frames)} packets in, {answers} out: {len(frames) / seconds:,.0f} packets/s in, "
        f"{len(frames) / used:,.0f} a second of processor time"
    )
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)


def run(switch: ModelSwitch, frames: list[tuple[int, bytes]]) -> int:
    """Sends all frames; how many came out."""
    return sum(len(switch.process(port, frame)) for port, frame in frames)


if __name__ == "__main__":
    try:
        main()
    except SwitchAggError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
