"""The session of `switchagg shell`: p4runtime-shell's commands, and helpers for jobs and slots.

    switchagg shell --settings, facts as JSON--> this script, in the shell's environment --gRPC--> switch

It runs where neither switchagg nor a current protobuf is installed, so it imports nothing of ours: names of
tables and counters come in `facts` (`switchagg.cli.shell`). Without an election id it claims nothing: the
switch's controller stays primary, and writes are refused here.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import grpc
import IPython
import p4runtime_sh.shell as sh
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeException

_TIMEOUT = 5.0  # seconds until the server must have answered


class Failure(Exception):
    """The session cannot begin, for a reason that its user can do something about."""


class Worker(NamedTuple):
    """A worker that a job admits.

    Attributes:
        port: its UDP port.
        ingress_port: the port of the switch that it is behind.
    """

    bit: int
    ip: str
    port: int
    ingress_port: int


class Job(NamedTuple):
    """A job on the switch.

    Attributes:
        job_index: its number among the switch's jobs, which gives its counters theirs.
    """

    job: int
    job_index: int
    first_slot: int
    slots: int
    workers: tuple[Worker, ...]


class SlotRange(NamedTuple):
    """Slots that a job has, from the first to the last."""

    first: int
    last: int
    job: int


class Admission(NamedTuple):
    """An entry of the admission table.

    Attributes:
        matches: (value, mask) by field; an exact field has a mask of -1.
        packets: how many packets hit it.
    """

    priority: int
    action: str
    matches: dict[str, tuple[int, int]]
    params: dict[str, int]
    packets: int


class Client(P4RuntimeClient):  # type: ignore[misc]
    """p4runtime-shell's client, which fails with a reason and claims nothing without an election id."""

    settings: dict[str, Any]

    def set_up_stream(self) -> None:
        server = self.settings["server"]
        try:
            self.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=_TIMEOUT)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise Failure(f"no P4Runtime server can be reached at {server}: {_text(error)}") from None
        super().set_up_stream()

    def handshake(self) -> None:
        """Opens the session. Raises `Failure` where the server refuses, or another client is primary."""
        election = self.settings["election"]
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        if election is not None:
            request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)
        answer = self.get_stream_packet("arbitration", timeout=_TIMEOUT)
        if answer is None:
            why = f"no answer within {_TIMEOUT:g} s" if self.stream.is_active() else _text(self.stream)
            raise Failure(f"{self.settings['server']} opens no session for device {self.device_id}: {why}")
        if election is not None and answer.arbitration.status.code != code_pb2.OK:
            seen = answer.arbitration.election_id
            who = "a former" if answer.arbitration.status.code == code_pb2.NOT_FOUND else "another"
            raise Failure(
                f"{who} controller has election id {seen.high << 64 | seen.low}; give"
                " a higher --election to take the switch, or none to read only"
            )

    def get_p4info(self) -> Any:
        """Returns the P4Info of the program that runs. Raises `Failure` where none does."""
        try:
            p4info = super().get_p4info()
        except P4RuntimeException as error:
            raise Failure(f"the switch says of its program: {_text(error.grpc_error)}") from None
        if not p4info.tables:
            raise Failure("the switch runs no program yet")
        return p4info

    def write(self, req: Any) -> Any:
        self._check_writes()
        return super().write(req)

    def write_update(self, update: Any) -> Any:
        self._check_writes()
        return super().write_update(update)

    def _check_writes(self) -> None:
        if self.settings["election"] is None:
            raise PermissionError("this shell only reads; `switchagg shell --election N` may write")


def _text(error: Any) -> str:
    return f"{error.code().name}: {' '.join((error.details() or '').split())}"


