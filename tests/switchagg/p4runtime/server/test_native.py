"""The native engine behind P4Runtime: what becomes of entries in any order, and of a client's mistakes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from switchagg.control.jobs.job import init_packets
from switchagg.p4entities.matches import Ternary
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.program_source import source_of
from switchagg.p4runtime.protos import p4info_pb2
from switchagg.p4runtime.server.errors import Code
from switchagg.p4runtime.server.native import files as native_files
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.native.jobs import RunningJob
from switchagg.p4runtime.server.server import P4RuntimeServer
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry
from switchagg.wire.header import Header, Op, encode
from tests.seeds import seed_of_this_run
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import DELETE, INSERT, MODIFY, V1MODEL, Names, read, update
from tests.switchagg.p4runtime.server.native_slot_table import TableSwitch

SAVE, COMMIT, RECONCILE = 2, 4, 5
ADDRESS = p4_program.SwitchAddress(0x0200000000FE, "10.0.0.254")
TARGET = p4_program.v1model(words=100, slots=1024)
WORKERS = tuple(WorkerEntry(bit, f"10.0.0.{bit + 1}", 4000 + bit, 0xABC0 + bit) for bit in range(3))
JOB = JobEntry(7, 32, 16, 100, 0x77, WORKERS)
PLACE = p4_program.JobPlace(3, {bit: p4_program.Station(1, 0x020000000001 + bit) for bit in range(3)})


class Bench:
    """A client of a native slot table, with what it wants to write."""

    def __init__(
        self, server: P4RuntimeServer[NativeDevice], client: PlainClient, switch: TableSwitch
    ) -> None:
        self.server, self.client, self.switch = server, client, switch
        self.names = Names(client.p4info())

    def message(self, entry: p4_program.TableEntry, words: int = 100) -> Any:
        made = self.names.entry(entry.table, entry.matches, entry.action, entry.params, entry.priority)
        if entry.action == "initialise":
            made.metadata = f"words={words}".encode()
        return made

    def updates(
        self,
        job: JobEntry = JOB,
        change: int = INSERT,
        place: p4_program.JobPlace = PLACE,
        slots: int = 1024,
    ) -> list[Any]:
        target = p4_program.v1model(words=job.words, slots=slots)
        entries = p4_entries.job_entries(target, job, place)
        groups = harness.entry_updates(self.names, p4_program.Entries((), entries.groups), change)
        tables = [update(change, table_entry=self.message(each, job.words)) for each in entries.tables]
        return groups + tables

    def write(self, *updates: Any) -> None:
        self.client.write(*updates)

    def running(self) -> RunningJob:
        """Job 7 as the engine has it."""
        pipeline = self.server.device.running
        assert pipeline is not None
        return pipeline.jobs.running[7]

    def entry(self, action: str, bit: int | None = None) -> Any:
        """The message of one of the job's entries."""
        for each in p4_entries.job_entries(TARGET, JOB, PLACE).tables:
            if each.action == action and (bit is None or each.params.get("worker", 1 << bit) == 1 << bit):
                return self.message(each)
        raise AssertionError(action)

    def initialise(self, job: JobEntry = JOB) -> int:
        """Sends the job's INITs; how many come back."""
        before = self.server.device.counters.copy()
        for slot in range(job.slots):
            header = Header(Op.INIT, 0, job.job, 0, (slot - job.slots) % 2**32, job.base + slot)
            frame = p4_frames.packet_out(TARGET, ADDRESS, header.pack())[2:]
            harness.packet_out(self.client, frame, {1: 0, 2: 0})
        harness.until(lambda: self.server.device.counters["packet_outs"] - before["packet_outs"] == job.slots)
        return self.server.device.counters["packet_ins"] - before["packet_ins"]

    def send(self, bit: int, seq: int, words: Any = None, job: JobEntry = JOB) -> list[Any]:
        worker = job.workers[bit]
        header = Header(Op.SUM, 0, job.job, worker.token, seq, job.base + seq % job.slots)
        return self.switch.table.receive(encode(header, words), worker.address)

    def works(self, seq: int = 0) -> bool:
        """Returns True if a sum of all three comes out."""
        words = np.arange(100, dtype=np.uint32)
        outs = [self.send(bit, seq, words) for bit in range(3)][-1]
        return [out for _, out in outs][:1] == [
            encode(Header(Op.RESULT, 0, 7, 0x77, seq, 32 + seq % 16), 3 * words)
        ]


