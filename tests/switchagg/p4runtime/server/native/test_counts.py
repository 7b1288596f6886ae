"""The native engine's counters over P4Runtime are those of the P4 program, entry by entry and cell by cell.

The same random packets, some of them hostile, go to the native engine and to the program in the model, while
workers are shut out. SWITCHAGG_TEST_SEED repeats a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from switchagg.p4program import program as p4_program
from switchagg.p4program.counters import Reader, refusals
from switchagg.p4program.program import (
    ADMISSION,
    OUTCOMES,
    OUTCOMES_PER_JOB,
    WORKER_PACKETS,
    WORKER_REPEATS,
    WORKERS_PER_JOB,
    Outcome,
)
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from tests.p4.engine import P4Engine, install_switch
from tests.p4.model import Model
from tests.seeds import seed_of_this_run
from tests.switchagg.conformance.traffic import Traffic
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.native_slot_table import (
    NativeEngine,
    NativeSlotTableDevice,
    TableSwitch,
)

SEQUENCES = 12
PACKETS = 60  # at most, in a sequence
CAPACITY = 64


@pytest.fixture(scope="module")
def native() -> Iterator[NativeSlotTableDevice]:
    switch = TableSwitch(CAPACITY)
    device = NativeDevice(switch, CAPACITY)
    with P4RuntimeServer(device, "127.0.0.1:0") as server, harness.connected(server) as client:
        yield NativeSlotTableDevice(server, client, switch)


def test_every_count_is_that_of_the_program(native: NativeSlotTableDevice) -> None:
    seed = seed_of_this_run()
    model = Model("switchagg_v1model.p4", p4_program.v1model(words=16, slots=CAPACITY))
    devices = (native, model)
    common = [install_switch(dut) for dut in devices]
    seen: Counter[str] = Counter()
    number = done = fences = 0
    always = (Outcome.STALE, Outcome.DUPLICATE, Outcome.ANSWERED, Outcome.INITIALISED, Outcome.FRESH_STORED)

    def missing() -> list[Outcome]:
        return [each for each in always if not seen[f"outcome {int(each)}"]]

    # A few more sequences where the first have not had everything.
    while done < SEQUENCES or ((missing() or not fences) and done < 5 * SEQUENCES):
        number += 1
        rng = Random(f"{seed}/{number}")
        traffic = Traffic(rng, hostile=number % 3 == 0)
        if any(sender.job.words != 16 for sender in traffic.senders):
            continue
        done += 1
        engines = (NativeEngine(native, common[0], CAPACITY), P4Engine(model, common[1], CAPACITY))
        for sender in traffic.senders:
            for engine in engines:
                engine.add_job(sender.job)
                for payload, source in sender.inits():
                    assert engine.receive(payload, source) == [(None, payload)]
        for payload, source in traffic.packets(PACKETS):
            if rng.random() < 0.03:
                job = rng.choice(traffic.senders).job
                bits = sum(1 << worker.bit for worker in job.workers if rng.random() < 0.3)
                for engine in engines:
                    engine.fence(job.job, bits)
                fences += 1
            outs, theirs = (engine.receive(payload, source) for engine in engines)
            assert outs == theirs
            traffic.answer(outs)
        for job_id in [sender.job.job for sender in traffic.senders]:
            first, second = (engine.installed(job_id) for engine in engines)
            for ours, other in zip(first.entries.tables, second.entries.tables, strict=True):
                if ours.table == ADMISSION:
                    assert native.entry_packets(ours) == model.entry_packets(other), ours
            index = first.place.index
            for name, each in (
                (OUTCOMES, OUTCOMES_PER_JOB),
                (WORKER_PACKETS, WORKERS_PER_JOB),
                (WORKER_REPEATS, WORKERS_PER_JOB),
            ):
                for cell in range(index * each, (index + 1) * each):
                    assert native.cell(name, cell) == model.cell(name, cell), (name, cell)
            seen.update(
                {
                    f"outcome {cell}": native.cell(OUTCOMES, index * 32 + cell)
                    for cell in range(OUTCOMES_PER_JOB)
                }
            )
        # Packets of no job: by reason, since the native engine does not tell the ports apart.
        assert refusals(common[0], Reader(native.entry_packets, native.cell)) == refusals(
            common[1], Reader(model.entry_packets, model.cell)
        )
        for engine in engines:
            engine.close()
    assert fences
    assert not missing(), seen
    assert sum(count > 0 for count in seen.values()) >= 10, seen


def test_a_client_sets_counters_and_they_go_on_from_there(native: NativeSlotTableDevice) -> None:
    from tests.switchagg.conformance.scenario import Job

    engine = NativeEngine(native, p4_program.Entries((), ()), CAPACITY)
    job = Job(engine)
    job.send(0, 0)
    index = engine.installed(7).place.index
    names = harness.Names(native.client.p4info())
    cell = {"counter_id": names.id("counters", WORKER_PACKETS), "index": {"index": index * 32}}
    data = {"data": {"packet_count": 1000}}
    native.client.write(harness.update(harness.MODIFY, counter_entry=cell | data))
    (contribute, *_) = [each for each in engine.installed(7).entries.tables if each.action == "contribute"]
    asked = {"table_entry": native.message(contribute)}
    native.client.write(harness.update(harness.MODIFY, direct_counter_entry=asked | data))
    job.send(0, 0)
    (found,) = harness.read(native.client, counter_entry=cell)
    assert found.data.packet_count == 1001
    (entry,) = harness.read(native.client, direct_counter_entry=asked)
    assert entry.data.packet_count == 1001
    everything = harness.read(native.client, counter_entry={"counter_id": cell["counter_id"]})
    assert len(everything) == 8192
    engine.close()