class Helpers:
    """The shell's helpers: jobs, slots, admissions, counters.

    Args:
        facts: names and numbers of our P4 programs.
    """

    def __init__(self, p4info: Any, facts: dict[str, Any]) -> None:
        self._p4info, self._facts = p4info, facts
        self._actions = {each.preamble.id: each for each in p4info.actions}

    def jobs(self) -> list[Job]:
        """Returns the jobs on the switch, by id."""
        facts = self._facts
        found: dict[int, Job] = {}
        workers: dict[int, list[Worker]] = {}
        for entry in self._admissions():
            job = entry.matches.get(facts["job"], (0, 0))[0]
            if entry.action == "initialise":
                index = entry.params["tally"] // facts["outcomes_per_job"]
                first = entry.matches[facts["slot"]][0]
                found[job] = Job(job, index, first, 1 << entry.params["slots_log"], ())
            elif "worker" in entry.params:
                ip = str(ipaddress.IPv4Address(entry.matches[facts["source"]][0]))
                bit = entry.params["worker"].bit_length() - 1
                ports = entry.matches[facts["source_port"]][0], entry.matches[facts["ingress_port"]][0]
                workers.setdefault(job, []).append(Worker(bit, ip, *ports))
        return [found[job]._replace(workers=tuple(sorted(workers.get(job, ())))) for job in sorted(found)]

    def slots(self) -> list[SlotRange]:
        """Returns the slots that jobs have, in order."""
        ranges = [
            SlotRange(each.first_slot, each.first_slot + each.slots - 1, each.job) for each in self.jobs()
        ]
        return sorted(ranges)

    def admissions(self, job: int) -> list[Admission]:
        """Returns a job's entries of the admission table, the highest priority first."""
        mine = [each for each in self._admissions() if each.matches.get(self._facts["job"]) == (job, 0xFFFF)]
        if not mine:
            raise LookupError(f"there is no job {job}; jobs: {[each.job for each in self.jobs()]}")
        return sorted(mine, key=lambda each: -each.priority)

    def counters(self, job: int) -> dict[str, int]:
        """Returns a job's counters, under the names that `switchagg stats` has, and each worker's packets.

        They count from when the switch's counters were last cleared.
        """
        facts = self._facts
        counts = dict.fromkeys(facts["names"], 0)
        entries = self.admissions(job)
        for each in entries:
            if each.action == "refuse":
                counts[facts["refusals"][str(each.priority)]] += each.packets
        (mine,) = (each for each in self.jobs() if each.job == job)
        outcomes = self._cells(facts["outcomes"])
        for name, cells in facts["counted"].items():
            counts[name] += sum(
                outcomes.get(mine.job_index * facts["outcomes_per_job"] + cell, 0) for cell in cells
            )
        packets, repeats = self._cells(facts["worker_packets"]), self._cells(facts["worker_repeats"])
        for worker in mine.workers:
            cell = mine.job_index * facts["workers_per_job"] + worker.bit
            counts[f"worker_{worker.bit}_packets"] = packets.get(cell, 0)
            counts[facts["retransmissions"]] += repeats.get(cell, 0)
        for entry in self._entries(facts["deliveries"]):
            if entry.action.startswith("deliver_") and entry.matches.get(facts["job"], (0, 0))[0] == job:
                counts[facts["delivered"]] += entry.packets
        counts["received"] = sum(counts[name] for name in facts["received"])
        return counts

    def _admissions(self) -> Iterator[Admission]:
        return self._entries(self._facts["admission"])

    def _entries(self, table: str) -> Iterator[Admission]:
        """The entries of a table, each with its packets."""
        info = self._named(self._p4info.tables, table)
        if info is None:
            return
        fields = {each.id: each.name for each in info.match_fields}
        packets = {
            _key(each.direct_counter_entry.table_entry): each.direct_counter_entry.data.packet_count
            for each in _read(direct_counter_entry={"table_entry": {"table_id": info.preamble.id}})
        }
        for each in _read(table_entry={"table_id": info.preamble.id}):
            entry = each.table_entry
            action = self._actions[entry.action.action.action_id]
            names = {param.id: param.name for param in action.params}
            yield Admission(
                entry.priority,
                action.preamble.name.rpartition(".")[2],
                {fields[match.field_id]: _value_and_mask(match) for match in entry.match},
                {names[param.param_id]: _number(param.value) for param in entry.action.action.params},
                packets.get(_key(entry), 0),
            )

    def _cells(self, counter: str) -> dict[int, int]:
        """The packets of a counter's cells, without those that count none."""
        info = self._named(self._p4info.counters, counter)
        if info is None:
            raise LookupError(f"the switch's program has no counter {counter}; it is none of ours")
        found = (each.counter_entry for each in _read(counter_entry={"counter_id": info.preamble.id}))
        return {each.index.index: each.data.packet_count for each in found if each.data.packet_count}

    @staticmethod
    def _named(infos: Any, name: str) -> Any:
        """The object of this name; p4c's Tofino backend puts the pipeline's before it."""
        found = {each.preamble.name: each for each in infos}
        behind = (each for known, each in found.items() if known.partition(".")[2] == name)
        return found[name] if name in found else next(behind, None)


