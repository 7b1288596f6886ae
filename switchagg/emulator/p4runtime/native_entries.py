"""Table entries of our program as the native engine's jobs need them: what one entry says. No I/O.

    admission: initialise  -> Initialise       a job's slots, and its K in the entry's `metadata`: "words=N"
               contribute  -> Contribution     a worker: bit, address, token
               refuse      -> nothing          it counts, and shuts out where it comes before another
    receivers: to_worker   -> Receiver         where a worker's RESULTs go
    deliveries: refuse_result                  nothing

Ingress ports, stations and MACs are nothing to an engine behind a UDP socket: entries have them, and they are
not looked at. Everything else must be what `p4_entries` writes for a job; an entry that is not, which a
switch made of tables would carry out all the same, is refused with what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from switchagg.control.drivers.p4_program import Form
from switchagg.emulator.p4runtime.errors import Code, Refused, invalid, unimplemented
from switchagg.p4model.runtime.tables import Entry, Table
from switchagg.slots import Address
from switchagg.wire import MIN_WORDS, VERSION, Op

Key = tuple[int, int]
"""(value, mask) of a ternary field."""

_ANY: Final = (0, 0)
_FULL16: Final = 0xFFFF
_VERSION: Final = (VERSION, 0xF)
_CONTRIBUTION: Final = (0, 0b1110)
_INIT: Final = (int(Op.INIT), 0xF)
_WELL_FORMED: Final = (4, 4)
_SKIP: Final = (int(Form.SKIP), 7)
_WORDS: Final = re.compile(rb"words=([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Initialise:
    """A job's slots. `words` is its K, None where the entry does not say."""

    job: int
    base: int
    slots: int
    tally: int
    words: int | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """A worker of a job. `port` is where a switch of tables would expect it."""

    job: int
    base: int
    slots: int
    port: int
    bit: int
    others: int
    source: Address
    token: int
    receiver: int
    group: int
    tally: int
    worker_tally: int

    @property
    def full(self) -> int:
        """The bits of all workers of the job."""
        return 1 << self.bit | self.others

    @property
    def key(self) -> tuple[int, int]:
        """The source as the table's key has it."""
        return int(IPv4Address(self.source[0])), self.source[1]


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where RESULTs go, and the token that they carry."""

    number: int
    address: Address
    token: int


def keys_of(table: Table, entry: Entry) -> dict[str, Key]:
    """An entry's matches by the name of the field."""
    return {key.name: match for key, match in zip(table.keys, entry.matches, strict=True)}


def params_of(entry: Entry) -> dict[str, int]:
    """The arguments of an entry's action by the name of the parameter."""
    names = (parameter.name for parameter in entry.action.parameters)
    return {name: int(value) for name, value in zip(names, entry.args, strict=True)}


def action_of(entry: Entry) -> str:
    """The last part of the name of an entry's action."""
    return entry.action.name.rpartition(".")[2]


def job_of(table: Table, matches: Iterable[Key]) -> int | None:
    """The one job that an admission entry with these matches is about; None for one that is about any."""
    for key, (value, mask) in zip(table.keys, matches, strict=True):
        if key.name == "hdr.agg.job":
            return value if mask == _FULL16 else None
    raise AssertionError("the admission table looks at the job")


