"""The driver on bmv2's `simple_switch_grpc`, where it is installed: what needs no interfaces."""

from __future__ import annotations

import itertools
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.errors import SwitchError
from switchagg.rules.switch import ChangeKind, Reconciled
from tests.switchagg.control.drivers import model_switch
from tests.switchagg.control.drivers.model_switch import Changes, counted, inits, job, open_job
from tests.switchagg.control.drivers.rack import CPU_PORT, compiled

pytestmark = pytest.mark.skipif(
    not (shutil.which("simple_switch_grpc") and shutil.which("p4c-bm2-ss")),
    reason="simple_switch_grpc or p4c-bm2-ss is not on PATH",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bmv2")
    compiled(folder, model_switch.WORDS)
    return {
        "p4info": str(folder / "switchagg_v1model.p4info.txtpb"),
        "config": str(folder / "switchagg_v1model.json"),
    }


class Bmv2:
    """A `simple_switch_grpc` without a program."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.start()

    def start(self) -> None:
        """Starts it with nothing in its tables, and no tables."""
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "3", "--"]
        command += ["--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, port = self.address.split(":")
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def kill(self) -> None:
        """Ends it, whatever it is at."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def driver(self, election: int | None = None, device: int = 3) -> P4RuntimeDriver:
        """A driver for it; the caller closes it."""
        more = {} if election is None else {"election": election}
        return P4RuntimeDriver(model_switch.spec(self.address, device=device, **self._files, **more))


@pytest.fixture
def bmv2(files: dict[str, str]) -> Iterator[Bmv2]:
    made = Bmv2(files)
    try:
        yield made
    finally:
        made.kill()


def test_jobs_and_a_controller_that_comes_back(bmv2: Bmv2) -> None:
    entries = [job(n, base=64 * n, workers=n, slots=8) for n in range(1, 5)]
    first = bmv2.driver()
    try:
        assert (first.target, first.capacity.exact_words, first.capacity.slots) == (
            "bmv2",
            model_switch.WORDS,
            16384,
        )
        assert first.writes["push"] == 1
        first.reconcile((), {})
        for each in entries:
            open_job(first, each)
            assert counted(first.job_counters(each.job)) == {"received": 8, "inits": 8}
        first.remove_job(1)
        first.fence(4, 0b1010)
        # An INIT for a job that is not there is refused, and counted as such.
        assert first.packets_out(inits(entries[0])) == []
        assert counted(first.counters()) == {"received": 40, "inits": 32, "job": 8}
    finally:
        first.close()
    second = bmv2.driver()
    try:
        assert second.reconcile(entries[1:], {4: 0b1010}) == Reconciled(kept=(2, 3, 4))
        assert not second.writes
        assert counted(second.job_counters(3)) == {"received": 8, "inits": 8}
        assert second.reconcile(entries[2:], {}) == Reconciled(kept=(3,), missing=(4,), removed=(2,))
        open_job(second, entries[3])
        open_job(second, entries[0])
        assert second.reconcile([], {}).removed == (1, 3, 4)
    finally:
        second.close()


def test_a_switch_that_restarts(bmv2: Bmv2) -> None:
    driver = bmv2.driver()
    try:
        changes = Changes(driver)
        changes.next(ChangeKind.connected)
        open_job(driver, job(1))
        bmv2.kill()
        changes.next(ChangeKind.lost)
        bmv2.start()
        changes.next(ChangeKind.restarted)
        assert driver.writes["push"] == 2
        assert driver.reconcile([job(1)], {}) == Reconciled(missing=(1,))
        open_job(driver, job(1))
        assert changes.none()
    finally:
        driver.close()


def test_the_controller_with_the_higher_election_id_has_the_switch(bmv2: Bmv2) -> None:
    ids = itertools.count(10)
    first = bmv2.driver(next(ids))
    try:
        heard = Changes(first)
        heard.next(ChangeKind.connected)
        open_job(first, job(1))
        second = bmv2.driver(next(ids))
        try:
            lost = heard.next(ChangeKind.lost)
            assert lost.why == "another controller, of election id 11, has this switch"
            with pytest.raises(SwitchError, match="another controller, of election id 11"):
                first.remove_job(1)
            assert second.reconcile([job(1)], {}) == Reconciled(kept=(1,))
        finally:
            second.close()
        heard.next(ChangeKind.connected)
        assert first.reconcile([job(1)], {}) == Reconciled(kept=(1,))
    finally:
        first.close()


def test_another_device(bmv2: Bmv2) -> None:
    other = bmv2.driver(device=7)
    try:
        with pytest.raises(SwitchError, match=r"switch rack1 .*Error when trying to assign device"):
            other.counters()
    finally:
        other.close()