@pytest.fixture
def bench() -> Iterator[Bench]:
    switch = TableSwitch(1024)
    with (
        P4RuntimeServer(NativeDevice(switch, 1024), "127.0.0.1:0") as server,
        harness.connected(server) as client,
    ):
        yield Bench(server, client, switch)


def test_the_shipped_files_are_those_of_the_program() -> None:
    for path, text in native_files.contents(V1MODEL).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python -m {native_files.__name__}"


def test_it_needs_no_parser_of_p4() -> None:
    script = (
        "import sys\n"
        "for name in ('lark', 'pcpp'): sys.modules[name] = None\n"
        "import switchagg.p4runtime.server.native.device, switchagg.p4runtime.server.server\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_entries_in_any_order_make_the_same_job(bench: Bench) -> None:
    seed = seed_of_this_run()
    rng = random.Random(seed)
    for _ in range(5):
        updates = bench.updates()
        rng.shuffle(updates)
        for each in updates:
            bench.write(each)
        assert bench.switch.calls == [("add", 7)]
        assert bench.initialise() == JOB.slots
        assert bench.works()
        removals = bench.updates(change=DELETE)
        rng.shuffle(removals)
        bench.write(*removals)
        # Some of its workers may have been shut out before it ended.
        assert bench.switch.calls[-1] == ("remove", 7)
        assert bench.send(0, 16) == []
        assert not [each for each in read(bench.client, table_entry={}) if not each.is_const]
        bench.switch.calls.clear()


def test_a_job_is_there_only_when_it_is_whole(bench: Bench) -> None:
    updates = bench.updates()
    for left_out in range(len(updates)):
        entity = updates[left_out].entity
        refuses = entity.table_entry.action.action.action_id == bench.names.action("refuse", {}).action_id
        for number, each in enumerate(updates):
            if number != left_out:
                bench.write(each)
        assert (bench.switch.calls == [("add", 7)]) is refuses
        for number, each in enumerate(bench.updates(change=DELETE)):
            if number != left_out:
                bench.write(each)
        bench.switch.calls.clear()


def test_a_worker_is_shut_out_by_its_entry_s_end_and_comes_back_with_it(bench: Bench) -> None:
    bench.write(*bench.updates())
    bench.initialise()
    contribute = bench.entry("contribute", 1)
    bench.send(1, 0, np.zeros(100, np.uint32))
    bench.write(update(DELETE, table_entry=contribute))
    assert bench.switch.calls[1:] == [("fence", 0b010)]
    assert bench.send(1, 1) == []
    bench.write(update(INSERT, table_entry=contribute))
    assert bench.switch.calls[2:] == [("admit", 0b010)]
    assert bench.works(seq=1)


def test_an_entry_of_higher_priority_shuts_a_worker_out(bench: Bench) -> None:
    bench.write(*bench.updates())
    fence = p4_program.TableEntry(
        p4_program.ADMISSION,
        {"hdr.agg.job": Ternary(7, 0xFFFF), "udp_source": Ternary(4002, 0xFFFF)},
        "refuse",
        {},
        200,
    )
    bench.write(update(INSERT, table_entry=bench.message(fence)))
    assert bench.switch.calls[1:] == [("fence", 0b100)]
    bench.write(update(DELETE, table_entry=bench.message(fence)))
    assert bench.switch.calls[2:] == [("admit", 0b100)]


def test_a_job_that_lost_a_worker_is_written_without_it_and_begins_with_its_inits(bench: Bench) -> None:
    gone = {bench.entry("contribute", 1).SerializeToString()}
    bench.write(
        *(each for each in bench.updates() if each.entity.table_entry.SerializeToString() not in gone)
    )
    assert bench.switch.calls == []
    assert bench.initialise() == JOB.slots
    assert bench.switch.calls == [("add", 7), ("fence", 0b010)]
    words = np.ones(100, np.uint32)
    assert [bench.send(bit, 0, words) for bit in range(3)] == [[], [], []]
    assert bench.switch.table.slot(32).seen == 0b101
    code, message = harness.refused(bench.client, INSERT, table_entry=bench.entry("contribute", 1))
    assert (code, "job 7 runs, and worker 1" in message) == (Code.FAILED_PRECONDITION, True)


def test_a_job_that_runs_is_not_changed_under_its_workers(bench: Bench) -> None:
    bench.write(*bench.updates())
    bench.initialise()
    other = replace(JOB, result_token=0x78, words=64)
    for each in bench.updates(other, MODIFY):
        before = bench.switch.calls.copy()
        entry = each.entity.table_entry
        if (
            entry.action.action.action_id
            == bench.names.action(
                "to_worker", dict.fromkeys(("mac", "ip", "udp_port", "token", "offset"), 0)
            ).action_id
        ):
            code, message = harness.refused(bench.client, MODIFY, table_entry=entry)
            assert (code, "receiver" in message) == (Code.FAILED_PRECONDITION, True)
        elif entry.metadata:
            code, message = harness.refused(bench.client, MODIFY, table_entry=entry)
            assert (code, "job 7 runs" in message) == (Code.FAILED_PRECONDITION, True)
        else:
            bench.write(each)
        assert bench.switch.calls == before
    (entry,) = read(bench.client, table_entry=bench.entry("initialise"))
    assert entry.metadata == b"words=100"
    assert bench.works()


def test_what_the_engine_cannot_carry_out_is_refused_and_leaves_nothing(bench: Bench) -> None:
    empty = read(bench.client, table_entry={})
    good = {each.action: each for each in p4_entries.job_entries(TARGET, JOB, PLACE).tables}
    contribute, initialise = good["contribute"], good["initialise"]

    def with_params(entry: p4_program.TableEntry, **params: int) -> Any:
        return bench.message(replace(entry, params={**entry.params, **params}))

    def with_match(entry: p4_program.TableEntry, name: str, value: int, mask: int) -> Any:
        return bench.message(replace(entry, matches={**entry.matches, name: Ternary(value, mask)}))

    bad_words = bench.message(initialise)
    bad_words.metadata = b"words=7"
    odd_words = bench.message(initialise)
    odd_words.metadata = b"seven"
    for message, code, problem in (
        (with_params(contribute, minus_slots=1), Code.INVALID_ARGUMENT, "minus_slots is 1"),
        (with_params(contribute, slots_log=3), Code.INVALID_ARGUMENT, "slots_log is 3"),
        (with_params(contribute, worker=3), Code.INVALID_ARGUMENT, "worker 0x3"),
        (with_params(contribute, alone=1), Code.INVALID_ARGUMENT, "alone is 1"),
        (with_params(initialise, port=9), Code.INVALID_ARGUMENT, "port is 9"),
        (with_match(contribute, "hdr.agg.job", 0, 0xFF00), Code.UNIMPLEMENTED, "for more than one job"),
        (with_match(contribute, "hdr.agg.token", 0, 0xFF00), Code.UNIMPLEMENTED, "hdr.agg.token is to be"),
        (
            with_match(contribute, "hdr.agg.slot", 32, 0xFFF7),
            Code.INVALID_ARGUMENT,
            "an aligned range",
        ),
        (with_match(initialise, "hdr.agg.token", 1, 0xFFFFFFFF), Code.UNIMPLEMENTED, "not anything"),
        (bad_words, Code.OUT_OF_RANGE, "words=7; accepted: 16.."),
        (odd_words, Code.INVALID_ARGUMENT, "b'seven'; accepted: none, or words=N"),
    ):
        assert harness.refused(bench.client, INSERT, table_entry=message)[0] == code, problem
        assert problem in harness.refused(bench.client, INSERT, table_entry=message)[1]
    assert read(bench.client, table_entry={}) == empty
    assert bench.switch.calls == []


BELOW = replace(PLACE, parent=p4_program.Parent(p4_program.Station(2, 3), "10.0.1.1", 5, 64, 6))
LEAF = replace(JOB, parent=ParentEntry("10.0.1.1", 48879, 5, 64, 6))


def test_a_job_below_another_switch_begins_when_its_parent_is_known(bench: Bench) -> None:
    entries = p4_entries.job_entries(TARGET, JOB, BELOW)
    needed = [each for each in entries.tables if each.action != "refuse"]
    updates = harness.entry_updates(bench.names, p4_program.Entries((), entries.groups), INSERT)
    updates += [update(INSERT, table_entry=bench.message(each)) for each in needed]
    random.Random(seed_of_this_run()).shuffle(updates)
    for each in updates[:-1]:
        bench.write(each)
        assert bench.switch.calls == []
    bench.write(updates[-1])
    assert bench.switch.calls == [("add", 7)]
    assert bench.running().entry == LEAF
    # Its parent cannot change under it, and without its parent it ends.
    (to_all,) = (
        each for each in p4_entries.job_entries(TARGET, JOB, BELOW).tables if each.action == "deliver_all"
    )
    changed = bench.message(replace(to_all, params={"group": 9}))
    code, message = harness.refused(bench.client, MODIFY, table_entry=changed)
    assert (code, "whom its parent's RESULTs are for" in message) == (Code.FAILED_PRECONDITION, True)
    bench.write(update(DELETE, table_entry=bench.message(to_all)))
    assert bench.switch.calls == [("add", 7), ("remove", 7)]


def test_entries_that_do_not_agree_on_a_parent_are_refused(bench: Bench) -> None:
    entries = p4_entries.job_entries(TARGET, JOB, BELOW)
    groups = harness.entry_updates(bench.names, p4_program.Entries((), entries.groups), INSERT)
    for action, params, problem in (
        ("to_parent", {"offset": 1}, "to_parent has offset 1"),
        ("to_parent", {"udp_port": 9}, "its parent's RESULTs come from 10.0.1.1:48879"),
        ("to_worker", {"offset": 1}, "to_worker with offset 1"),
    ):
        wrong = [
            replace(each, params={**each.params, **params}) if each.action == action else each
            for each in entries.tables
        ]
        updates = [*groups, *(update(INSERT, table_entry=bench.message(each)) for each in wrong)]
        refusals = harness.statuses(bench.client, *updates)
        assert [problem in message for code, message in refusals if code] == [True]
        written = [each for each, (code, _) in zip(updates, refusals, strict=True) if not code]
        bench.write(*(_deleted(each) for each in written))
    assert bench.switch.calls == []


def _deleted(written: Any) -> Any:
    made = type(written)()
    made.CopyFrom(written)
    made.type = DELETE
    return made


def test_two_jobs_cannot_have_one_slot(bench: Bench) -> None:
    bench.write(*bench.updates())
    workers = tuple(replace(each, port=each.port + 10) for each in WORKERS)
    second = JobEntry(8, 40, 8, 100, 1, workers)
    place = replace(PLACE, index=4)
    refusals = harness.statuses(bench.client, *bench.updates(second, place=place))
    assert [message for code, message in refusals if code] == ["slots 40..47 overlap those of job 7"]
    assert bench.switch.calls == [("add", 7)]


def test_slots_that_the_switch_has_not_are_refused(bench: Bench) -> None:
    outside = replace(JOB, base=1024)
    refusals = harness.statuses(bench.client, *bench.updates(outside, slots=2048))
    problem = "slots 1024..1039 are outside the switch's 1024"
    assert [message for code, message in refusals if code] == [problem]
    assert bench.switch.calls == []


def test_entries_that_do_not_agree_are_refused(bench: Bench) -> None:
    contributes = [
        each for each in p4_entries.job_entries(TARGET, JOB, PLACE).tables if each.action == "contribute"
    ]
    bench.write(update(INSERT, table_entry=bench.message(contributes[0])))
    for params, problem in (
        ({"worker": 1, "others": 6}, "two have one bit"),
        ({"others": 4}, "its workers"),
        ({"receiver": contributes[0].params["receiver"]}, "two have one receiver"),
        ({"group": 9}, "its multicast group"),
        ({"tally": 0}, "its tally"),
    ):
        entry = replace(contributes[1], params={**contributes[1].params, **params})
        code, message = harness.refused(bench.client, INSERT, table_entry=bench.message(entry))
        assert (code, problem in message) == (Code.FAILED_PRECONDITION, True), message
    assert len([each for each in read(bench.client, table_entry={}) if not each.is_const]) == 1


def test_a_saved_pipeline_is_filled_and_then_committed(bench: Bench) -> None:
    bench.write(*bench.updates())
    p4info = bench.client.p4info()
    bench.client.push(p4info, b"anything", action=SAVE, cookie=5)
    second = replace(JOB, job=9, base=64)
    bench.write(*bench.updates(second))
    assert bench.switch.calls == [("add", 7)]
    bench.client.push(None, b"", action=COMMIT, with_config=False)
    assert bench.switch.calls == [("add", 7), ("remove", 7), ("add", 9), ("fence", 0)]
    assert len(read(bench.client, table_entry={})) > 20
    bench.client.push(p4info, b"anything", action=RECONCILE, cookie=6)
    assert len(bench.switch.calls) == 4
    bench.client.push(p4info, b"anything")
    assert bench.switch.calls[4:] == [("remove", 9)]
    assert not [each for each in read(bench.client, table_entry={}) if not each.is_const]


def test_the_program_s_own_p4info_is_taken_and_gives_k(bench: Bench) -> None:
    source = source_of(V1MODEL, defines=["AGG_WORDS=24", "AGG_SLOTS=512"])
    bench.client.push(source.p4info, b'{"bmv2": "json"}')
    updates = bench.updates(replace(JOB, words=24))
    for each in updates:
        if each.entity.HasField("table_entry"):
            each.entity.table_entry.ClearField("metadata")
    bench.write(*updates)
    assert bench.switch.calls == [("add", 7)]
    assert bench.initialise() == JOB.slots
    words = np.arange(24, dtype=np.uint32)
    assert len([bench.send(bit, 0, words) for bit in range(3)][-1]) == 3


def test_another_program_is_refused(bench: Bench) -> None:
    p4info = p4info_pb2.P4Info()
    text_format.Parse('tables { preamble { id: 33554433 name: "a.b" } }', p4info)
    with pytest.raises(Exception, match=r"the native engine carries out switchagg_v1model\.p4"):
        bench.client.push(p4info, b"", action=SAVE)


def test_what_says_that_this_is_the_native_engine(bench: Bench) -> None:
    info = bench.client.p4info().pkg_info
    assert info.arch == "v1model"
    assert list(info.annotations) == [
        '@switchagg_native("words=16..16000", "slots=1024", "address=127.0.0.1:48879", "memory=1073741824", '
        '"receive_buffer=1048576")'
    ]


class Client:
    """A client of a switch on real sockets."""

    def __init__(self, address: str) -> None:
        self.client = PlainClient(0, address, (0, 1))
        self.names = Names(self.client.p4info())

    def install(self, job: JobEntry) -> None:
        target = p4_program.v1model(words=job.words)
        stations = {each.bit: p4_program.Station(1, each.bit) for each in job.workers}
        entries = p4_entries.job_entries(target, job, p4_program.JobPlace(0, stations))
        updates = harness.entry_updates(self.names, entries)
        initialise = [each.action == "initialise" for each in entries.tables].index(True)
        updates[initialise].entity.table_entry.metadata = f"words={job.words}".encode()
        self.client.write(*updates)

    def packet_out(self, packet: bytes) -> list[bytes]:
        frame = p4_frames.packet_out(TARGET, ADDRESS, packet)[2:]
        harness.packet_out(self.client, frame, {1: 0, 2: 0})
        echo = self.client.drained("packet").packet
        return [p4_frames.packet_in(b"\0\0" + echo.payload)]


def test_the_command_serves_workers_and_forgets_everything_with_its_process() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    line = [sys.executable, "-m", "switchagg.cli.main", "switch", "--port", "0", "--json"]
    for _ in range(2):
        switch = subprocess.Popen(
            [*line, "--", "--grpc-server-addr", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert switch.stdout is not None
        try:
            ready = json.loads(switch.stdout.readline())
            client = Client(ready["p4runtime"])
            assert not [each for each in read(client.client, table_entry={}) if not each.is_const]
            with PlainWorkers(3, words=2000, slots=8).at((ready["address"], ready["port"])) as workers:
                client.install(workers.entry)
                for packet in init_packets(workers.entry, 0).values():
                    assert client.packet_out(packet) == [packet]
                reduce_rounds(workers, 40, rng)
            asked = {"counter_id": client.names.id("counters", "worker_packets")}
            counts = [each.data.packet_count for each in read(client.client, counter_entry=asked)]
            assert counts[:4] == [40, 40, 40, 0]
            client.client.close()
        finally:
            switch.send_signal(signal.SIGTERM)
            stopped = json.loads(switch.communicate(timeout=240)[0])
        assert (switch.returncode, stopped["failure"], stopped["counters"]["results"]) == (0, None, 40)
