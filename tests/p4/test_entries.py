"""From records to entries and frames: what is refused, and what no device test shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from switchagg.errors import UsageError
from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program.entries import group_of, job_entries, receiver, switch_entries
from switchagg.p4program.frames import frame, packet_in, packet_out
from switchagg.p4program.program import (
    ADMISSION,
    RECEIVERS,
    JobPlace,
    Parent,
    Station,
    SwitchAddress,
    tna,
    v1model,
)
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import DropReason

WORKERS = tuple(WorkerEntry(bit, f"10.0.0.{bit + 1}", 4000, bit) for bit in range(3))
JOB = JobEntry(7, 64, 16, 64, 0xFEEDF00D, WORKERS)
PLACE = JobPlace(2, {bit: Station(bit + 1, 0x020000000000 + bit) for bit in range(3)})
ADDRESS = SwitchAddress(0x0200000000FE, "10.0.255.254")


def _parent(base: int) -> Parent:
    return Parent(Station(20, 0x02000000FFFF), "10.0.255.253", 1, base, 2)


@pytest.mark.parametrize(
    ("job", "place", "message"),
    [
        (replace(JOB, words=16), PLACE, "job 7 has K = 16; this program is compiled for 64"),
        (replace(JOB, base=16384), PLACE, r"slots 16384\.\.16399 are outside the switch's 16384"),
        (replace(JOB, touch=False), PLACE, "asks not to touch words"),
        (JOB, replace(PLACE, index=256), r"job index 256; accepted: 0\.\.255"),
        (JOB, replace(PLACE, stations={0: PLACE.stations[0]}), "no station for worker 1"),
        *(
            (
                JOB,
                replace(PLACE, parent=_parent(base)),
                rf"base at the parent is {base}; accepted: a multiple",
            )
            for base in (3, -16, 65536)
        ),
    ],
)
def test_what_is_refused(job: JobEntry, place: JobPlace, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_entries(v1model(), job, place)


def test_no_two_entries_of_one_table_are_the_same() -> None:
    for target in (v1model(), tna(pipe=1)):
        entries = (
            *switch_entries(target, ADDRESS, (0, 1)).tables,
            *job_entries(target, JOB, PLACE).tables,
        )
        keys = {(each.table, each.priority, tuple(sorted(each.matches.items()))) for each in entries}
        assert len(keys) == len(entries)


def test_every_value_lies_within_its_mask() -> None:
    for entry in job_entries(v1model(), JOB, PLACE).tables:
        for match in entry.matches.values():
            assert not isinstance(match, Range)
            assert isinstance(match, Exact) or match.value & ~match.mask == 0


def test_a_job_has_a_way_to_refuse_for_each_reason_that_admission_knows() -> None:
    tables = job_entries(v1model(), JOB, PLACE).tables
    reasons = [entry.reason for entry in tables if entry.reason]
    assert set(reasons) == {DropReason.slot, DropReason.source, DropReason.length, DropReason.token}
    common = {entry.reason for entry in switch_entries(v1model(), ADDRESS, ()).tables if entry.reason}
    expected = {DropReason.truncated, DropReason.version, DropReason.op, DropReason.length, DropReason.job}
    assert common == expected


def test_as_many_entries_as_the_readme_says() -> None:
    count = sum(entry.table == ADMISSION for entry in job_entries(v1model(), JOB, PLACE).tables)
    assert count == 3 * len(WORKERS) + 4
    assert sum(each.table == ADMISSION for each in switch_entries(v1model(), ADDRESS, ()).tables) == 9


def test_jobs_side_by_side_share_no_number() -> None:
    places = [replace(PLACE, index=index) for index in range(256)]
    receivers = [receiver(place, bit) for place in places for bit in range(33)]
    assert len(set(receivers)) == len(receivers)
    assert len({group_of(place) for place in places}) == 256
    assert max(receivers) < 2**16
    (group,) = job_entries(v1model(), JOB, PLACE).groups
    assert group.replicas == tuple((bit + 1, receiver(PLACE, bit)) for bit in range(3))
    written = [each for each in job_entries(v1model(), JOB, PLACE).tables if each.table == RECEIVERS]
    assert [each.matches["receiver"] for each in written] == [Exact(rid) for _, rid in group.replicas]


def test_inits_come_from_one_port_only() -> None:
    for target, port in ((v1model(), 510), (tna(), 68), (tna(pipe=3), 452)):
        (init,) = [each for each in job_entries(target, JOB, PLACE).tables if each.action == "initialise"]
        assert init.matches["ingress_port"] == Ternary(port, 0x1FF)
        assert init.params["port"] == target.controller_port


def test_packets_of_the_controllers_port() -> None:
    payload = bytes(range(16))
    sent = packet_out(tna(pipe=1), ADDRESS, payload)
    assert sent[:2] == (196).to_bytes(2, "big")
    assert sent[2:8] == ADDRESS.mac.to_bytes(6, "big")
    assert len(sent) == 62
    assert packet_in(sent) == payload
    for other in (b"", sent[:40], sent[:14] + b"\x08\x06" + sent[16:], sent[:25] + b"\x06" + sent[26:]):
        with pytest.raises(UsageError, match=f"packet-in of {len(other)} bytes"):
            packet_in(other)


def test_a_frame_byte_for_byte() -> None:
    whole = frame(b"hi", (0x02AABBCCDDEE, "10.0.0.1", 4000), (0x020000000001, "10.0.0.2", 48879))
    assert whole == bytes.fromhex(
        "020000000001 02aabbccddee 08004500001e 00004000 401126cd 0a000001 0a0000020fa0beef 000a0000 6869"
    ).ljust(60, b"\0")
    assert len(frame(b"hi", (1, "10.0.0.1", 1), (2, "10.0.0.2", 2), pad=False)) == 44
