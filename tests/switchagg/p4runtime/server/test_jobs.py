"""Our own programs: pushed, filled with a job's entries, and summing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from switchagg.p4program import counters as p4_counters
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.program_source import source_of
from switchagg.p4runtime.server.model_device import ModelDevice
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Event, Header, Op, decode, encode
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import DELETE, MODIFY, TNA, V1MODEL, Names, read, update

ADDRESS = p4_program.SwitchAddress(0x0200000000FE, "10.0.0.254")
TARGETS = {V1MODEL: p4_program.v1model, TNA: p4_program.tna}
JOB = JobEntry(
    job=7,
    base=32,
    slots=2,
    words=64,
    result_token=0x77,
    workers=tuple(WorkerEntry(bit, f"10.0.0.{bit + 1}", 4000 + bit, 0xABC0 + bit) for bit in range(2)),
)
STATIONS = {bit: p4_program.Station(bit + 1, 0x020000000001 + bit) for bit in range(2)}
PLACE = p4_program.JobPlace(3, STATIONS)


def _contribute(device: ModelDevice, bit: int, header: Header, words: np.ndarray) -> list[tuple[int, bytes]]:
    worker, station = JOB.workers[bit], STATIONS[bit]
    packet = p4_frames.frame(
        encode(header, words),
        (station.mac, worker.ip, worker.port),
        (ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port),
    )
    return device.process(station.port, packet, device.now())


@pytest.mark.parametrize("program", [V1MODEL, TNA], ids=["v1model", "tna"])
def test_a_job_from_push_to_removal(program: Path) -> None:
    target = TARGETS[program]()
    with harness.served(None) as server, harness.connected(server) as client:
        device = server.device
        source = source_of(program, defines=["AGG_P4RUNTIME=1"])
        client.push(source.p4info, source.config)
        p4info = client.p4info()
        assert p4info == source.p4info
        names = Names(p4info)

        common = p4_entries.switch_entries(target, ADDRESS, (1, 2, 3))
        entries = p4_entries.job_entries(target, JOB, PLACE)
        flood = names.entry(p4_program.STATIONS, {}, "flood", {"group": p4_program.FLOOD_GROUP})
        flood.is_default_action = True
        empty = read(client, table_entry={})
        client.write(*harness.entry_updates(names, common), update(MODIFY, table_entry=flood))
        written = read(client, table_entry={})
        assert len(written) == len(empty) + len(common.tables)
        client.write(*harness.entry_updates(names, entries))
        for each in entries.tables:
            asked = names.entry(each.table, each.matches, each.action, each.params, each.priority)
            assert read(client, table_entry=asked) == [asked]

        # INIT for each slot, echoed through the controller's port as packet-ins.
        header = {
            field.name: field.id for field in names.of("controller_packet_metadata", "packet_out").metadata
        }
        for slot in range(JOB.slots):
            packet = Header(Op.INIT, 0, JOB.job, 0, 2**32 - JOB.slots + slot, JOB.base + slot).pack()
            # The port is a field of the stream's metadata, not two bytes before the frame.
            frame = p4_frames.packet_out(target, ADDRESS, packet)[2:]
            harness.packet_out(client, frame, {header["padding"]: 0, header["port"]: target.packet_out_port})
            echo = client.drained("packet").packet
            shown = {each.metadata_id: each.value for each in echo.metadata}
            assert set(shown) == {1, 2}
            echoed, none = decode(p4_frames.packet_in(b"\0\0" + echo.payload))
            assert (echoed.op, echoed.job, echoed.slot, none) == (Op.INIT, JOB.job, JOB.base + slot, None)

        parts = [np.arange(64, dtype=np.uint32) * (bit + 1) + bit for bit in range(2)]
        heads = [Header(Op.SUM, 0, JOB.job, worker.token, 0, JOB.base) for worker in JOB.workers]
        assert _contribute(device, 0, heads[0], parts[0]) == []
        results = _contribute(device, 1, heads[1], parts[1])
        assert sorted(port for port, _ in results) == [1, 2]
        for _, frame in results:
            result, words = decode(frame[42 : 34 + int.from_bytes(frame[38:40], "big")])
            assert (result.op, result.token) == (Op.RESULT, JOB.result_token)
            assert words is not None
            np.testing.assert_array_equal(words, parts[0] + parts[1])
        wrong = Header(Op.SUM, 0, JOB.job, 0xBAD, 0, JOB.base)
        assert _contribute(device, 0, wrong, parts[0]) == []

        def of_entry(entry: p4_program.TableEntry) -> int:
            asked = names.entry(entry.table, entry.matches, None, None, entry.priority)
            (found,) = read(client, direct_counter_entry={"table_entry": asked})
            return int(found.data.packet_count)

        def of_cell(name: str, index: int) -> int:
            asked = {"counter_id": names.id("counters", name), "index": {"index": index}}
            (found,) = read(client, counter_entry=asked)
            return int(found.data.packet_count)

        counts = p4_counters.job_counters(JOB, PLACE, entries, p4_counters.Reader(of_entry, of_cell))
        assert (counts[Event.accepted], counts[Event.results], counts[Event.inits]) == (2, 1, JOB.slots)
        assert (counts["token"], counts["worker_0_packets"], counts["worker_1_packets"]) == (1, 1, 1)

        client.write(*harness.entry_updates(names, entries, DELETE))
        left = read(client, table_entry={})
        assert sorted(each.SerializeToString() for each in left) == sorted(
            each.SerializeToString() for each in written
        )
        assert _contribute(device, 0, heads[0], parts[0]) == []
