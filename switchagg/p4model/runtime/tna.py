"""The Tofino 1 native architecture: two pipelines with a traffic manager between.

    in ─ parser ─ ingress ─ deparser ─┬─ dropped
         ▲   ▲                        ├─ mirrored: as it came, behind a header ──┐
         │   └─ resubmitted ──────────┤                                          ▼
         │                            ├─ unicast, multicast ─► parser ─ egress ─ deparser ─► out
         │                            └─ bypass_egress ────────────────────────────────────► out
         └─────────────── recirculation ports ◄──────────────────────────────────────────────┘

Before the packet a parser finds intrinsic metadata: at ingress ingress_intrinsic_metadata_t and 64 bits of
port metadata (or what Resubmit.emit gave), at egress egress_intrinsic_metadata_t.

Where tna.p4 leaves things open: fields are zero at first; an egress port or multicast group that was never
written sends nothing, and a mirror, resubmit or digest type that was never written equals none; a packet
whose ingress parser rejects it is dropped, unless the ingress control reads parser_err; egress never drops
for that.

Bits 8 and 7 of a port are the number of its pipe. Each of the four pipes has registers and buckets of meters
of its own, with the same table entries and rates; a counter counts the packets of all. Translated code names
registers by globals, which are those of the pipe that runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from switchagg.p4entities.counters import Register
from switchagg.p4entities.matches import TableError
from switchagg.p4entities.replication import Replication
from switchagg.p4model import ir, walk
from switchagg.p4model.errors import P4Error, unsupported
from switchagg.p4model.runtime.blocks import translate
from switchagg.p4model.runtime.emit import Module
from switchagg.p4model.runtime.hashes import to_bytes
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4model.runtime.tna_externs import (
    DirectRegister,
    PacketState,
    TofinoTarget,
    checksum_update,
)
from switchagg.p4model.runtime.values import Exit, PacketIn, PacketOut, ParserReject
from switchagg.p4model.types import FieldsType

PIPE_BITS: Final = 7
PIPES: Final = 4
# The port of each pipe that leads back into it.
RECIRCULATION_PORTS: Final = (68, 196, 324, 452)
CPU_PORT: Final = 64
# Counters and meters see a packet with its frame check sequence.
_FRAME_CHECK_BYTES: Final = 4
_INTRINSIC_BYTES: Final = 8
_PORT_METADATA_BYTES: Final = 8

# Values of parser_err. A packet that ends too soon is a partial header and a source out of reach.
_PARSER_ERRORS: Final = {"NoMatch": 1, "PacketTooShort": 0x22, "CounterRange": 4, "ParserTimeout": 16}


class _Unset(int):
    """Zero, for a field that hardware can tell from one that was written."""


_UNSET: Final = _Unset(0)
_TYPES: Final = ("f_mirror_type", "f_resubmit_type", "f_digest_type")
_TARGETS: Final = ("f_ucast_egress_port", "f_mcast_grp_a", "f_mcast_grp_b")


@dataclass(slots=True)
class _Arrival:
    port: int
    data: bytes
    resubmitted: bytes | None = None


@dataclass(slots=True)
class _Departure:
    port: int
    data: bytes
    fields: dict[str, int] = field(default_factory=dict)


class TofinoSwitch(ModelSwitch):
    """A Tofino 1.

    Attributes:
        port_metadata: the 64 bits that ports put before their packets; zeros for others.
        recirculation_ports: ports whose packets come in again.
        cpu_port: where `copy_to_cpu` sends.
        pruned: for each level-2 exclusion id, the ports that get no copy of nodes whose rid the packet names.
    """

    _state: PacketState

    def __init__(self, program: ir.Program, *, seed: int = 0, traced: bool = False) -> None:
        super().__init__(program, seed=seed, traced=traced)
        self.port_metadata: dict[int, bytes] = {}
        self.recirculation_ports = set(RECIRCULATION_PORTS)
        self.cpu_port = CPU_PORT
        self.pruned: dict[int, set[int]] = {}
        self.replication = Replication(min_group=0)
        self._state = PacketState(self.random, self.digests)
        self._target = TofinoTarget()
        module = Module(program, self._target, traced=traced)
        module.namespace |= {"RT": self._state, "checksum_update": checksum_update}
        for each in program.instances:
            module.extern(each)
        packages = [each for each in program.main.args.values() if isinstance(each, ir.PackageInstance)]
        several = len({id(each) for each in packages}) > 1
        built = []
        # The pipe of each extern object that translation made, by its global; other pipes have copies.
        self._homes: dict[str, int] = {}
        for number, each_pipe in enumerate(packages):
            module.prefix = f"{each_pipe.name}." if several else ""
            built.append(pipeline(module, each_pipe))
            for known in module.externs.values():
                self._homes.setdefault(known, number)
        if not built:
            raise P4Error("main has no pipeline", program.main.location)
        self._finish(module)
        self._pipes = [pipe(module) for pipe in built]
        self._start = self._target.parser_units
        self._registers = {
            known: module.namespace[known]
            for known in self._homes
            if isinstance(module.namespace[known], Register | DirectRegister)
        }
        self._banks: dict[int, dict[str, Any]] = {}

    def register(self, name: str, pipe: int | None = None) -> Register:
        """Returns the register of this name in a pipe. Raises TableError.

        Args:
            pipe: 0..3; None for the first pipe that runs its part of the program.
        """
        found = super().register(name)
        if pipe is None:
            return found
        if not 0 <= pipe < PIPES:
            raise TableError(f"pipe is {pipe}; accepted: 0..{PIPES - 1}")
        known = next(known for known, each in self._registers.items() if each is found)
        made: Register = self._bank(pipe)[known]
        return made

    def _bank(self, pipe: int) -> dict[str, Any]:
        """Returns the registers of a pipe by their globals; makes them at first use."""
        if pipe not in self._banks:
            self._banks[pipe] = {
                known: each if self._homes[known] == pipe else _fresh(each, pipe)
                for known, each in self._registers.items()
            }
        return self._banks[pipe]

    def _enter(self, port: int) -> None:
        """Makes the pipe of a port the one that runs."""
        pipe = port >> PIPE_BITS
        if pipe != self._state.pipe:
            self.module.namespace.update(self._bank(pipe))
            self._state.pipe = pipe

    def _arrival(self, port: int, data: bytes) -> _Arrival:
        return _Arrival(port, data)

    def _pipe(self, port: int) -> Pipe:
        number = port >> PIPE_BITS
        return self._pipes[number] if number < len(self._pipes) else self._pipes[0]

    def _parse(
        self, gress: Gress, things: dict[str, Any], port: int, prefix: bytes, data: bytes
    ) -> int | None:
        """Runs the parser; the error's number, or None."""
        packet = PacketIn(prefix + data)
        things["packet"] = packet
        self._state.begin(packet, len(data) + _FRAME_CHECK_BYTES)
        for unit in self._start:
            if hasattr(unit, "start"):
                unit.start()
        channel = (port & 0x7F) >> 2
        chosen = gress.parsers[channel] if channel < len(gress.parsers) else gress.parsers[0]
        stage = chosen or gress.parsers[0]
        assert stage is not None
        things["parser"].f_global_tstamp = int(self.now * 1e9) & 0xFFFFFFFFFFFF
        error = None
        try:
            stage.run(things)
        except ParserReject as reject:
            error = reject.code
            name = self.program.errors[error]
            self._note("error", f"parser: {name}")
            things["parser"].f_parser_err = _PARSER_ERRORS.get(name, 1)
        self._state.parsed()
        return error

    def _deparse(self, stage: Stage, things: dict[str, Any]) -> bytes:
        out = things["out"] = PacketOut()
        for name in _TYPES:
            # A field that was never written selects nothing, not even zero.
            if type(getattr(things["deparser"], name, None)) is _Unset:
                setattr(things["deparser"], name, -1)
        with contextlib.suppress(Exit):
            stage.run(things)
        return out.finish(things["packet"].rest())

    # ---- ingress ----

    def _run_ingress(self, arrival: _Arrival) -> None:
        self._enter(arrival.port)
        gress = self._pipe(arrival.port).ingress
        state = self._state
        things = {role: make() for role, make in gress.classes.items()}
        _unset(things["manager"], _TARGETS)
        _unset(things["deparser"], _TYPES)
        again = arrival.resubmitted
        self._note(
            "packet",
            f"in at port {arrival.port}, {len(arrival.data)} bytes{'' if again is None else ', resubmitted'}",
        )
        intrinsic = gress.classes["intrinsic"]()
        intrinsic.f_resubmit_flag = 0 if again is None else 1
        intrinsic.f_ingress_port = arrival.port
        intrinsic.f_ingress_mac_tstamp = int(self.now * 1e9) & 0xFFFFFFFFFFFF
        intrinsic.valid = True
        second = self.port_metadata.get(arrival.port, b"") if again is None else again
        prefix = intrinsic.bits().to_bytes(_INTRINSIC_BYTES, "big") + second.ljust(
            _PORT_METADATA_BYTES, b"\0"
        )
        error = self._parse(gress, things, arrival.port, prefix, arrival.data)
        if error is not None and not gress.reads_errors:
            self._note("drop", "the ingress parser rejected it")
            return
        with contextlib.suppress(Exit):
            gress.control.run(things)
        manager, deparser = things["manager"], things["deparser"]
        data = self._deparse(gress.deparser, things)
        for session, header in state.mirrors:
            self._mirror(session, header, arrival.data)
        if manager.f_copy_to_cpu and not deparser.f_drop_ctl & 2:
            self._departures.append(_Departure(self.cpu_port, data))
        if deparser.f_drop_ctl & 1:
            self._note("drop", "drop_ctl at ingress")
            return
        if state.resubmit is not None and again is None:
            bits, value = state.resubmit
            self._note("send", "resubmitted")
            self._arrivals.append(_Arrival(arrival.port, arrival.data, to_bytes(value, bits)))
            return
        self._forward(manager, data)

    def _forward(self, manager: Any, data: bytes) -> None:
        sent = False
        for group in (manager.f_mcast_grp_a, manager.f_mcast_grp_b):
            if type(group) is not _Unset:
                sent = True
                self._replicate(group, manager, data)
        port = manager.f_ucast_egress_port
        if type(port) is not _Unset:
            sent = True
            if manager.f_bypass_egress:
                self._send(port, data)
            else:
                self._departures.append(_Departure(port, data, {"f_egress_qid": manager.f_qid}))
        if not sent:
            self._note("drop", "neither an egress port nor a multicast group")

    def _replicate(self, group: int, manager: Any, data: bytes) -> None:
        pruned = self.pruned.get(manager.f_level2_exclusion_id, set())
        first = True
        count = 0
        for node, port in self.replication.copies(group):
            if node.xid is not None and node.xid == manager.f_level1_exclusion_id:
                continue
            if node.rid == manager.f_rid and port in pruned:
                continue
            count += 1
            if manager.f_bypass_egress:
                self._send(port, data)
            else:
                fields = {"f_egress_rid": node.rid, "f_egress_rid_first": int(first)}
                self._departures.append(_Departure(port, data, fields))
            first = False
        self._note("send", f"multicast group {group}: {count} copies")

    def _mirror(self, session: int, header: tuple[int, int], data: bytes) -> None:
        target = self.replication.session(session)
        if target is None:
            self._note("drop", f"mirror: there is no session {session}")
            return
        bits, value = header
        copy = (to_bytes(value, bits) + data)[: target.length]
        if target.port is not None:
            self._note("send", f"mirrored to port {target.port}")
            self._departures.append(_Departure(target.port, copy))
        if target.group is not None:
            for node, port in self.replication.copies(target.group):
                self._departures.append(_Departure(port, copy, {"f_egress_rid": node.rid}))

    # ---- egress ----

    def _run_egress(self, packet: _Departure) -> None:
        self._enter(packet.port)
        gress = self._pipe(packet.port).egress
        things = {role: make() for role, make in gress.classes.items()}
        _unset(things["deparser"], _TYPES)
        intrinsic = gress.classes["intrinsic"]()
        intrinsic.f_egress_port = packet.port
        intrinsic.f_pkt_length = len(packet.data) & 0xFFFF
        for name, value in packet.fields.items():
            setattr(intrinsic, name, value)
        intrinsic.valid = True
        prefix = PacketOut()
        intrinsic.emit(prefix)
        self._parse(gress, things, packet.port, prefix.finish(), packet.data)
        with contextlib.suppress(Exit):
            gress.control.run(things)
        data = self._deparse(gress.deparser, things)
        drop = things["deparser"].f_drop_ctl
        if not drop & 4:
            for session, header in self._state.mirrors:
                self._mirror(session, header, data)
        if drop & 1:
            self._note("drop", "drop_ctl at egress")
            return
        self._send(packet.port, data)

    def _send(self, port: int, data: bytes) -> None:
        if port in self.recirculation_ports:
            self._note("send", f"recirculated through port {port}")
            self._arrivals.append(_Arrival(port, data))
            return
        self._note("send", f"out at port {port}, {len(data)} bytes")
        self._out.append((port, data))


