"""The driver on a P4Runtime server of ours: jobs, fences, reconciliation, restarts, rivals, refusals."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')
from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.errors import SwitchError, UsageError
from switchagg.p4program.program import ADMISSION
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.server import Tls
from switchagg.rules.slots import JobEntry
from switchagg.rules.switch import ChangeKind, Reconciled
from switchagg.wire.header import Header, Op
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers import model_switch
from tests.switchagg.control.drivers.model_switch import (
    STATIONS,
    TNA,
    V1MODEL,
    WORDS,
    Changes,
    ServedModel,
    counted,
    inits,
    job,
    open_job,
    parts,
    until,
)
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import DELETE, INSERT, MODIFY, Names, update

NOTHING = Reconciled()
LOW, FIRST, HIGH = itertools.count(1), 1 << 32, itertools.count(1 << 62)
"""Election ids of clients that only look, and of those that have the switch.

No two are the same: a switch may still know one that has gone.
"""


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


@pytest.fixture
def switch() -> Iterator[ServedModel]:
    with ServedModel() as made:
        yield made


@contextlib.contextmanager
def driving(switch: ServedModel, **more: Any) -> Iterator[P4RuntimeDriver]:
    driver = switch.driver(**more)
    try:
        yield driver
    finally:
        driver.close()


def _state(switch: ServedModel) -> list[bytes]:
    """All that tables and groups hold."""
    with harness.connected(switch.server, next(LOW)) as client:
        engine: Any = {"multicast_group_entry": {}}
        found = [
            *harness.read(client, table_entry={}),
            *harness.read(client, packet_replication_engine_entry=engine),
        ]
    return sorted(each.SerializeToString(deterministic=True) for each in found)


# ---- jobs ----


@pytest.mark.parametrize("program", [V1MODEL, TNA], ids=["v1model", "tna"])
def test_a_job_of_four_workers(program: Path, rng: np.random.Generator) -> None:
    with ServedModel(program) as switch, driving(switch) as driver:
        assert driver.reconcile((), {}) == NOTHING
        capacity = driver.capacity
        assert (capacity.slots, capacity.words, capacity.exact_words) == (16384, WORDS, WORDS)
        assert driver.address == ("10.0.0.254", 48879)
        before = _state(switch)
        entry = job(7, workers=4, slots=8)
        open_job(driver, entry)
        for seq in range(20):
            switch.reduce(entry, seq, parts(rng, entry))
        wrong = Header(Op.SUM, 0, entry.job, 0xBAD, 20, entry.base).pack()
        assert switch.send(entry, 0, wrong) == []
        counters = counted(driver.job_counters(7))
        assert counters == {
            "received": 89,
            "inits": 8,
            "accepted": 80,
            "fresh": 20,
            "stored": 20,
            "added": 60,
            "results": 20,
            "token": 1,
            **{f"worker_{bit}_packets": 20 for bit in range(4)},
        }
        totals = counted(driver.counters())
        assert totals == {name: n for name, n in counters.items() if not name.startswith("worker")}
        driver.remove_job(7)
        assert switch.contribute(entry, 0, 20, parts(rng, entry)[0]) == []
        assert counted(driver.counters()) == {**totals, "received": 90, "job": 1}
        driver.reconcile((), {})
        assert _state(switch) == before


def test_jobs_do_not_see_each_other(switch: ServedModel, rng: np.random.Generator) -> None:
    with driving(switch) as driver:
        entries = [job(n, workers=2 + n, base=32 * n, slots=4) for n in range(1, 4)]
        for each in entries:
            open_job(driver, each)
        for seq in range(12):
            for each in entries:
                switch.reduce(each, seq, parts(rng, each))
        driver.remove_job(2)
        again = job(9, workers=3, base=64, slots=4)
        open_job(driver, again)
        assert counted(driver.job_counters(9)) == {"inits": 4, "received": 4}
        for seq in range(12):
            switch.reduce(again, seq, parts(rng, again))
        for seq in range(12, 20):
            switch.reduce(entries[0], seq, parts(rng, entries[0]))
            switch.reduce(entries[2], seq, parts(rng, entries[2]))


def test_a_fenced_worker(switch: ServedModel, rng: np.random.Generator) -> None:
    with driving(switch) as driver:
        entry = job(7, workers=3, slots=4)
        open_job(driver, entry)
        words = parts(rng, entry)
        switch.reduce(entry, 0, words)
        # Slot 1 has worker 1's packet already, slot 2 has not.
        assert switch.contribute(entry, 1, 1, words[1]) == []
        refused = Header(Op.SUM, 0, entry.job, 0xBAD, 1, entry.base + 1).pack()
        assert switch.send(entry, 1, refused) == []
        driver.fence(7, 0b010)
        assert switch.contribute(entry, 1, 2, words[1]) == []
        assert switch.contribute(entry, 1, 0, words[1]) == [], "nor is it answered"
        assert switch.contribute(entry, 0, 1, words[0]) == []
        outs = switch.contribute(entry, 2, 1, words[2])
        assert sorted(port for port, _ in outs) == [1, 2, 3]
        assert switch.contribute(entry, 0, 2, words[0]) == []
        assert switch.contribute(entry, 2, 2, words[2]) == []
        counters = driver.job_counters(7)
        assert (counters["source"], counters["token"], counters["worker_1_packets"]) == (2, 1, 2)
        driver.fence(7, 0b011)
        assert switch.contribute(entry, 0, 3, words[0]) == []
        assert driver.job_counters(7)["source"] == 3
        with pytest.raises(SwitchError, match="bits is 0x8; the workers of job 7 have 0x7"):
            driver.fence(7, 8)
        with pytest.raises(SwitchError, match="there is no job 8"):
            driver.fence(8, 1)


# ---- a controller that comes back ----


def test_a_controller_that_comes_back_writes_nothing(switch: ServedModel, rng: np.random.Generator) -> None:
    entries = [job(n, base=32 * n, workers=2 + n) for n in range(1, 4)]
    with driving(switch, election=FIRST) as driver:
        driver.reconcile((), {})
        for each in entries:
            open_job(driver, each)
        driver.remove_job(1)
        driver.fence(3, 0b100)
    state = _state(switch)
    left = entries[1:]
    with driving(switch, election=next(HIGH)) as driver:
        changes = Changes(driver)
        changes.next(ChangeKind.connected)
        switch.reduce(left[0], 0, parts(rng, left[0]))
        assert driver.reconcile(left, {3: 0b100}) == Reconciled(kept=(2, 3))
        assert not driver.writes
        assert _state(switch) == state
        assert counted(driver.job_counters(2))["results"] == 1
    with driving(switch, election=next(HIGH)) as driver:
        # A new job does not take the place of one that is there.
        driver.reconcile(left, {3: 0b100})
        open_job(driver, entries[0])
        for seq in range(1, 4):
            switch.reduce(left[0], seq, parts(rng, left[0]))
            switch.reduce(entries[0], seq - 1, parts(rng, entries[0]))


def test_what_is_wrong_is_taken_off_and_nothing_else(switch: ServedModel, rng: np.random.Generator) -> None:
    drawn = random.Random(int(rng.integers(2**32)))
    entries = [job(n, base=32 * n, workers=1 + n % 4) for n in range(1, 6)]
    with driving(switch, election=FIRST) as driver:
        driver.reconcile((), {})
        for each in entries:
            open_job(driver, each)
    good = _state(switch)
    for _ in range(6):
        disturbed = _disturb(switch, drawn)
        with driving(switch, election=next(HIGH)) as driver:
            outcome = driver.reconcile(entries, {})
            assert set(outcome.missing) == {each for each in disturbed if each is not None}
            assert set(outcome.kept) == {each.job for each in entries} - set(outcome.missing)
            assert outcome.removed == ()
            driver.writes.clear()
            assert driver.reconcile(entries, {}) == outcome
            assert not driver.writes
            for each in entries:
                if each.job in outcome.missing:
                    open_job(driver, each)
            assert _state(switch) == good
            driver.writes.clear()
            assert driver.reconcile(entries, {}).missing == ()
            assert not driver.writes


def _disturb(switch: ServedModel, drawn: random.Random) -> set[int | None]:
    """Deletes, changes and adds entries; returns of which jobs."""
    with harness.connected(switch.server, next(HIGH)) as client:
        names = Names(client.p4info())
        table = names.of("tables", ADMISSION)
        job_key = next(each.id for each in table.match_fields if each.name.endswith("job"))
        contribute = names.id("actions", "contribute")
        entries = harness.read(client, table_entry={"table_id": table.preamble.id})
        chosen = drawn.sample(entries, drawn.randrange(1, 6))
        jobs: set[int | None] = set()
        updates = []
        for each in chosen:
            (found,) = [m.ternary.value for m in each.match if m.field_id == job_key] or [None]
            jobs.add(None if found is None else int.from_bytes(found, "big"))
            if each.action.action.action_id == contribute and drawn.random() < 0.5:
                each.action.action.params[0].value = b"\x7f"
                updates.append(update(MODIFY, table_entry=each))
            else:
                updates.append(update(DELETE, table_entry=each))
        if drawn.random() < 0.7:
            # An entry that nobody of ours wrote, for a stranger.
            foreign = p4runtime_pb2.TableEntry()
            foreign.CopyFrom(drawn.choice([e for e in entries if e.action.action.action_id == contribute]))
            foreign.priority = 91 + drawn.randrange(50)
            updates.append(update(INSERT, table_entry=foreign))
        client.write(*updates)
    return jobs


def test_jobs_that_are_nobodys_are_taken_off(switch: ServedModel, rng: np.random.Generator) -> None:
    with driving(switch) as driver:
        open_job(driver, job(1))
        open_job(driver, job(2, base=64))
        assert driver.reconcile([job(2, base=64)], {}) == Reconciled(kept=(2,), removed=(1,))
        switch.reduce(job(2, base=64), 0, parts(rng, job(2)))
        assert switch.contribute(job(1), 0, 0, parts(rng, job(1))[0]) == []
        with pytest.raises(SwitchError, match="there is no job 1"):
            driver.remove_job(1)


# ---- a switch that goes and comes ----


def test_a_switch_that_restarts(switch: ServedModel, rng: np.random.Generator) -> None:
    entry = job(3, workers=3)
    with driving(switch) as driver:
        changes = Changes(driver)
        changes.next(ChangeKind.connected)
        driver.reconcile((), {})
        open_job(driver, entry)
        switch.reduce(entry, 0, parts(rng, entry))
        switch.restart(pause=0.3)
        assert changes.next(ChangeKind.lost).why
        restarted = changes.next(ChangeKind.restarted)
        assert restarted.why == "the switch restarted"
        assert driver.reconcile([entry], {}) == Reconciled(missing=(3,))
        open_job(driver, entry)
        switch.reduce(entry, 0, parts(rng, entry))
        assert changes.none()


def test_a_switch_that_is_cut_off_keeps_its_jobs(switch: ServedModel, rng: np.random.Generator) -> None:
    """The connection breaks; the switch goes on."""
    entry = job(3, workers=3)
    with _Cable(switch.address) as cable:
        driver = P4RuntimeDriver(model_switch.spec(cable.address, timeout=30))
        try:
            changes = Changes(driver)
            changes.next(ChangeKind.connected)
            open_job(driver, entry)
            cable.cut()
            changes.next(ChangeKind.lost)
            with pytest.raises(SwitchError, match=r"switch rack1 .*, reading counters: UNAVAILABLE"):
                driver.counters()
            switch.reduce(entry, 0, parts(rng, entry))
            cable.mend()
            changes.next(ChangeKind.connected)
            driver.writes.clear()
            assert driver.reconcile([entry], {}) == Reconciled(kept=(3,))
            assert not driver.writes
            switch.reduce(entry, 1, parts(rng, entry))
        finally:
            driver.close()


class _Cable:
    """A TCP relay that can be cut."""

    def __init__(self, address: str) -> None:
        self._address = address
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self) -> _Cable:
        self.mend()
        return self

    def mend(self) -> None:
        host, port = self.address.split(":")
        script = f"""
