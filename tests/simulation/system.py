"""Runs a schedule of a whole system, and judges what came of it.

    workers (sessions, monitors, engines)  <- network ->  switches (packet loops, slot tables)
              |                                              |
              +---- requests, streams, heartbeats --> controller (book, agents, journal) --> store

All of it is the product's but what touches a kernel: sockets, HTTP and gRPC, threads, clocks, files.
"""

from __future__ import annotations

import gc
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint64
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from switchagg.control.jobs.records import OPEN
from switchagg.errors import CollectiveTimeout, SwitchAggError, SwitchError, WorkerLostError
from switchagg.rules.wiring import Attachment, parse_hosts
from tests.simulation import engines
from tests.simulation.control import ControlPlane, SimulatedSwitch
from tests.simulation.engines import Engine, address_of
from tests.simulation.library import Settings, library
from tests.simulation.schedule import Fault, Plan, timed
from tests.simulation.scheduler import SECOND, Endless, Process, Scheduler
from worker_lib import monitor, session
from worker_lib.connect import _join
from worker_lib.secret import Secret
from worker_lib.session import Session

NAME: Final = "job"
LIVES: Final = 3  # of a rank's place: hosts that are there for it
END: Final = 200.0  # virtual seconds, after which everything must have ended
SETTLE: Final = 15.0  # virtual seconds after that, in which everything comes free


@dataclass(frozen=True, slots=True)
class Record:
    """One collective of one rank: what it gave, and what it got."""

    generation: int
    number: int
    places: tuple[int, ...]
    kind: str
    given: np.ndarray[Any, Any]
    got: np.ndarray[Any, Any]


@dataclass(slots=True)
class Worker:
    """One life of a rank."""

    place: int
    life: int
    process: Process
    records: list[Record] = field(default_factory=list)
    error: BaseException | None = None
    ended: bool = False
    joined: bool = False
    raises: bool = False
    losses: int = 0  # that it was told of
    session: Session | None = None

    @property
    def name(self) -> str:
        return f"rank {self.place}" + (f", life {self.life}" if self.life else "")


@dataclass(slots=True)
class Outcome:
    """The result of a run; `failure` is empty if all was right."""

    failure: str = ""
    met: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    timed: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # kind of fault, state of the system -> count
    results: dict[tuple[int, int], str] = field(default_factory=dict)  # by place and number
    packets: int = 0
    workers: int = 0
    seconds: float = 0.0
    switches: int = 0  # between threads
    hash: str = ""
    done: int = 0  # collectives