def _unset(metadata: Any, names: Sequence[str]) -> None:
    for name in names:
        if hasattr(metadata, name):
            setattr(metadata, name, _UNSET)


def _fresh(register: Register | DirectRegister, pipe: int) -> Register | DirectRegister:
    return register.fresh() if isinstance(register, Register) else register.fresh(pipe)


# Types of parameters that the architecture fills in; the first two others are headers and user metadata.
_ROLES: Final = {
    "packet_in": "packet",
    "packet_out": "out",
    "ingress_intrinsic_metadata_t": "intrinsic",
    "ingress_intrinsic_metadata_for_tm_t": "manager",
    "ingress_intrinsic_metadata_from_parser_t": "parser",
    "ingress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_t": "intrinsic",
    "egress_intrinsic_metadata_from_parser_t": "parser",
    "egress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_for_output_port_t": "output",
}


@dataclass(slots=True)
class Stage:
    """A parser, control or deparser: its function, and what each of its parameters is."""

    function: Callable[..., Any]
    roles: tuple[str, ...]

    def run(self, things: dict[str, Any]) -> None:
        """Runs it on the objects that its roles name."""
        self.function(*[things[role] for role in self.roles])


@dataclass(slots=True)
class Gress:
    """One half of a pipeline. `classes` makes the objects that the roles name."""

    parsers: list[Stage | None]
    control: Stage
    deparser: Stage
    classes: dict[str, Callable[[], Any]]
    reads_errors: bool


