"""Scenarios of `test_dpdk`, each in a process of its own; each prints JSON.

python -m tests.switchagg.devices.dpdk_scenarios NAME SEED FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from switchagg.devices import dpdk
from switchagg.devices.dpdk import DpdkSettings, start
from switchagg.emulator.switch import Switch
from switchagg.errors import SwitchAggError
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, decode, encode
from tests.switchagg.devices.networks import Rack
from worker_lib import _native

ALONE = "--no-huge --no-pci"
SWITCH = "10.0.0.254"
WORKER = "10.0.0.1"
MAC = "02:00:00:00:00:01"


def _run_ranks(
    line: list[str], url: str, count: int, environment: list[dict[str, str]], job: str
) -> list[Any]:
    ranks = []
    for rank in range(count):
        own = os.environ | environment[rank] | {
            "RANK": str(rank), "WORLD_SIZE": str(count), "SWITCHAGG_CONTROLLER": url, "SWITCHAGG_JOB": job,
            "SWITCHAGG_ADDRESS": f"10.0.0.{rank + 1}", "SWITCHAGG_TRANSPORT": "dpdk",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        ranks.append(subprocess.Popen(line, env=own, stdout=subprocess.PIPE, text=True))
    said = []
    for process in ranks:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out
        said.append(json.loads(out.splitlines()[-1]))
    return said


def memif(seed: int, folder: Path) -> Any:
    """Four workers and a switch by memif, with 2 % loss, then with the other faults."""
    ends = [f"socket={folder}/{rank}" for rank in range(4)]
    switch = " ".join(
        [ALONE, *(f"--vdev=net_memif{rank},role=server,{end}" for rank, end in enumerate(ends))]
    )
    worker = [sys.executable, "-m", "tests.switchagg.devices.device_worker"]
    found: dict[str, Any] = {}
    faults = ["--duplicate", "0.05", "--reorder", "0.05", "--delay", "0.0003", "--jitter", "0.0005"]
    for name, more, count in (("loss", [], 4), ("faults", faults, 2)):
        line = [
            sys.executable,
            "-m",
            "switchagg.cli.main",
            "host",
            "--host",
            SWITCH,
            "--controller-host",
            "127.0.0.1",
        ]
        line += [
            "--transport",
            "dpdk",
            "--dpdk",
            switch,
            "--ignore-stdin",
            "--loss",
            "0.02",
            "--seed",
            str(seed),
            *more,
        ]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as host:
            assert host.stdout is not None
            announced = json.loads(host.stdout.readline())
            each = [{"SWITCHAGG_DPDK": f"{ALONE} --vdev=net_memif0,role=client,{end}"} for end in ends]
            found[name] = _run_ranks(worker, announced["controller"], count, each, name)
            host.terminate()
    return found


def af_packet(seed: int, _folder: Path) -> Any:
    """Four workers and a switch by packet sockets on veth, with 2 % loss; three, and two threads of a switch.

    The kernel has no address there.
    """
    rack = Rack(5)
    try:
        vdev = f"{ALONE} --vdev=net_af_packet0,iface=data"
        for host in rack.hosts:
            host.run("ip", "address", "flush", "dev", "data")
        options = ["--transport", "dpdk", "--dpdk", vdev, "--loss", "0.02", "--seed", str(seed)]
        url = rack.start_switch(*options)["controller"]
        os.environ["SWITCHAGG_DPDK"] = vdev
        found = {"loss": rack.run_workers(url, ["dpdk"] * 4, job="dpdk")}
        options = ["--transport", "dpdk", "--dpdk", f"{vdev},qpairs=2", "--threads", "2"]
        url = rack.start_switch(*options)["controller"]
        return found | {"threads": rack.run_workers(url, ["dpdk"] * 3, job="threads")}
    finally:
        rack.close()


def _job(switch: Switch) -> None:
    switch.add_job(JobEntry(5, 0, 16, 16, 77, (WorkerEntry(0, WORKER, 7000, 90),)))
    for seq in range(16):
        switch.packet_out(encode(Header(Op.INIT, 0, 5, 0, 2**32 - 16 + seq, seq)))


def pcap(seed: int, folder: Path) -> Any:
    """Frames of scapy from a capture, and the answers in another one."""
    from scapy.layers.inet import ICMP, IP, UDP
    from scapy.layers.l2 import ARP, Ether
    from scapy.utils import rdpcap, wrpcap

    rng = np.random.default_rng(seed)
    port = 48879
    words = [rng.integers(0, 2**32, 16, np.uint32) for _ in range(8)]
    head = Ether(src=MAC, dst="02:70:63:61:70:00")
    to = IP(src=WORKER, dst=SWITCH)

    def contribution(seq: int, given: Any) -> bytes:
        return encode(Header(Op.SUM, 0, 5, 90, seq, seq), given)

    frames = [
        Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=MAC, psrc=WORKER, pdst=SWITCH),
        head / to / ICMP(id=7, seq=1) / b"an echo request",
        head / to / UDP(sport=7000, dport=port + 1) / b"for nobody",
    ]
    frames += [
        head / to / UDP(sport=7000, dport=port) / contribution(seq, each) for seq, each in enumerate(words)
    ]
    # CE of an IP header is in the flags of the RESULT, whose own IP header is ECT(0).
    marked = encode(Header(Op.SUM, Flag.ECT, 5, 90, 8, 8), words[0])
    frames.append(
        Ether(src=MAC, dst=head.dst)
        / IP(src=WORKER, dst=SWITCH, tos=3)
        / UDP(sport=7000, dport=port)
        / marked
    )
    spoilt = bytearray(bytes(head / to / UDP(sport=7000, dport=port) / contribution(9, words[0])))
    spoilt[70] ^= 1
    frames.append(Ether(bytes(spoilt)))
    wrpcap(str(folder / "in.pcap"), [Ether(bytes(each)) for each in frames])
    vdev = f"{ALONE} --vdev=net_pcap0,rx_pcap={folder}/in.pcap,tx_pcap={folder}/out.pcap"
    settings = DpdkSettings(vdev)
    switch = Switch(SWITCH, port, transport="dpdk", dpdk=settings)
    _job(switch)
    with switch:
        end = time.monotonic() + 60
        while switch.port_counters()["malformed"] < 1 and time.monotonic() < end:
            time.sleep(0.01)
        counters, details = switch.port_counters(), switch.transport_details
    ports = start(settings)
    statistics = ports.statistics(0)
    ports.stop()
    out = rdpcap(str(folder / "out.pcap"))
    results = [each for each in out if UDP in each]
    again = [Ether(bytes(each)) for each in results]
    for each in again:
        del each[IP].chksum, each[UDP].chksum
    decoded = [decode(bytes(each[UDP].payload)[: each[UDP].len - 8]) for each in results]
    return {
        "details": details,
        "counters": counters,
        "statistics": statistics,
        "sums": [None if each is None else each.tolist() for _, each in decoded],
        "given": [each.tolist() for each in [*words, words[0]]],
        "ecn": [
            [each[IP].tos, header.flags & (Flag.CE | Flag.ECT)]
            for each, (header, _) in zip(results, decoded, strict=True)
        ],
        "checksums": [
            bytes(ours) == bytes(Ether(bytes(theirs))) for ours, theirs in zip(results, again, strict=True)
        ],
        "arp": [
            [each[ARP].op, each[ARP].psrc, each[ARP].pdst, each[ARP].hwdst] for each in out if ARP in each
        ],
        "echo": [
            [each[ICMP].type, each[ICMP].id, bytes(each[ICMP].payload).decode()]
            for each in out
            if ICMP in each
        ],
        "free": ports.free_mbufs,
    }


def devices(_seed: int, _folder: Path) -> Any:
    """Ports that carry nothing to anybody: rings and the null device; what a start leaves as it was."""
    affinity = os.sched_getaffinity(0)
    settings = DpdkSettings(f"{ALONE} --vdev=net_ring0 --vdev=net_null0")
    with Switch(SWITCH, transport="dpdk", dpdk=settings) as switch:
        ports = start(settings)
        end = time.monotonic() + 60
        while switch.port_counters()["malformed"] < 1000 and time.monotonic() < end:
            time.sleep(0.01)
        counters, details = switch.port_counters(), switch.transport_details
        names = [ports.name(number) for number in ports.numbers]
        up = [ports.link_up(number) for number in ports.numbers]
        free = ports.free_mbufs
        errors = []
        for attempt in (
            lambda: start(DpdkSettings(f"{ALONE} --vdev=net_ring5")),
            lambda: ports.native_arguments("workers"),
            lambda: Switch("10.0.0.253", transport="dpdk", dpdk=settings).start(),
        ):
            try:
                attempt()
                errors.append("")
            except SwitchAggError as error:
                errors.append(f"{type(error).__name__}: {error}")
    child = os.fork()
    if child == 0:
        try:
            start(settings)
        except SwitchAggError as error:
            os._exit(0 if "parent of this process" in str(error) else 1)
        os._exit(2)
    return {
        "names": names, "up": up, "details": details, "counters": counters, "held": free,
        "affinity": os.sched_getaffinity(0) == affinity, "mtu": ports.mtu, "errors": errors,
        "threads": [sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")],
        "processors": sorted(affinity), "fork": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    }  # fmt: skip


def many(_seed: int, _folder: Path) -> Any:
    """Ten ports with a queue each way; then a port with two, of a driver with RSS and of one without."""
    names = [f"net_ring{number}" for number in range(10)]
    ports = start(DpdkSettings(" ".join([ALONE, *(f"--vdev={name}" for name in names)])))
    found: dict[str, Any] = {"ports": len(ports.numbers), "free": ports.free_mbufs}
    for name in ("net_null0", "net_ring0"):
        case = json.dumps({"arguments": f"{ALONE} --vdev={name}", "queues": 2})
        line = [sys.executable, "-m", "tests.switchagg.devices.dpdk_scenarios", "described", "0", case]
        found[name] = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    return found


def described(_seed: int, case: Path) -> Any:
    """One start; its description."""
    given = json.loads(str(case))
    return start(DpdkSettings(given["arguments"], queues=given["queues"])).description


def idle(_seed: int, _folder: Path) -> Any:
    """Processor time of a second without packets, asleep."""
    settings = DpdkSettings(f"{ALONE} --vdev=net_ring0")
    with Switch(SWITCH, transport="dpdk", dpdk=settings):
        before = time.process_time()
        time.sleep(1)
        return {"seconds": time.process_time() - before}


def refused(_seed: int, _folder: Path) -> Any:
    """Arguments and devices that cannot work, each in a process of its own; the messages by name."""
    cases: dict[str, dict[str, Any]] = {
        "wrong argument": {"arguments": f"{ALONE} --bogus"},
        "no such driver": {"arguments": f"{ALONE} --vdev=net_nothing0"},
        "no such interface": {"arguments": f"{ALONE} --vdev=net_af_packet0,iface=nope0"},
        "no port": {"arguments": ALONE},
        "no memory": {"arguments": f"{ALONE} -m 8 --vdev=net_ring0"},
        "mtu": {"arguments": f"{ALONE} --vdev=net_ring0", "mtu": 600},
        "few queues": {"arguments": f"{ALONE} --vdev=net_ring0", "queues": 17},
        "layout": {"arguments": f"{ALONE} --vdev=net_ring0", "offset": ["_MBUF", "pkt_len", 40]},
        "pool": {"arguments": f"{ALONE} --vdev=net_ring0", "offset": ["_MEMPOOL_OPS", None, 64]},
        "burst": {"arguments": f"{ALONE} --vdev=net_ring0", "offset": ["LAYOUTS", 23, 24]},
    }
    found = {}
    for name, case in cases.items():
        line = [
            sys.executable,
            "-m",
            "tests.switchagg.devices.dpdk_scenarios",
            "attempt",
            "0",
            json.dumps(case),
        ]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        found[name] = [done.returncode, done.stdout, done.stderr]
    return found


def attempt(_seed: int, case: Path) -> Any:
    """One start that is meant to fail; prints its error."""
    given = json.loads(str(case))
    if "offset" in given:
        name, key, value = given["offset"]
        if name == "LAYOUTS":
            dpdk.LAYOUTS.update({abi: dpdk._Layout(value, value, 0) for abi in dpdk.LAYOUTS})
        elif key is None:
            setattr(dpdk, name, value)
        else:
            getattr(dpdk, name)[key] = value
    try:
        ports = start(DpdkSettings(given["arguments"], given.get("mtu"), queues=given.get("queues", 1)))
        socket = _native.Socket.on_dpdk(0x0A000001, **ports.native_arguments("workers"))
        admission = _native.Admission(
            switch_ip=0x0A0000FE, switch_port=48879, job=1, token=1, result_token=2, base=0, slots=16,
            words=352, first_seq=0, rank=0, workers=2, window_limit=16,
        )  # fmt: skip
        _native.Engine(socket, admission)
    except (SwitchAggError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))))