class System:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        faults: Sequence[Fault],
        only: Sequence[int] | None,
        expected: dict[tuple[int, int], str] | None,
        timeline: Path | None,
        capture: Path | None,
    ) -> None:
        self.plan, self.expected = plan, expected
        settings = Settings(
            seed=plan.seed, switches=len(plan.switches), workers=1 + plan.workers * LIVES, **plan.network
        )
        ids = (c_uint64 * max(1, len(only or ())))(*(only or ()))
        library.checked(
            "system_open", byref(settings), ids, -1 if only is None else len(only),
            None if timeline is None else str(timeline).encode(),
            None if capture is None else str(capture).encode(),
        )  # fmt: skip
        self._told = timeline is not None
        self.scheduler = Scheduler(plan.seed)
        self.scheduler.on_news = self._news
        engines.install(lambda: self.scheduler.current)
        leaves = plan.leaves()
        self.leaf_of = {place: leaves[place % len(leaves)] for place in range(plan.workers)}
        self.switches = [
            SimulatedSwitch(self.scheduler, name, host) for host, (name, _) in enumerate(plan.switches)
        ]
        self.plane = ControlPlane(
            self.scheduler, len(plan.switches), self.switches, self._wiring(), plan.init_loss
        )
        self.plane.install()
        engines.HeartbeatSender.deliver = staticmethod(self.plane.heartbeat)
        self.workers: list[Worker] = []
        self.outcome = Outcome()
        self._faults: Sequence[Fault] = faults
        self.began = 0  # when all ranks had joined
        if plan.early:
            self._expect_faults()

    def _host(self, place: int, life: int) -> int:
        return len(self.plan.switches) + 1 + place * LIVES + life

    def _wiring(self) -> dict[str, Attachment]:
        """In a tree each worker attaches to a leaf by its address: of either tree, if there are two."""
        if not self.plan.tree:
            rng = random.Random(f"bandwidths {self.plan.seed}")
            return {name: Attachment(bandwidth=rng.uniform(1e9, 1e10)) for name, _ in self.plan.switches}
        leaves = self.plan.leaves()
        under = [leaves[:2], leaves[2:]] if len(leaves) > 2 else [leaves]
        hosts: dict[int, list[str]] = {leaf: [] for leaf in leaves}
        for place in range(self.plan.workers):
            for tree in under:
                hosts[tree[place % 2]] += [address_of(self._host(place, life)) for life in range(LIVES)]
        return {
            name: Attachment(parent, parse_hosts(name, hosts[number]) if number in hosts else ())
            for number, (name, parent) in enumerate(self.plan.switches)
        }

    def note(self, text: str) -> None:
        if self._told:
            library.system_note(text.encode())

    def _news(self, host: int) -> None:
        if (engine := Engine.processes.get(host)) is not None:
            engine.news()

    # ------------------------------------------------------------------ workers

    def start_worker(self, place: int) -> None:
        life = sum(worker.place == place for worker in self.workers)
        if life >= LIVES:
            return
        process = Process(self.scheduler, f"rank {place}.{life}", self._host(place, life))
        worker = Worker(place, life, process)
        self.workers.append(worker)
        process.at_end.append(partial(library.worker_die, process.host))
        process.run(partial(self._work, worker), "main")

    def _work(self, worker: Worker) -> None:
        """The program of a rank: the manual's own retry loop."""
        plan = self.plan
        process: Any = worker.process
        process.sleep(process.random.uniform(0, 0.003))
        try:
            worker.session = made = _join(
                f"http://{address_of(self.plane.host)}:1", NAME, worker.place, plan.workers,
                address=address_of(process.host), timeout=plan.timeout, patience=30.0, words=plan.words,
                slots=plan.slots, transport="udp", stripes=plan.stripes, shares=False,
                check=False, secret=Secret(bytearray()), runtime=process, may_group=False,
                deadline=plan.deadline, on_loss="shrink" if plan.shrink else "fail",
            )  # fmt: skip
            worker.joined = True
            self._joined()
            with made as opened:
                self._steps(worker, opened)
                if plan.lingers and not worker.place:
                    process.sleep(plan.lingers)
        except _Raised as error:
            worker.error = error
        except SwitchAggError as error:
            worker.error = error
        finally:
            if not process.dead:
                worker.ended = True
                self.note(
                    f"{worker.name} has ended after {len(worker.records)}: {worker.error or 'in order'}"
                )

    def _steps(self, worker: Worker, opened: Session) -> None:
        plan, step = self.plan, 0
        while True:
            worker.process.sleep(worker.process.random.uniform(0, plan.think))
            calls = [
                self._call(worker, opened, step + ahead)
                for ahead in range(min(plan.depth, plan.steps - step) or 1)
            ]
            works = []
            try:
                for call in calls:
                    works.append(call.start())
                last = [call.finish(work) for call, work in zip(calls, works, strict=True)][-1]
            except WorkerLostError as error:
                if worker.raises:
                    raise _Raised from None
                if not plan.shrink:
                    raise
                self.note(f"{worker.name}: {error}")
                worker.losses += 1
                if worker.losses > 2 * plan.workers:
                    raise AssertionError(
                        f"{worker.losses} losses of {plan.workers} ranks: {error}"
                    ) from error
                step = self._agreed(worker, step)
                continue
            if worker.raises:
                raise _Raised
            step += len(calls)
            if last:  # some rank is done, and all read it in the same collective
                return

    def _agreed(self, worker: Worker, step: int) -> int:
        """The step to go on with, after an interruption: all ranks have completed the same."""
        return max([step, *(int(record.given[0]) + 1 for record in worker.records[-self.plan.depth :])])

    def _call(self, worker: Worker, opened: Session, step: int) -> _Call:
        return _Call(self, worker, opened, step)

    # ------------------------------------------------------------------ faults

    def _expect_faults(self) -> None:
        for fault in self._faults:
            self.scheduler.at(self.scheduler.after(fault.at), partial(self._happen, fault))
        self._faults = ()

    def _joined(self) -> None:
        if not self.began and all(worker.joined for worker in self.workers):
            self.began = self.scheduler.now
            self._expect_faults()

    def _happen(self, fault: Fault) -> None:
        scheduler, plan = self.scheduler, self.plan
        state = self._state()
        key = fault.kind, state
        self.outcome.timed[key] = self.outcome.timed.get(key, 0) + 1
        self.note(f"=== {fault} ({state})")

        def later(call: Callable[[], None]) -> None:
            if fault.seconds:
                scheduler.at(scheduler.after(fault.seconds), call)

        alive = [
            each
            for each in self.workers
            if each.place == fault.who and not each.process.dead and not each.ended
        ]
        worker = alive[-1] if alive else None
        switch = self.switches[fault.who] if "switch" in fault.kind.split(" ")[0] else None
        match fault.kind:
            case "worker killed" if worker is not None:
                worker.process.kill()
            case "worker raises" if worker is not None:
                worker.raises = True
            case "worker stopped" if worker is not None:
                self._stop(worker.process, worker.process.host, fault.seconds)
            case "worker comes back" if worker is None and plan.uniform and not self._over():
                self.start_worker(fault.who)
            case "switch killed" | "switch and controller killed" if switch is not None:
                switch.die()
                later(switch.start)
                if fault.kind == "switch and controller killed":
                    self.plane.die()
                    scheduler.at(scheduler.after(min(fault.seconds or 0.5, 3.0)), self.plane.start)
            case "switch stopped" if switch is not None:
                library.system_stop(switch.host, scheduler.after(fault.seconds))
            case "switch drained" if switch is not None:
                self._drain(switch.name, True)
                later(partial(self._drain, switch.name, False))
            case "controller killed":
                self.plane.die()
                scheduler.at(scheduler.after(min(fault.seconds, 4.0)), self.plane.start)
            case "controller stopped" if self.plane.process is not None:
                self._stop(self.plane.process, self.plane.host, fault.seconds)
            case "worker cut from its switch" if worker is not None:
                for each in self.switches:
                    library.system_cut(worker.process.host, each.host, 1)
                    later(partial(library.system_cut, worker.process.host, each.host, 0))
            case "worker cut from the controller" if worker is not None:
                self.plane.cut(worker.process.host, self.plane.host, True)
                later(partial(self.plane.cut, worker.process.host, self.plane.host, False))
            case "switch cut from the controller" if switch is not None:
                self.plane.cut(switch.host, self.plane.host, True)
                later(partial(self.plane.cut, switch.host, self.plane.host, False))
            case "store fails":
                self.plane.store.error = "No space left on device"
                later(partial(setattr, self.plane.store, "error", ""))
            case "store stalls":
                self.plane.store.stalled_until = scheduler.after(fault.seconds)

    def _stop(self, process: Process, host: int, seconds: float) -> None:
        process.stopped_until = self.scheduler.after(seconds)
        library.system_stop(host, process.stopped_until)

    def _drain(self, name: str, draining: bool) -> None:
        process, controller = self.plane.process, self.plane.controller
        if process is None or controller is None or process.dead:
            return

        def program() -> None:
            try:
                (controller.drain_switch if draining else controller.undrain_switch)(OPEN, name)
            except SwitchError as error:
                self.note(f"drain: {error}")

        process.run(program, "drain")

    def _state(self) -> str:
        """The state of the job, as the controller's book has it."""
        controller = self.plane.controller
        if controller is None:
            return "no controller"
        jobs = controller._book.table.jobs()
        if not jobs:
            return "before the job" if not any(worker.ended for worker in self.workers) else "after the job"
        job = jobs[-1]
        if job.failover is not None:
            return "failover, opening" if job.failover.first is not None else "failover, collecting"
        if job.change is not None and job.state.value == "running":
            return "running, a pause is wanted"
        if job.state.value == "moving":
            opening = job.generation is not None and not job.generation.open
            if opening:
                return "change, opening"
            return (
                "change, finishing"
                if job.change and job.change.complete_to is not None
                else "change, collecting"
            )
        if job.state.value == "running" and any(member.admission is None for member in job.joined()):
            return "opening"
        return str(job.state.value)

    # ------------------------------------------------------------------ the run

    def run(self) -> Outcome:
        plan, scheduler, outcome = self.plan, self.scheduler, self.outcome
        begun = scheduler.now
        self.plane.start()
        for place in range(plan.workers):
            self.start_worker(place)
        try:
            scheduler.run(begun + int(END * SECOND), self._over)
            outcome.seconds = (scheduler.now - (begun if plan.early else self.began)) / SECOND
            self._raise_errors()
            self._judge()
            self._settle()
        except (_Wrong, Endless) as error:
            outcome.failure = str(error)
            self.note(f"WRONG: {error}")
        outcome.met, outcome.cells = library.met(), library.cells()
        outcome.packets, outcome.workers = int(library.system_packets()), len(self.workers)
        outcome.switches = scheduler.switches
        outcome.hash = f"{library.system_hash():016x}"
        self._close()
        return outcome

    def _over(self) -> bool:
        return all(worker.ended or worker.process.dead for worker in self.workers)

    def _raise_errors(self) -> None:
        for thread, error in self.scheduler.errors:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            line = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else ""
            raise _Wrong(f"{thread} ended with {error!r} at {line}")

    def _settle(self) -> None:
        """Everything comes free: slots in the controller's book, and jobs in the switches."""
        scheduler = self.scheduler
        for host in range(len(self.plan.switches)):
            self.plane.cut(host, self.plane.host, False)
        for worker in self.workers:
            self.plane.cut(worker.process.host, self.plane.host, False)
        self.plane.store.error, self.plane.store.stalled_until = "", 0
        if self.plane.process is not None:
            self.plane.process.stopped_until = 0
        for switch in self.switches:
            switch.start()
        self.plane.start()
        scheduler.run(scheduler.now + int(SETTLE * SECOND), self._free)
        self._raise_errors()
        if not self._free():
            controller = self.plane.controller
            assert controller is not None
            jobs = [(job.name, job.state.value, job.why) for job in controller._book.table.jobs()]
            held = {switch.name: sorted(switch.jobs) for switch in self.switches if switch.jobs}
            raise _Wrong(f"slots are leaked: jobs {jobs}, on switches {held}")

    def _free(self) -> bool:
        controller = self.plane.controller
        if controller is None or any(switch.jobs for switch in self.switches):
            return False
        slots = controller.queries.slots(OPEN)
        return slots["free"] == slots["capacity"] and not controller._book.table.jobs()

    def _close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
        self.plane.die()
        library.system_close()
        session._sessions.clear()
        monitor._monitors.clear()

    # ------------------------------------------------------------------ the judge

    def _judge(self) -> None:
        for worker in self.workers:
            if not worker.ended and not worker.process.dead:
                raise _Wrong(
                    f"{worker.name} has not ended after {END:.0f} s, with {len(worker.records)} collectives"
                )
        self._judge_sums()
        self._judge_ends()

    def _judge_sums(self) -> None:
        """Of each collective, all ranks that hold its result hold the same one, the right one."""
        plan = self.plan
        groups: dict[tuple[Any, ...], list[tuple[Worker, Record]]] = {}
        for worker in self.workers:
            for record in worker.records:
                groups.setdefault((record.generation, record.number), []).append((worker, record))
        self.outcome.done = len(groups)
        calm = not any(
            worker.process.dead or worker.life or worker.raises for worker in self.workers
        ) and all(len(record.places) == plan.workers for worker in self.workers for record in worker.records)
        for (generation, number), holders in groups.items():
            first, one = holders[0]
            what = f"collective {number} of generation {generation}"
            for worker, record in holders:
                if record.places != one.places or record.kind != one.kind:
                    raise _Wrong(
                        f"{what}: {worker.name} has {record.kind} of {record.places}, "
                        f"{first.name} {one.kind} of {one.places}"
                    )
                if record.got.tobytes() != one.got.tobytes():
                    raise _Wrong(f"{what}: {worker.name} holds other bits than {first.name}")
            step = int(one.given[0])
            given = [_input(plan, place, step, one.kind) for place in one.places]
            if plan.uniform:
                # Ranks that came back count steps of their own.
                if len(holders) == len(one.places):
                    given = [record.given for _, record in sorted(holders, key=lambda each: each[0].place)]
                    _check_sum(what, one, given)
            else:
                _check_sum(what, one, given)
            if calm and not plan.uniform:
                for worker, record in holders:
                    digest = hashlib.sha256(record.got.tobytes()).hexdigest()
                    self.outcome.results[worker.place, step] = digest
                    if (
                        self.expected is not None
                        and self.expected.get((worker.place, step), digest) != digest
                    ):
                        raise _Wrong(f"{what}: {worker.name} holds other bits than in the undisturbed run")

    def _judge_ends(self) -> None:
        """Every rank ends well, where nothing has happened that may end it."""
        plan = self.plan
        for worker in self.workers:
            if worker.process.dead or worker.raises or worker.error is None:
                continue
            if reason := self._excuse(worker):
                self.note(f"{worker.name} may end with an error: {reason}")
                continue
            raise _Wrong(f"{worker.name} ended with {type(worker.error).__name__}: {worker.error}")
        if not plan.faults:
            ends = {len(worker.records) for worker in self.workers}
            if len(ends) != 1:
                raise _Wrong(f"ranks completed {sorted(ends)} collectives")

    def _excuse(self, worker: Worker) -> str:
        """The fault that explains why a rank ended with an error; empty if none does.

        One fault alone excuses what it must; several at once excuse any error but a wrong or a late one.
        """
        plan = self.plan
        said = str(worker.error)
        if any(text in said for text in _NEVER):
            return ""
        if worker.joined and "did not take job" in said and "no switch has taken it" not in said:
            return ""  # it has not been tried again
        if "has left in a failover" in str(worker.error):
            return "nobody can send again what a rank that has left had sent"
        if not worker.joined and self._waits_for_the_dead(worker):
            return "it was told which ranks had died before the job had begun"
        faults = [fault for fault in plan.faults if not self._is_harmless(fault)]
        gone = [each.who for each in faults if each.kind in _DEATHS and not each.seconds]
        parents = {parent for _, parent in plan.switches}
        if isinstance(worker.error, CollectiveTimeout):
            # Its leaf answers, and the controller cannot know that the root does not forward.
            root = any(plan.switches[who][0] in parents for who in gone)
            return "the root is gone for good" if root and (len(plan.switches) < 4 or len(gone) > 1) else ""
        losses = {fault.who for fault in faults if fault.kind in ("worker killed", "worker raises")}
        drains = [fault for fault in faults if fault.kind == "switch drained"]
        if plan.shrink and drains and len(drains) + len(losses) == len(faults) and worker.place not in losses:
            together = "were lost together" in str(worker.error)
            return "a rank was lost after its job had been removed from a drained switch" if together else ""
        if len(faults) != 1:
            return "several faults" if faults else ""
        (fault,) = faults
        mine = fault.who == worker.place
        if not worker.joined and (plan.early or worker.life):
            return "the job had not begun, or had ended"
        if fault.kind in ("worker killed", "worker raises"):
            return "a rank was lost" if mine or not plan.shrink else ""
        if fault.kind.startswith(("worker stopped", "worker cut")):
            silent = fault.seconds > plan.deadline - 0.5
            return "a rank was silent" if silent and (mine or not plan.shrink) else ""
        if fault.kind in _DEATHS:
            if len(plan.switches) == (3 if plan.tree else plan.stripes):
                return "there is no other switch"
            if any(other.ended and other.error is None for other in self.workers):
                return "a rank had left, and its contributions were on the switch"
        return ""

    def _waits_for_the_dead(self, worker: Worker) -> bool:
        """True where a join ended since ranks that it names, and no others, had died without having joined.

        A join is owed to a rank while the processes of all others are there.
        """
        missing = re.match(r"ranks? ([\d, ]+) of job '\w+' did not join within", str(worker.error))
        if missing is None:
            return False
        never = {each.place for each in self.workers} - {
            each.place for each in self.workers if each.joined or not each.process.dead
        }
        return {int(place) for place in missing[1].split(",")} <= never

    def _is_harmless(self, fault: Fault) -> bool:
        """True for a fault that may end nobody, whatever else happens."""
        if fault.kind.startswith("store"):
            return not self.plan.has(
                "controller killed", "controller stopped", "switch and controller killed"
            )
        short = fault.seconds < self.plan.deadline / 4
        return fault.kind == "switch stopped" or (
            short and fault.kind in ("worker stopped", "worker cut from its switch")
        )


