"""The v1model architecture, as bmv2's simple_switch runs it.

    parser ─ verify ─ ingress ─┬─ drop (511)           egress ─ checksum ─ deparser ─┬─ out
                               ├─ clone, parsed anew ───►▲                           └─ recirculated
                               ├─ resubmitted            │ clones of egress begin at egress too
                               ├─ multicast, a copy each ┤
                               └─ unicast ───────────────┘

Where v1model.p4 leaves things open, simple_switch decides: a parser's error does not drop; an explicit
transition to reject ends parsing without an error; a header that becomes valid by setValid holds zeros;
reading an invalid header gives what was last in it, zeros at first; egress_spec is 0 when egress begins;
`packet_length` there counts headers that were added or removed by setValid and setInvalid; a packet that was
resubmitted or recirculated has 0 as its ingress_port and timestamp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from switchagg.p4model import ir
from switchagg.p4model.errors import P4Error, unsupported
from switchagg.p4model.runtime.blocks import translate
from switchagg.p4model.runtime.emit import Module
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4model.runtime.v1model_externs import PacketState, V1Target
from switchagg.p4model.runtime.values import NO_ERROR, Exit, PacketIn, PacketOut, ParserReject
from switchagg.p4model.types import FieldsType, underlying

DROP_PORT: Final = 511
_TYPES: Final = (
    "new",
    "clone of ingress",
    "clone of egress",
    "coalesced",
    "recirculated",
    "replicated",
    "resubmitted",
)
NORMAL, INGRESS_CLONE, EGRESS_CLONE, _COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED = range(7)


@dataclass(slots=True)
class _Arrival:
    """A packet on its way to ingress."""

    port: int
    data: bytes
    instance_type: int
    kept: list[tuple[tuple[str, ...], Any]]


@dataclass(slots=True)
class _Departure:
    """A packet on its way to egress."""

    port: int
    headers: Any
    user: Any
    metadata: Any
    payload: bytes
    length: int
    ingress_length: int
    ingress_port: int
    truncate: int | None = None


class V1Switch(ModelSwitch):
    """A simple_switch."""

    _state: PacketState

    def __init__(self, program: ir.Program, *, seed: int = 0, traced: bool = False) -> None:
        super().__init__(program, seed=seed, traced=traced)
        self._state = PacketState(self.random, self.digests, self.messages)
        module = Module(program, V1Target(self._state), traced=traced)
        module.namespace["RT"] = self._state
        blocks = list(program.main.args.values())
        if len(blocks) != 6:
            raise P4Error("main is no V1Switch of six blocks", program.main.location)
        for each in program.instances:
            module.extern(each)
        names = []
        for each_block in blocks:
            assert isinstance(each_block, ir.ParserInstance | ir.ControlInstance)
            names.append(translate(module, each_block))
        parser = blocks[0]
        assert isinstance(parser, ir.ParserInstance)
        self._new_headers = _fields_class(module, parser.params[1])
        self._new_user = _fields_class(module, parser.params[2])
        self._new_metadata = _fields_class(module, parser.params[3])
        self._lists = _field_lists(parser.params[2].type)
        self._finish(module)
        functions = [module.namespace[name] for name in names]
        self._parse, self._verify, self._ingress, self._egress, self._update, self._deparse = functions

    # ---- ingress ----

    def _arrival(self, port: int, data: bytes) -> _Arrival:
        return _Arrival(port, data, NORMAL, [])

    def _parsed(self, arrival: _Arrival) -> tuple[Any, Any, Any, bytes]:
        headers, user, metadata = self._new_headers(), self._new_user(), self._new_metadata()
        metadata.f_packet_length = len(arrival.data)
        metadata.f_instance_type = arrival.instance_type
        if arrival.instance_type in (NORMAL, INGRESS_CLONE):
            metadata.f_ingress_port = arrival.port
            metadata.f_ingress_global_timestamp = int(self.now * 1e6) & 0xFFFFFFFFFFFF
        for path, value in arrival.kept:
            _set(user, path, value)
        packet = PacketIn(arrival.data)
        self._state.metadata = metadata
        code = NO_ERROR
        try:
            self._parse(packet, headers, user, metadata)
        except ParserReject as reject:
            code = reject.code
            self._note("error", f"parser: {self.program.errors[code]}")
        metadata.f_parser_error = code
        return headers, user, metadata, packet.rest()

    def _run_ingress(self, arrival: _Arrival) -> None:
        state = self._state
        state.begin(len(arrival.data))
        self._note(
            "packet", f"in at port {arrival.port}, {len(arrival.data)} bytes, {_TYPES[arrival.instance_type]}"
        )
        headers, user, metadata, payload = self._parsed(arrival)
        state.payload = payload
        try:
            self._verify(headers, user)
            metadata.f_checksum_error = state.checksum_error
            self._ingress(headers, user, metadata)
        except Exit:
            pass
        self._send_clone(lambda index: self._clone_ingress(arrival, user, index))
        if state.resubmit is not None:
            self._note("send", "resubmitted")
            kept = self._kept(user, state.resubmit[0])
            self._arrivals.append(_Arrival(arrival.port, arrival.data, RESUBMITTED, kept))
            return
        whole = _Departure(
            0, headers, user, metadata, payload, state.length, len(arrival.data), arrival.port, state.truncate
        )
        if metadata.f_mcast_grp:
            metadata.f_instance_type = REPLICATED
            self._replicate(whole, metadata.f_mcast_grp)
            return
        if metadata.f_egress_spec == DROP_PORT:
            self._note("drop", "egress_spec is 511 at the end of ingress")
            return
        metadata.f_instance_type = NORMAL
        whole.port = metadata.f_egress_spec
        self._departures.append(whole)

    def _replicate(self, whole: _Departure, group: int) -> None:
        copies = list(self.replication.copies(group))
        self._note("send", f"multicast group {group}: {len(copies)} copies")
        for node, port in copies:
            metadata = whole.metadata.copy()
            metadata.f_egress_rid = node.rid
            headers, user = whole.headers.copy(), whole.user.copy()
            self._departures.append(replace(whole, port=port, headers=headers, user=user, metadata=metadata))

    def _clone_ingress(self, arrival: _Arrival, user: Any, index: int | None) -> _Departure:
        state = self._state
        saved = state.length, state.metadata, state.resubmit, state.truncate
        headers, fresh, metadata, payload = self._parsed(
            _Arrival(arrival.port, arrival.data, INGRESS_CLONE, [])
        )
        state.length, state.metadata, state.resubmit, state.truncate = saved
        fresh.reset()
        metadata.reset()
        metadata.f_instance_type = INGRESS_CLONE
        for path, value in self._kept(user, index):
            _set(fresh, path, value)
        size = len(arrival.data)
        return _Departure(0, headers, fresh, metadata, payload, size, size, arrival.port)

    def _send_clone(self, make: Callable[[int | None], _Departure]) -> None:
        """Sends the clone that the packet asked for, if any; `make` takes the number of its field list."""
        if self._state.clone is None:
            return
        session, index = self._state.clone
        target = self.replication.session(session)
        if target is None:
            self._note("drop", f"clone: there is no session {session}")
            return
        clone = make(index)
        clone.truncate = target.length
        if target.group is not None:
            self._replicate(clone, target.group)
        if target.port is not None:
            self._note("send", f"clone to port {target.port}")
            clone.port = target.port
            self._departures.append(clone)

    def _kept(self, user: Any, index: int | None) -> list[tuple[tuple[str, ...], Any]]:
        return [] if index is None else [(path, _get(user, path)) for path in self._lists.get(index, ())]

    # ---- egress ----

    def _run_egress(self, packet: _Departure) -> None:
        state = self._state
        state.begin(packet.ingress_length)
        state.length, state.payload, state.truncate = packet.length, packet.payload, packet.truncate
        headers, user, metadata = packet.headers, packet.user, packet.metadata
        state.metadata = metadata
        metadata.f_egress_port = packet.port
        metadata.f_egress_spec = 0
        metadata.f_packet_length = packet.length & 0xFFFFFFFF
        metadata.f_egress_global_timestamp = int(self.now * 1e6) & 0xFFFFFFFFFFFF
        with contextlib.suppress(Exit):
            self._egress(headers, user, metadata)
        self._send_clone(lambda index: self._clone_egress(packet, index))
        if metadata.f_egress_spec == DROP_PORT:
            self._note("drop", "egress_spec is 511 at the end of egress")
            return
        out = PacketOut()
        try:
            self._update(headers, user)
            self._deparse(out, headers)
        except Exit:
            pass
        data = out.finish(packet.payload)
        if state.truncate is not None:
            data = data[: state.truncate]
        if state.recirculate is not None:
            self._note("send", "recirculated")
            kept = self._kept(user, state.recirculate[0])
            self._arrivals.append(_Arrival(packet.ingress_port, data, RECIRCULATED, kept))
            return
        self._note("send", f"out at port {packet.port}, {len(data)} bytes")
        self._out.append((packet.port, data))

    def _clone_egress(self, packet: _Departure, index: int | None) -> _Departure:
        user, metadata = self._new_user(), self._new_metadata()
        metadata.f_instance_type = EGRESS_CLONE
        for path, value in self._kept(packet.user, index):
            _set(user, path, value)
        return replace(
            packet, headers=packet.headers.copy(), user=user, metadata=metadata, length=self._state.length
        )


def _fields_class(module: Module, variable: ir.Variable) -> Callable[[], Any]:
    """Returns the class of a block's parameter. Raises P4Error if it is no struct."""
    if not isinstance(variable.type, FieldsType):
        raise unsupported(f"a {variable.type} as the parameter {variable.name}", variable.location)
    made: Callable[[], Any] = module.classes.cls(variable.type)
    return made


def _field_lists(type_: object) -> dict[int, list[tuple[str, ...]]]:
    """The fields of user metadata that each @field_list number keeps."""
    lists: dict[int, list[tuple[str, ...]]] = {}

    def look(struct: FieldsType, path: tuple[str, ...]) -> None:
        for each in struct.fields:
            for mark in each.annotations:
                if mark.name == "field_list":
                    for number in mark.values:
                        lists.setdefault(int(number), []).append((*path, f"f_{each.name}"))
            inner = underlying(each.type)
            if isinstance(inner, FieldsType):
                look(inner, (*path, f"f_{each.name}"))

    if isinstance(type_, FieldsType):
        look(type_, ())
    return lists


def _get(owner: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        owner = getattr(owner, name)
    return owner.copy() if hasattr(owner, "assign") else owner


def _set(owner: Any, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        owner = getattr(owner, name)
    present = getattr(owner, path[-1])
    if hasattr(present, "assign"):
        present.assign(value)
    else:
        setattr(owner, path[-1], value)