@dataclass(slots=True)
class Pipe:
    """A pipeline."""

    ingress: Gress
    egress: Gress


def pipeline(module: Module, package: ir.PackageInstance) -> Callable[[Module], Pipe]:
    """Translates a pipeline; what makes it of the compiled module."""
    args = list(package.args.values())
    if len(args) != 6:
        raise unsupported(f"the package {package.type}", package.location)
    halves = []
    for side, (parsers, control, deparser) in (("ingress", args[:3]), ("egress", args[3:])):
        listed = list(parsers.args.values()) if isinstance(parsers, ir.PackageInstance) else [parsers]
        if not isinstance(control, ir.ControlInstance) or not isinstance(deparser, ir.ControlInstance):
            raise unsupported(f"the package {package.type}", package.location)
        halves.append(_half(module, side, listed, control, deparser))
    return lambda made: Pipe(halves[0](made), halves[1](made))


def _half(
    module: Module,
    side: str,
    parsers: Sequence[ir.Value],
    control: ir.ControlInstance,
    deparser: ir.ControlInstance,
) -> Callable[[Module], Gress]:
    names: list[tuple[str, tuple[str, ...]] | None] = []
    classes: dict[str, FieldsType] = {}
    for each in [*parsers, control, deparser]:
        if isinstance(each, ir.ParserInstance | ir.ControlInstance):
            names.append((translate(module, each), _roles(each, classes)))
        else:
            names.append(None)
    # The architecture has these also where the program leaves the parameter out.
    for type_name, role in _ROLES.items():
        found = module.program.types.get(type_name)
        if role not in classes and isinstance(found, FieldsType) and type_name.startswith(side):
            classes[role] = found
    for type_ in classes.values():
        module.classes.name(type_)
    reads = any(
        isinstance(node, ir.FieldAccess) and node.name == "parser_err" for node in _everything(control)
    )

    def finish(made: Module) -> Gress:
        stages = [None if each is None else Stage(made.namespace[each[0]], each[1]) for each in names]
        assert stages[-2] is not None
        assert stages[-1] is not None
        return Gress(
            stages[:-2],
            stages[-2],
            stages[-1],
            {role: made.classes.cls(type_) for role, type_ in classes.items()},
            reads,
        )

    return finish


def _everything(control: ir.ControlInstance) -> list[object]:
    nodes = list(walk.nodes(control.body))
    for action in control.actions:
        nodes += walk.nodes(action.body)
    for table in control.tables:
        for key in table.keys:
            nodes += walk.nodes(key.expr)
    for inner in control.instances:
        if isinstance(inner, ir.ControlInstance):
            nodes += _everything(inner)
    return nodes


def _roles(
    instance: ir.ParserInstance | ir.ControlInstance, classes: dict[str, FieldsType]
) -> tuple[str, ...]:
    roles = []
    others = iter(("headers", "user"))
    for variable in instance.params:
        name = getattr(variable.type, "name", "")
        role = _ROLES.get(name)
        if role is None:
            role = next(others, None)
            if role is None or not isinstance(variable.type, FieldsType):
                raise unsupported(f"a {variable.type} as the parameter {variable.name}", variable.location)
        if isinstance(variable.type, FieldsType):
            classes.setdefault(role, variable.type)
        roles.append(role)
    return tuple(roles)