class _Raised(Exception):
    """A rank's own exception."""


class _Wrong(Exception):
    """Something must not be."""


class _Call:
    """One collective of a rank."""

    def __init__(self, system: System, worker: Worker, opened: Session, step: int) -> None:
        self._system, self._worker, self._session = system, worker, opened
        self._step = step
        plan = system.plan
        self.kind = "exact int32" if plan.uniform else _kind_of(plan, step)
        self.given = _input(plan, worker.place, step, self.kind)
        self.given[-1] = step + 1 >= plan.steps
        self._sent = self.given.copy()

    def start(self) -> Any:
        options: dict[str, Any] = {} if "int" in self.kind else {"bits": 32} if "32-bit" in self.kind else {}
        return self._session.allreduce(self._sent, op="sum", async_op=True, **options)

    def finish(self, work: Any) -> bool:
        """Waits; returns True if some rank is done."""
        got = work.wait()
        native = work._native
        if native is None:  # it is alone
            return bool(got[-1] > 0.5)
        state = self._session._state
        generation = state.monitor.generations[native.generation]
        self._worker.records.append(
            Record(
                generation.job, native.call_number, generation.places, self.kind, self.given, np.array(got)
            )
        )
        return bool(got[-1] > 0.5)


_NEVER: Final = ("the controller said", "monitor failed", "is no event", "is no switchagg controller")
"""Texts of errors that no fault excuses."""
_DEATHS: Final = ("switch killed", "switch and controller killed")
_KINDS: Final = ("exact int32", "float32", "float32 in 32-bit lanes", "sparse float32")


