"""A switch with two threads on a device with two queues, and sixteen workers that send frames.

python -m tests.switchagg.devices.two_threads TRANSPORT SEED     in namespaces of its own; prints JSON
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np

from switchagg.control.jobs.job import init_packets
from switchagg.devices.dpdk import DpdkSettings
from switchagg.emulator.switch import Switch
from switchagg.p4program.frames import frame
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode
from tests.switchagg.devices.networks import MAC, far_socket, ip, near_mac, pair

SWITCH = "10.0.0.254"
VDEV = "--no-huge --no-pci --vdev=net_af_packet0,iface=near,qpairs=2"
SLOTS = 256


def _packets_of_queues() -> list[int]:
    shown = subprocess.run(["ethtool", "-S", "near"], capture_output=True, text=True, check=True).stdout
    return [int(each) for each in re.findall(r"rx_queue_\d+_xdp_packets: (\d+)", shown)]


def main(transport: str, seed: int) -> None:
    pair(queues=2)
    found: dict[str, Any] = {"few": []}
    dpdk = DpdkSettings(VDEV) if transport == "dpdk" else None
    if dpdk is None:
        with Switch(SWITCH, transport=transport, threads=3) as switch:
            found["few"] = [switch.transport, *switch.warnings]
    else:
        ip("address", "flush", "dev", "near")
    rng, far, near = np.random.default_rng(seed), far_socket(), near_mac()
    far.settimeout(60)
    workers = tuple(WorkerEntry(bit, f"10.0.0.{1 + bit}", 7000 + bit, 100 + bit) for bit in range(16))
    entry = JobEntry(5, SLOTS, SLOTS, 16, 77, workers)
    exact = 0
    with Switch(SWITCH, transport=transport, dpdk=dpdk, threads=2) as switch:
        found["details"], found["warnings"] = switch.transport_details, switch.warnings
        switch.add_job(entry)
        for packet in init_packets(entry, 0).values():
            switch.packet_out(packet)
        for seq in range(2 * SLOTS):
            words = rng.integers(0, 2**32, (16, 16), np.uint32)
            for worker, own in zip(workers, words, strict=True):
                header = Header(Op.SUM, 0, entry.job, worker.token, seq, entry.base + seq % SLOTS)
                source = (MAC, worker.ip, worker.port)
                far.send(frame(encode(header, own), source, (near, *switch.address)))
            heard: set[tuple[bytes, bytes]] = set()
            while len(heard) < len(workers):
                data = far.recv(65536)
                if data[12:14] != b"\x08\x00" or data[23] != 17:
                    continue
                header, got = decode(data[42 : 34 + int.from_bytes(data[38:40], "big")])
                heard.add((data[30:34], data[36:38]))
                exact += header.seq == seq and np.array_equal(got, words.sum(0, np.uint32))  # type: ignore[arg-type]
        found |= {"exact": exact, "ports": switch.port_counters(), "results": switch.counters()["results"]}
    if dpdk is None:
        found["queues"] = _packets_of_queues()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