def _read(**entity: Any) -> Iterator[Any]:
    for answer in sh.client.read_one(p4runtime_pb2.Entity(**entity)):
        yield from answer.entities


def _key(entry: Any) -> tuple[Any, ...]:
    return entry.priority, *sorted(each.SerializeToString() for each in entry.match)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _value_and_mask(match: Any) -> tuple[int, int]:
    if match.WhichOneof("field_match_type") == "ternary":
        return _number(match.ternary.value), _number(match.ternary.mask)
    return _number(match.exact.value), -1


_BANNER = """switchagg shell: p4runtime-shell on {server}, {mode}.
jobs(), slots(), admissions(job), counters(job); and p4runtime-shell's commands: tables, TableEntry, ..."""


def main() -> int:
    """Runs the session that the JSON object in the only argument describes; returns the exit status."""
    settings = json.loads(sys.argv[1])
    status = 0

    def start(user_ns: dict[str, Any], config: Any, argv: list[str]) -> None:
        nonlocal status
        logging.disable(logging.NOTSET)
        helpers = Helpers(sh.context.p4info, settings["facts"])
        names = ("jobs", "slots", "admissions", "counters")
        user_ns |= {name: getattr(helpers, name) for name in names}
        if settings["code"] is not None:
            sh.global_options["verbose"] = False
            status = _run(settings["code"], user_ns)
            return
        mode = "read only" if settings["election"] is None else f"election id {settings['election']}"
        config.TerminalInteractiveShell.banner1 = _BANNER.format(server=settings["server"], mode=mode) + "\n"
        # Its jedi knows the grammar of Python 3.9 at most.
        config.Completer.use_jedi = False
        IPython.start_ipython(user_ns=user_ns, config=config, argv=argv)

    Client.settings = settings
    sh.P4RuntimeClient, sh.start_ipython = Client, start
    election = settings["election"] or 0
    line = ["--grpc-addr", settings["server"], "--device-id", str(settings["device"])]
    line += ["--election-id", f"{election >> 64},{election & (1 << 64) - 1}"]
    if settings["tls"]:
        line.append("--ssl")
        for option, key in (("--cacert", "ca"), ("--cert", "cert"), ("--private-key", "key")):
            line += [option, settings[key]] if settings[key] is not None else []
    sys.argv = ["switchagg shell", *line]
    logging.disable(logging.CRITICAL)  # the library logs what `Failure` says
    try:
        sh.main()
    except Failure as failure:
        print(f"switchagg shell: {failure}", file=sys.stderr)
        status = 1
    return status


def _run(code: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(code, "<-c>", "exec"), names)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        traceback.print_exception(error)
        return 1
    return 0


def _leave(status: int) -> NoReturn:
    """Ends the process, also where the library's threads would keep it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        code = 1
    _leave(code)