import asyncio
async def pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data); await writer.drain()
    except OSError: pass
    finally: writer.close()
async def serve(reader, writer):
    there, back = await asyncio.open_connection(*{self._address.split(":")!r})
    await asyncio.gather(pipe(reader, back), pipe(there, writer))
async def main():
    server = await asyncio.start_server(serve, {host!r}, {port})
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
        self._process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def cut(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __exit__(self, *_: object) -> None:
        self.cut()


def test_a_switch_that_freezes() -> None:
    command = [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", "p4", "--json"]
    command += ["--program", str(V1MODEL), "-D", f"AGG_WORDS={WORDS}", "--p4runtime", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["p4runtime"]
            driver = P4RuntimeDriver(model_switch.spec(address, timeout=4))
            try:
                changes = Changes(driver)
                changes.next(ChangeKind.connected)
                entry = job(1)
                open_job(driver, entry)
                process.send_signal(signal.SIGSTOP)
                assert "DEADLINE_EXCEEDED" in changes.next(ChangeKind.lost).why
                process.send_signal(signal.SIGCONT)
                changes.next(ChangeKind.connected)
                assert driver.reconcile([entry], {}) == Reconciled(kept=(1,))
            finally:
                driver.close()
        finally:
            process.kill()


def test_a_switch_that_is_not_there_at_first() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    driver = P4RuntimeDriver(model_switch.spec(address, words=WORDS, slots=1024))
    try:
        changes = Changes(driver)
        assert "UNAVAILABLE" in changes.next(ChangeKind.lost).why
        assert (driver.capacity.slots, driver.capacity.exact_words) == (1024, WORDS)
        with pytest.raises(SwitchError, match=rf"switch rack1 \({address}\), installing a job: UNAVAILABLE"):
            driver.install_job(job(1))
        from switchagg.p4runtime.program_source import source_of
        from switchagg.p4runtime.server.model_device import ModelDevice
        from switchagg.p4runtime.server.server import P4RuntimeServer

        # Another program than it was taken for, then the right one.
        for macros, kind in ((["AGG_WORDS=24"], None), ([f"AGG_WORDS={WORDS}"], ChangeKind.connected)):
            source = source_of(V1MODEL, (), macros)
            with P4RuntimeServer(ModelDevice(source), address):
                if kind is None:
                    until(lambda: "words 24, where the switch's spec says 16" in _why(driver))
                else:
                    changes.next(kind)
                    open_job(driver, job(1))
    finally:
        driver.close()


def _why(driver: P4RuntimeDriver) -> str:
    try:
        driver.counters()
    except SwitchError as error:
        return str(error)
    return ""


def test_several_switches(rng: np.random.Generator) -> None:
    with (
        ServedModel() as one,
        ServedModel() as two,
        driving(one, name="a") as first,
        driving(two, name="b") as second,
    ):
        entries = [job(1, base=0), job(1, base=64)]
        open_job(first, entries[0])
        open_job(second, entries[1])
        two.server.close()
        with pytest.raises(SwitchError, match="switch b"):
            second.counters()
        one.reduce(entries[0], 0, parts(rng, entries[0]))
        assert first.job_counters(1)["results"] == 1


# ---- rivals ----


def test_the_controller_that_starts_later_has_the_switch(switch: ServedModel) -> None:
    with driving(switch, election=10) as first:
        heard = Changes(first)
        heard.next(ChangeKind.connected)
        open_job(first, job(1))
        with driving(switch, election=11) as second:
            lost = heard.next(ChangeKind.lost)
            assert lost.why == "another controller, of election id 11, has this switch"
            with pytest.raises(SwitchError, match="another controller, of election id 11"):
                first.install_job(job(2, base=64))
            assert second.reconcile([job(1)], {}) == Reconciled(kept=(1,))
            with driving(switch, election=9) as third:
                told = Changes(third).next(ChangeKind.lost)
                assert told.why == "another controller, of election id 11, has this switch"
            second.install_job(job(2, base=64))
        # It has gone: the one that waits takes the switch over, and finds what the other has left.
        heard.next(ChangeKind.connected)
        assert first.reconcile([job(1)], {}) == Reconciled(kept=(1,), removed=(2,))


# ---- programs ----


def test_a_program_is_started_once(tmp_path: Path) -> None:
    with ServedModel(None) as switch:
        more: Any = {"program": str(V1MODEL), "defines": [f"AGG_WORDS={WORDS}", "AGG_SLOTS=256"]}
        with driving(switch, **more) as driver:
            assert driver.writes["push"] == 1
            assert (driver.capacity.slots, driver.capacity.words, driver.target) == (256, WORDS, "p4")
            open_job(driver, job(1))
        with driving(switch, **more) as driver:
            assert driver.reconcile([job(1)], {}) == Reconciled(kept=(1,))
            assert not driver.writes
        # The same by files; the cookie tells that it is the same program.
        source = switch.device.running
        assert source is not None
        (tmp_path / "info").write_bytes(source.source.p4info.SerializeToString())
        (tmp_path / "config").write_bytes(source.source.config)
        files: Any = {"p4info": str(tmp_path / "info"), "config": str(tmp_path / "config")}
        with driving(switch, **files) as driver:
            assert not driver.writes
        # Another one is started in its place.
        other: Any = {"program": str(V1MODEL), "defines": ["AGG_WORDS=24"]}
        with driving(switch, **other) as driver:
            assert (driver.writes["push"], driver.capacity.words) == (1, 24)
            assert driver.reconcile([], {}).removed == ()


def test_programs_that_cannot_be(switch: ServedModel, tmp_path: Path) -> None:
    with ServedModel(None) as empty, driving(empty) as driver:
        assert "it runs no program; give program=FILE.p4, or p4info=" in _why(driver)
    from tests.switchagg.p4runtime.server.programs import EVERYTHING

    (tmp_path / "other.p4").write_text(EVERYTHING)
    with ServedModel(tmp_path / "other.p4", ()) as other, driving(other) as driver:
        assert f"it runs a program without the table {ADMISSION}" in _why(driver)
    with driving(switch, target="tofino") as driver:
        assert "it runs a v1model program, where the switch's spec says target tofino" in _why(driver)
    (tmp_path / "info").write_text("tables { nonsense")
    (tmp_path / "config").write_text("{}")
    with pytest.raises(UsageError, match=r"info is no P4Info \(.*; accepted: what p4c writes"):
        switch.driver(p4info=str(tmp_path / "info"), config=str(tmp_path / "config"))
    with pytest.raises(UsageError, match="No such file or directory"):
        switch.driver(p4info=str(tmp_path / "none"), config=str(tmp_path / "config"))


# ---- encryption ----


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")
def test_over_tls(tmp_path: Path) -> None:
    for name in ("switch", "controller"):
        line = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        line += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        line += ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.pem")]
        subprocess.run(line, check=True, capture_output=True)
    tls = Tls(tmp_path / "switch.pem", tmp_path / "switch.key", tmp_path / "controller.pem")
    with ServedModel(tls=tls) as switch:
        ca = str(tmp_path / "switch.pem")
        own: Any = {"cert": str(tmp_path / "controller.pem"), "key": str(tmp_path / "controller.key")}
        with driving(switch, ca=ca, **own) as driver:
            open_job(driver, job(1))
        for more in ({"ca": ca}, {}, {"ca": str(tmp_path / "controller.pem"), **own}):
            with driving(switch, timeout=1, **more) as driver:
                assert "reading counters: " in _why(driver)
        with driving(switch, ca=str(tmp_path / "none.pem")) as driver:
            assert "none.pem: No such file or directory" in _why(driver)


def test_a_connection_that_others_could_read_is_warned_of(switch: ServedModel) -> None:
    with driving(switch) as driver:
        assert driver.warnings == []
    driver = P4RuntimeDriver(model_switch.spec("192.0.2.1:9559", timeout=0.1))
    try:
        (warning,) = driver.warnings
        assert "P4Runtime to switch rack1 at 192.0.2.1:9559 is not encrypted" in warning
    finally:
        driver.close()


# ---- refusals ----


def _elsewhere(entry: JobEntry, ip: str) -> JobEntry:
    first = entry.workers[0]
    worker = type(first)(first.bit, ip, first.port, first.token)
    return JobEntry(entry.job, entry.base, entry.slots, entry.words, entry.result_token, (worker,))


def test_jobs_that_are_refused_leave_nothing(rng: np.random.Generator) -> None:
    small = (f"AGG_WORDS={WORDS}", "AGG_SLOTS=256", "AGG_ADMISSIONS=32")
    with ServedModel(V1MODEL, small) as switch, driving(switch) as driver:
        entry = job(1)
        open_job(driver, entry)
        before = _state(switch)
        for wrong, message in (
            (job(2, base=256), "slots 256..257 are outside the switch's 256"),
            (job(2, base=64, words=32), "K = 32; this program is compiled for 16"),
            (_elsewhere(job(2, base=64), "10.0.0.77"), "there is no station 10.0.0.77 in the switch's spec"),
            (job(1, base=64), "there is a job 1 already"),
            (job(2, base=64, workers=5), "admission"),
        ):
            with pytest.raises(SwitchError, match=message):
                driver.install_job(wrong)
            assert _state(switch) == before
        open_job(driver, job(2, base=64))
        switch.reduce(entry, 0, parts(rng, entry))


def test_inits_that_nobody_answers(switch: ServedModel) -> None:
    with driving(switch) as driver:
        entry = job(1, slots=4)
        open_job(driver, entry)
        known, unknown = inits(entry), inits(job(2, base=64))
        assert sorted(driver.packets_out([*unknown, *known])) == sorted(known)
        assert driver.counters()["job"] == len(unknown)


def test_many_inits(switch: ServedModel) -> None:
    with driving(switch) as driver:
        open_job(driver, job(1, slots=1024, base=1024))
        assert driver.job_counters(1)["inits"] == 1024


def test_stations_and_strangers(switch: ServedModel) -> None:
    """Frames between hosts pass, by the stations of the spec and else to all of its ports."""
    with driving(switch) as driver:
        driver.reconcile((), {})
    one, two = STATIONS["10.0.0.1"], STATIONS["10.0.0.2"]
    body = one.mac.to_bytes(6, "big") + b"\x88\xb5" + bytes(46)
    known = two.mac.to_bytes(6, "big") + body
    unknown = b"\2\0\0\0\0\x99" + body
    assert switch.device.process(one.port, known, 0.0) == [(two.port, known)]
    flooded = switch.device.process(one.port, unknown, 0.0)
    assert sorted(port for port, _ in flooded) == [each.port for each in STATIONS.values() if each != one]