def _kind_of(plan: Plan, step: int) -> str:
    return _KINDS[(plan.seed + step * 7) % len(_KINDS)]


def _input(plan: Plan, place: int, step: int, kind: str) -> np.ndarray[Any, Any]:
    """A rank's tensor: the first element is the step, the last says that it is done."""
    size = 40 if plan.uniform else 20 + (plan.seed * 31 + step * 97) % 700
    rng = np.random.default_rng((plan.seed, place, step))
    if kind == "exact int32":
        found: np.ndarray[Any, Any] = rng.integers(-(1 << 20), 1 << 20, size, np.int32)
    else:
        found = (rng.standard_normal(size) * 2.0 ** rng.integers(-20, 20)).astype(np.float32)
        if kind == "sparse float32":
            found[rng.random(size) < 0.9] = 0
    found[0] = step
    found[-1] = step + 1 >= plan.steps
    return found


def _check_sum(what: str, record: Record, given: Sequence[np.ndarray[Any, Any]]) -> None:
    if record.kind == "exact int32":
        wide = sum(each.astype(np.int64) for each in given)
        if not np.array_equal(np.asarray(wide, np.int32), record.got):
            at = int(np.flatnonzero(np.asarray(wide) != record.got)[0])
            raise _Wrong(f"{what} is a wrong sum: element {at} is {record.got[at]}")
        return
    exact = np.sum([each.astype(np.float64) for each in given], axis=0)
    magnitudes = np.sum([np.abs(each.astype(np.float64)) for each in given], axis=0)
    bound = magnitudes * 2.0**-11 if "32-bit" not in record.kind else magnitudes.max() * 2.0**-20
    if not np.all(np.abs(exact - record.got) <= bound + 1e-30):
        at = int(np.argmax(np.abs(exact - record.got) - bound))
        raise _Wrong(
            f"{what} is a wrong sum: element {at} is {record.got[at]!r}; accepted: about {exact[at]!r}"
        )


def run(
    plan: Plan,
    *,
    faults: Sequence[Fault] | None = None,
    only: Sequence[int] | None = None,
    expected: dict[tuple[int, int], str] | None = None,
    timeline: Path | None = None,
    capture: Path | None = None,
) -> Outcome:
    """Runs a plan once. `faults` and `only` are those that may happen; None for all."""
    system = System(plan, plan.faults if faults is None else faults, only, expected, timeline, capture)
    return system.run()


def run_both(plan: Plan, **options: Any) -> Outcome:
    """Runs a plan undisturbed, and then with its faults; bits must be the same where no rank was lost."""
    first = run(plan.undisturbed())
    if first.failure:
        first.failure = f"undisturbed: {first.failure}"
        return first
    found = run(timed(plan, first.seconds), expected=first.results, **options)
    gc.collect(0)
    return found