def admission_of(
    table: Table, entry: Entry, metadata: bytes, *, controller_port: int, words: int
) -> Initialise | Contribution | None:
    """What an admission entry says; None for a refusing one.

    Args:
        metadata: the entry's, as the client wrote it.
        words: the largest K that the engine takes.

    Raises `Refused` for what the native engine cannot carry out.
    """
    keys, params, action = keys_of(table, entry), params_of(entry), action_of(entry)
    if action == "refuse":
        return None
    if action == "contribute_below":
        raise unimplemented("contribute_below: the native engine is a job's only switch, never below another")
    job, mask = keys["hdr.agg.job"]
    if mask != _FULL16:
        raise unimplemented(f"{action} for more than one job: hdr.agg.job is to be matched in all its bits")
    base, slots = _range(keys["hdr.agg.slot"], action)
    expected = {"slots_log": slots.bit_length() - 1}
    if action == "initialise":
        _require(keys, {"hdr.agg.version": _VERSION, "hdr.agg.op": _INIT, "meta.form": _SKIP}, action)
        _require(keys, dict.fromkeys(("ipv4_source", "udp_source", "hdr.agg.token"), _ANY), action)
        _require_params(params, expected | {"port": controller_port}, action)
        return Initialise(job, base, slots, params["tally"], _words(metadata, words))
    _require(
        keys, {"hdr.agg.version": _VERSION, "hdr.agg.op": _CONTRIBUTION, "meta.form": _WELL_FORMED}, action
    )
    for name, full in (("ipv4_source", 0xFFFFFFFF), ("udp_source", _FULL16), ("hdr.agg.token", 0xFFFFFFFF)):
        if keys[name][1] != full:
            raise unimplemented(f"{action}: {name} is to be matched in all its bits")
    bit = params["worker"].bit_length() - 1
    if params["worker"] != 1 << max(bit, 0) or params["others"] & params["worker"]:
        raise invalid(
            f"{action}: worker {params['worker']:#x} with others {params['others']:#x}; accepted: one bit, "
            "and those of the others"
        )
    _require_params(
        params, expected | {"minus_slots": -slots % 2**32, "alone": int(not params["others"])}, action
    )
    return Contribution(
        job,
        base,
        slots,
        keys["ingress_port"][0],
        bit,
        params["others"],
        (str(IPv4Address(keys["ipv4_source"][0])), keys["udp_source"][0]),
        keys["hdr.agg.token"][0],
        params["receiver"],
        params["group"],
        params["tally"],
        params["worker_tally"],
    )


def receiver_of(table: Table, entry: Entry) -> Receiver:
    """What an entry of the receivers says. Raises `Refused`."""
    if action_of(entry) != "to_worker":
        raise unimplemented(f"{action_of(entry)}: the native engine sends RESULTS to workers only")
    params = params_of(entry)
    if params["offset"]:
        raise unimplemented(f"to_worker with offset {params['offset']}: the native engine renumbers no slots")
    address = str(IPv4Address(params["ip"])), params["udp_port"]
    return Receiver(keys_of(table, entry)["receiver"][0], address, params["token"])


def check_delivery(entry: Entry) -> None:
    """Raises `Refused` for an entry of `deliveries` that is for a switch below another."""
    if action_of(entry) != "refuse_result":
        raise unimplemented(
            f"{action_of(entry)}: the native engine is a job's only switch, never below another"
        )


def _range(key: Key, action: str) -> tuple[int, int]:
    base, mask = key
    slots = (~mask & _FULL16) + 1
    if slots & (slots - 1) or slots < 2:
        raise invalid(
            f"{action}: hdr.agg.slot {base:#x} under {mask:#x}; accepted: an aligned range, 2 or more"
        )
    return base, slots


def _require(keys: Mapping[str, Key], wanted: Mapping[str, Key], action: str) -> None:
    for name, key in wanted.items():
        if keys[name] != key:
            shown = "anything" if key == _ANY else f"{key[0]:#x} under {key[1]:#x}"
            raise unimplemented(
                f"{action}: {name} is {keys[name][0]:#x} under {keys[name][1]:#x}, not {shown}"
            )


def _require_params(params: Mapping[str, int], wanted: Mapping[str, int], action: str) -> None:
    for name, value in wanted.items():
        if params[name] != value:
            raise invalid(f"{action}: {name} is {params[name]}; by its other values it is to be {value}")


def _words(metadata: bytes, largest: int) -> int | None:
    if not metadata:
        return None
    found = _WORDS.fullmatch(metadata)
    if found is None:
        raise invalid(f"initialise: metadata {metadata[:40]!r}; accepted: none, or words=N")
    words = int(found[1])
    if not MIN_WORDS <= words <= largest:
        raise Refused(Code.OUT_OF_RANGE, f"initialise: words={words}; accepted: {MIN_WORDS}..{largest}")
    return words
