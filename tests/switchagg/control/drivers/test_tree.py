"""P4 switches as root and leaves: one controller, P4Runtime to each, frames carried between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from switchagg.control.controller import Controller
from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.control.jobs.records import OPEN, JoinRequest
from switchagg.control.switch_specs import wiring
from switchagg.errors import AdmissionError, UsageError
from switchagg.p4program import frames as p4_frames
from switchagg.p4runtime.client.spec import P4RuntimeSpec, from_table
from switchagg.wire.header import Flag, Header, Op, decode, encode
from tests.seeds import seed_of_this_run
from tests.waiting import eventually

from .model_switch import TNA, V1MODEL, WORDS, ServedModel, Words

RACKS = {"leaf1": ("10.0.1.1", "10.0.1.2"), "leaf2": ("10.0.2.1", "10.0.2.2")}
OWN = {"root": "10.0.0.254", "leaf1": "10.0.1.254", "leaf2": "10.0.2.254"}
UPLINK = 9
SLOTS = 4


def mac(ip: str) -> int:
    return 0x020000000000 | int.from_bytes(bytes(map(int, ip.split("."))), "big")


def _station(ip: str, port: int) -> str:
    return f"{ip},{mac(ip).to_bytes(6, 'big').hex(':')},{port}"


def specs(servers: Mapping[str, str], **more: Any) -> dict[str, P4RuntimeSpec]:
    """A root with a leaf at each of ports 1 and 2; leaves with two hosts and the root at port 9."""

    def table(name: str, stations: list[str], **parent: str) -> P4RuntimeSpec:
        url = f"p4runtime://{servers[name]}"
        return from_table(name, {"url": url, "address": OWN[name], "stations": stations, **parent, **more})

    leaves = {
        name: table(
            name,
            [*(_station(ip, port) for port, ip in enumerate(hosts, 1)), _station(OWN["root"], UPLINK)],
            parent="root",
        )
        for name, hosts in RACKS.items()
    }
    return {
        "root": table("root", [_station(OWN[name], port) for port, name in enumerate(RACKS, 1)]),
        **leaves,
    }


class Line:
    """A member's line that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.refusal: AdmissionError | None = None

    def send(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))

    def refuse(self, error: AdmissionError) -> None:
        self.refusal = error

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Worker:
    """A rank that makes its frames itself."""

    ip: str
    port: int
    line: Line = field(default_factory=Line)
    heard: list[tuple[Header, Words | None]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        return self.line.events[0]


@dataclass
class Plant:
    """Three switches, what lies between them, and a controller."""

    switches: dict[str, ServedModel]
    drivers: list[P4RuntimeDriver]
    controller: Controller
    workers: list[Worker] = field(default_factory=list)
    carried: int = 0
    lose: set[tuple[str, int]] = field(default_factory=set)

    def carry(self, switch: str, port: int, frame: bytes) -> None:
        """A frame comes in at a port, and all that follows from it happens."""
        device = self.switches[switch].device
        for out, data in device.process(port, frame, device.now()):
            if (switch, out) in self.lose:
                self.lose.discard((switch, out))
                continue
            if switch == "root":
                self.carry(list(RACKS)[out - 1], UPLINK, data)
            elif out == UPLINK:
                self.carried += 1
                self.carry("root", list(RACKS).index(switch) + 1, data)
            else:
                ip = RACKS[switch][out - 1]
                port = int.from_bytes(data[36:38], "big")
                (worker,) = [each for each in self.workers if (each.ip, each.port) == (ip, port)]
                body = data[42 : 34 + int.from_bytes(data[38:40], "big")]
                worker.heard.append(decode(body))

    def join(self, *ips: str, name: str = "j") -> None:
        for rank, ip in enumerate(ips):
            worker = Worker(ip, 4000 + rank)
            self.workers.append(worker)
            asked = JoinRequest(rank, len(ips), ip, worker.port, slots=SLOTS, timeout=60.0)
            self.controller.join(OPEN, name, asked, worker.line)
        eventually(lambda: all(each.line.events or each.line.refusal for each in self.workers))
        assert [each.line.refusal for each in self.workers] == [None] * len(ips)

    def contribute(self, rank: int, position: int, words: Words | None, *, again: bool = False) -> None:
        worker = self.workers[rank]
        place = worker.place
        seq = (place["first_seq"] + position) % 2**32
        slot = place["base"] + seq % SLOTS
        flags = Flag.RETRANSMISSION if again else 0
        packet = encode(Header(Op.SUM, flags, place["job"], place["token"], seq, slot), words)
        switch = place["switch"]["name"]
        own = place["switch"]["address"]
        frame = p4_frames.frame(
            packet, (mac(worker.ip), worker.ip, worker.port), (mac(own), own, place["switch"]["port"])
        )
        self.carry(switch, RACKS[switch].index(worker.ip) + 1, frame)


@contextlib.contextmanager
def plant(program: Path = V1MODEL) -> Iterator[Plant]:
    with contextlib.ExitStack() as stack:
        switches = {name: stack.enter_context(ServedModel(program)) for name in ("root", *RACKS)}
        named = specs({name: switch.address for name, switch in switches.items()})
        drivers = [P4RuntimeDriver(each) for each in named.values()]
        for driver in drivers:
            stack.callback(driver.close)
        controller = Controller(drivers, slots=SLOTS, wiring=wiring(named))
        stack.callback(controller.close)
        controller.start()
        eventually(lambda: set(controller.queries.health()["switches"].values()) == {"up"})
        yield Plant(switches, drivers, controller)


def _counters(it: Plant, name: str) -> dict[str, dict[str, int]]:
    jobs = it.controller.queries.stats(OPEN)["jobs"]
    return {each["switch"]: each["counters"] for each in jobs if each["name"] == name}


@pytest.mark.parametrize("program", [V1MODEL, TNA], ids=["v1model", "tna"])
def test_a_sum_over_two_racks(program: Path) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    with plant(program) as it:
        it.join("10.0.1.1", "10.0.2.1", "10.0.1.2", "10.0.2.2")
        assert [each.place["switch"]["name"] for each in it.workers] == ["leaf1", "leaf2", "leaf1", "leaf2"]
        rounds = 6
        for position in range(rounds):
            parts = rng.integers(0, 2**32, (4, WORDS), np.uint32)
            for rank in rng.permutation(4):
                it.contribute(int(rank), position, None if rank == position else parts[rank])
            present = [rank for rank in range(4) if rank != position]
            for worker in it.workers:
                header, words = worker.heard.pop()
                assert worker.heard == []
                assert header.op is Op.RESULT
                assert (header.token, header.reply) == (worker.place["result_token"], 0)
                assert words is not None
                np.testing.assert_array_equal(words, parts[present].sum(0, dtype=np.uint32))
        assert it.carried == 2 * rounds  # each leaf is one worker to the root
        counters = _counters(it, "j")
        assert counters["root"]["accepted"] == 2 * rounds
        assert (counters["root"]["worker_0_packets"], counters["root"]["inits"]) == (rounds, SLOTS)
        for leaf in RACKS:
            assert (counters[leaf]["accepted"], counters[leaf]["results"]) == (2 * rounds, rounds)
            assert counters[leaf]["delivered"] == rounds


def test_what_is_lost_between_the_switches_is_asked_for_again() -> None:
    parts = np.arange(4 * WORDS, dtype=np.uint32).reshape(4, WORDS)
    with plant() as it:
        it.join("10.0.1.1", "10.0.2.1", "10.0.1.2", "10.0.2.2")
        it.lose = {("leaf1", UPLINK), ("root", 2)}  # a contribution on its way up, a RESULT on its way down
        for rank in range(4):
            it.contribute(rank, 0, parts[rank])
        assert all(each.heard == [] for each in it.workers)
        it.contribute(2, 0, parts[2], again=True)
        assert [len(each.heard) for each in it.workers] == [1, 0, 1, 0]
        it.contribute(3, 0, parts[3], again=True)
        assert [len(each.heard) for each in it.workers] == [1, 0, 1, 1]  # it alone had asked
        it.contribute(1, 0, parts[1], again=True)
        for worker in it.workers:
            ((_, words),) = worker.heard
            assert words is not None
            np.testing.assert_array_equal(words, parts.sum(0))


def test_a_rank_is_shut_out_at_its_leaf_and_all_is_taken_off_at_the_end() -> None:
    with plant() as it:
        it.join("10.0.1.1", "10.0.2.1", "10.0.2.2")
        assert _left(it) > 0
        it.controller.stream_closed(it.workers[1].line)
        eventually(lambda: it.workers[0].line.events[-1]["event"] == "lost")
        assert it.workers[0].line.events[-1]["ranks"] == [1]
        for worker in (it.workers[0], it.workers[2]):
            it.controller.stream_closed(worker.line)
        eventually(lambda: it.controller.queries.jobs(OPEN) == [])
        eventually(lambda: _left(it) == 0)


def test_a_root_that_restarts_ends_a_job_that_a_member_has_left_by_name() -> None:
    with plant() as it:
        it.join("10.0.1.1", "10.0.2.1", "10.0.2.2")
        gone = it.workers.pop()
        it.controller.leave(OPEN, "j", 2, gone.place["token"])
        it.switches["root"].restart()
        eventually(lambda: all(each.line.events[-1]["event"] == "switch" for each in it.workers))
        said = "switch 'root' restarted, and what its slots held is lost"
        assert {each.line.events[-1]["why"] for each in it.workers} == {said}
        eventually(lambda: _left(it) == 0)
        eventually(lambda: set(it.controller.queries.health()["switches"].values()) == {"up"})
        for worker in it.workers:
            it.controller.stream_closed(worker.line)
        it.workers.clear()
        it.join("10.0.1.1", "10.0.2.1")
        for rank in range(2):
            it.contribute(rank, 0, np.full(WORDS, rank + 1, np.uint32))
        assert all(each.heard[0][1] is not None and (each.heard[0][1] == 3).all() for each in it.workers)


def _left(it: Plant) -> int:
    """Entries of jobs that are still on a switch."""
    count = 0
    for driver in it.drivers:
        tables, layout = driver._tables()
        count += sum(layout.job_of(row) is not None for row in tables.read().rows.values())
    return count


def test_neighbours_that_are_no_stations() -> None:
    servers = dict.fromkeys(OWN, "127.0.0.1:9")
    known = specs(servers)
    found = wiring(known)
    assert found["root"].hosts == ()  # its stations are switches
    assert (found["leaf1"].parent, found["leaf1"].shown) == ("root", "10.0.1.1, 10.0.1.2")
    stations = [_station("10.0.1.1", 1)]
    url = {"url": "p4runtime://127.0.0.1:9", "address": OWN["leaf1"], "parent": "root"}
    lost = {**known, "leaf1": from_table("leaf1", {**url, "stations": stations})}
    with pytest.raises(UsageError, match=r"switch leaf1: switch root at 10.0.0.254 is none of its stations"):
        wiring(lost)
