"""A P4Runtime switch of the P4 model in this process, and workers whose frames go into it and come out."""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.p4program import frames as p4_frames
from switchagg.p4program.program import Station, SwitchAddress
from switchagg.p4runtime.client.spec import P4RuntimeSpec, from_table
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.server.model_device import ModelDevice
from switchagg.p4runtime.server.server import P4RuntimeServer, Tls
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.rules.switch import ChangeKind, SwitchChange
from switchagg.wire.header import Header, Op, decode, encode
from tests.switchagg.p4runtime.server.harness import TNA, V1MODEL

ADDRESS = SwitchAddress(0x0200000000FE, "10.0.0.254")
STATIONS = {f"10.0.0.{n}": Station(n, 0x020000000000 + n) for n in range(1, 9)}
WORDS = 16
"""K of the small programs that most tests run."""

Words = npt.NDArray[np.uint32]
Frames = list[tuple[int, bytes]]

__all__ = ["TNA", "V1MODEL"]


def table(server: str, **more: Any) -> dict[str, Any]:
    """A switch's configuration table, with all stations."""
    stations = [f"{ip},{_text(each.mac)},{each.port}" for ip, each in STATIONS.items()]
    return {
        "url": f"p4runtime://{server}",
        "address": ADDRESS.ip,
        "mac": _text(ADDRESS.mac),
        "stations": stations,
        **more,
    }


def _text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def spec(server: str, name: str = "rack1", **more: Any) -> P4RuntimeSpec:
    """The same, read."""
    return from_table(name, table(server, **more))


def job(number: int, workers: int = 2, *, base: int = 32, slots: int = 2, words: int = WORDS) -> JobEntry:
    """A job whose worker w is at station w + 1."""
    made = tuple(
        WorkerEntry(bit, f"10.0.0.{bit + 1}", 4000 + number, 0x1000 * number + bit) for bit in range(workers)
    )
    return JobEntry(number, base, slots, words, 0x77000000 + number, made)


@functools.cache
def _checked(program: Path, defines: tuple[str, ...]) -> Source:
    return source_of(program, (), [*defines, "AGG_P4RUNTIME=1"])


class ServedModel:
    """A switch behind a server that can be stopped and started again, empty, on the same port."""

    def __init__(
        self,
        program: Path | None = V1MODEL,
        defines: tuple[str, ...] = (f"AGG_WORDS={WORDS}",),
        tls: Tls | None = None,
    ) -> None:
        self._source = None if program is None else _checked(program, defines)
        self.server = P4RuntimeServer(ModelDevice(self._source), "127.0.0.1:0", tls=tls)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    @property
    def address(self) -> str:
        """HOST:PORT of its server."""
        return self.server.address

    @property
    def device(self) -> ModelDevice:
        """The switch."""
        return self.server.device

    def restart(self, *, pause: float = 0.0) -> None:
        """Stops the switch, and starts it with nothing in its tables."""
        address = self.address
        self.server.close()
        time.sleep(pause)
        self.server = P4RuntimeServer(ModelDevice(self._source), address)
        self.server.start()

    def spec(self, name: str = "rack1", **more: Any) -> P4RuntimeSpec:
        """This switch with all stations."""
        return spec(self.address, name, **more)

    def driver(self, name: str = "rack1", **more: Any) -> P4RuntimeDriver:
        """A driver for this switch; the caller closes it."""
        return P4RuntimeDriver(self.spec(name, **more))

    # ---- packets ----

    def send(
        self, entry: JobEntry, bit: int, payload: bytes, port: int | None = None
    ) -> list[tuple[int, bytes]]:
        """A worker's UDP payload, from its station; the frames that leave, with their ports."""
        worker = entry.workers[bit]
        station = STATIONS[worker.ip]
        frame = p4_frames.frame(
            payload, (station.mac, worker.ip, worker.port), (ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port)
        )
        return self.device.process(station.port if port is None else port, frame, self.device.now())

    def contribute(self, entry: JobEntry, bit: int, seq: int, words: Words | None) -> Frames:
        """A worker's contribution; the frames that leave, with their ports."""
        slot = entry.base + seq % entry.slots
        header = Header(Op.SUM, int(words is not None), entry.job, entry.workers[bit].token, seq, slot)
        return self.send(entry, bit, encode(header, words))

    def reduce(self, entry: JobEntry, seq: int, parts: list[Words]) -> None:
        """All workers contribute; asserts that each gets the sum, at its port and addresses."""
        outs: Frames = []
        for bit, words in enumerate(parts):
            assert outs == []
            outs = self.contribute(entry, bit, seq, words)
        expected = sum(parts[1:], parts[0])
        assert sorted(port for port, _ in outs) == [STATIONS[each.ip].port for each in entry.workers]
        for port, frame in outs:
            (worker,) = [each for each in entry.workers if STATIONS[each.ip].port == port]
            assert frame[:6] == STATIONS[worker.ip].mac.to_bytes(6, "big")
            assert int.from_bytes(frame[36:38], "big") == worker.port
            header, words = decode(frame[42 : 34 + int.from_bytes(frame[38:40], "big")])
            assert (header.op, header.job, header.token, header.seq) == (
                Op.RESULT,
                entry.job,
                entry.result_token,
                seq,
            )
            assert words is not None
            np.testing.assert_array_equal(words, expected)


def open_job(driver: P4RuntimeDriver, entry: JobEntry) -> None:
    """Installs a job and initialises its slots."""
    driver.install_job(entry)
    initialise(driver, entry)


def initialise(driver: P4RuntimeDriver, entry: JobEntry) -> None:
    """Sends the INITs of a job and asserts that all are echoed; those that take long are sent again."""
    missing = set(inits(entry))
    for _ in range(20):
        echoes = driver.packets_out(sorted(missing))
        assert set(echoes) <= set(inits(entry))
        if not (missing := missing - set(echoes)):
            return
    raise AssertionError(f"{len(missing)} INITs are not echoed")


def inits(entry: JobEntry) -> list[bytes]:
    """The INITs of a job whose first sequence number is 0."""
    return [
        Header(Op.INIT, 0, entry.job, 0, 2**32 - entry.slots + n, entry.base + n).pack()
        for n in range(entry.slots)
    ]


def parts(rng: np.random.Generator, entry: JobEntry) -> list[Words]:
    """Random words of each worker."""
    return [rng.integers(0, 2**32, entry.words, np.uint32) for _ in entry.workers]


class Changes:
    """The changes that a driver reports, in order."""

    def __init__(self, driver: P4RuntimeDriver) -> None:
        self._heard: queue.Queue[SwitchChange] = queue.Queue()
        self._lost = False
        driver.watch(self._heard.put)

    def next(self, kind: ChangeKind, seconds: float = 60) -> SwitchChange:
        """The next change, which must be of this kind; a lost switch may be lost for other reasons before."""
        change = self._heard.get(timeout=seconds)
        while self._lost and change.kind is ChangeKind.lost and kind is not ChangeKind.lost:
            change = self._heard.get(timeout=seconds)
        self._lost = change.kind is ChangeKind.lost
        assert change.kind is kind, change
        return change

    def none(self) -> bool:
        """True if no other change was reported."""
        return self._heard.empty()


def counted(counters: Mapping[str, int]) -> dict[str, int]:
    """Those that are not zero."""
    return {name: count for name, count in counters.items() if count}


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for a condition, and fails without it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)
