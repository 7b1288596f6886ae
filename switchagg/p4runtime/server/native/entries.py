"""The meaning of one table entry of our program for the native engine. No I/O.

    admission: initialise  -> Initialise       a job's slots, and its K in the entry's `metadata`: "words=N"
               contribute  -> Contribution     a worker: bit, address, token
               contribute_below                the same, of a job with a parent
               refuse      -> nothing          it counts, and shuts out where it comes before another
    receivers: to_worker, to_parent -> Receiver  where a worker's RESULTs go, or what is for the parent
    deliveries: deliver_all, deliver_one -> Delivery  whom a parent's RESULTs are for
                refuse_result -> nothing

An engine behind a UDP socket ignores ingress ports, stations and MACs; on Ethernet they count. All else
must be as `p4program.entries` writes it for a job. A switch made of tables would carry out other entries
too; here they are refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from switchagg.p4entities.tables import Entry, Table
from switchagg.p4program.program import Form
from switchagg.p4runtime.server.errors import invalid, out_of_range, unimplemented
from switchagg.rules.slots import Address
from switchagg.wire.header import MAX_WORKERS, MIN_WORDS, VERSION, Op

Key = tuple[int, int]
"""(value, mask) of a ternary field."""

_ANY: Final = (0, 0)
_FULL16: Final = 0xFFFF
_VERSION: Final = (VERSION, 0xF)
_CONTRIBUTION: Final = (0, 0b1110)
_INIT: Final = (int(Op.INIT), 0xF)
_RESULT: Final = (int(Op.RESULT), 0xF)
_WELL_FORMED: Final = (4, 4)
_SKIP: Final = (int(Form.SKIP), 7)
_SENDER: Final = {"ipv4_source": 0xFFFFFFFF, "udp_source": _FULL16, "hdr.agg.token": 0xFFFFFFFF}
_WORDS: Final = re.compile(rb"words=([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Initialise:
    """A job's slots. `words` is its K, None if the entry gives none."""

    job: int
    base: int
    slots: int
    tally: int
    words: int | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """A worker of a job.

    Attributes:
        port: the ingress port of its packets; `way_out` is the port of their results.
        receiver: its own, or below a parent the parent's.
        group: its job's, 0 below a parent.
    """

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
    way_out: int
    below: bool = False

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
    """The address of RESULTs or of the parent, the token that they carry, and the renumbering of slots."""

    number: int
    address: Address
    token: int
    mac: int
    offset: int
    parent: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """The target of a parent's RESULTs: `group` for all, or `port` and `receiver` for one worker.

    Attributes:
        ingress_port: the port of the parent's packets.
        base: the job's first slot at the parent.
        bit: the worker's; None for all.
    """

    job: int
    ingress_port: int
    source: Address
    token: int
    base: int
    slots: int
    bit: int | None
    group: int
    port: int
    receiver: int


def keys_of(table: Table, entry: Entry) -> dict[str, Key]:
    """Returns an entry's matches by the name of the field."""
    return {key.name: match for key, match in zip(table.keys, entry.matches, strict=True)}


def params_of(entry: Entry) -> dict[str, int]:
    """Returns the arguments of an entry's action by the name of the parameter."""
    names = (parameter.name for parameter in entry.action.parameters)
    return {name: int(value) for name, value in zip(names, entry.args, strict=True)}


def action_of(entry: Entry) -> str:
    """Returns the last part of the name of an entry's action."""
    return entry.action.name.rpartition(".")[2]


def job_of(table: Table, matches: Iterable[Key]) -> int | None:
    """Returns the job of an admission entry with these matches; None for one of any job."""
    for key, (value, mask) in zip(table.keys, matches, strict=True):
        if key.name == "hdr.agg.job":
            return value if mask == _FULL16 else None
    raise AssertionError("the admission table has the job in its key")


def admission_of(
    table: Table, entry: Entry, metadata: bytes, *, controller_port: int, words: int
) -> Initialise | Contribution | None:
    """Returns the meaning of an admission entry; None for one that refuses.

    Args:
        metadata: the entry's, as the client wrote it.
        words: the largest K that the engine takes.

    Raises `StatusError` for an entry that the native engine cannot carry out.
    """
    keys, params, action = keys_of(table, entry), params_of(entry), action_of(entry)
    if action == "refuse":
        return None
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
    form = {"hdr.agg.version": _VERSION, "hdr.agg.op": _CONTRIBUTION, "meta.form": _WELL_FORMED}
    _require(keys, form, action)
    require_whole(keys, _SENDER, action)
    below = action == "contribute_below"
    bit = params["worker"].bit_length() - 1
    if params["worker"] != 1 << max(bit, 0) or params["others"] & params["worker"]:
        raise invalid(
            f"{action}: worker {params['worker']:#x} with others {params['others']:#x}; accepted: one bit, "
            "and those of the others"
        )
    expected |= {"minus_slots": -slots % 2**32, "alone": int(not params["others"])}
    if below:
        expected["reply"] = bit + 1
    _require_params(params, expected, action)
    return Contribution(
        job,
        base,
        slots,
        keys["ingress_port"][0],
        bit,
        params["others"],
        _source(keys),
        keys["hdr.agg.token"][0],
        params["receiver"],
        0 if below else params["group"],
        params["tally"],
        params["worker_tally"],
        params["port"],
        below,
    )


def receiver_of(table: Table, entry: Entry) -> Receiver:
    """Returns the meaning of an entry of `receivers`."""
    params = params_of(entry)
    address = str(IPv4Address(params["ip"])), params["udp_port"]
    number = keys_of(table, entry)["receiver"][0]
    parent = action_of(entry) == "to_parent"
    return Receiver(number, address, params["token"], params["mac"], params["offset"], parent)


def delivery_of(table: Table, entry: Entry) -> Delivery | None:
    """Returns the meaning of an entry of `deliveries`; None for one that refuses. Raises `StatusError`."""
    keys, params, action = keys_of(table, entry), params_of(entry), action_of(entry)
    if action == "refuse_result":
        return None
    require_whole(keys, {"hdr.agg.job": _FULL16, **_SENDER, "hdr.agg.reply": _FULL16}, action)
    _require(keys, {"hdr.agg.version": _VERSION, "hdr.agg.op": _RESULT, "meta.form": _WELL_FORMED}, action)
    base, slots = _range(keys["hdr.agg.slot"], action)
    reply = keys["hdr.agg.reply"][0]
    if (reply == 0) != (action == "deliver_all") or reply > MAX_WORKERS:
        raise unimplemented(
            f"{action}: hdr.agg.reply is {reply}; accepted: 0 for deliver_all, a worker's bit + 1 for "
            "deliver_one"
        )
    return Delivery(
        keys["hdr.agg.job"][0],
        keys["ingress_port"][0],
        _source(keys),
        keys["hdr.agg.token"][0],
        base,
        slots,
        None if reply == 0 else reply - 1,
        params.get("group", 0),
        params.get("port", 0),
        params.get("receiver", 0),
    )


def require_whole(keys: Mapping[str, Key], full: Mapping[str, int], action: str) -> None:
    """Raises `StatusError` unless these fields are matched under these masks, of all their bits."""
    for name, mask in full.items():
        if keys[name][1] != mask:
            raise unimplemented(f"{action}: {name} is to be matched in all its bits")


def _source(keys: Mapping[str, Key]) -> Address:
    return str(IPv4Address(keys["ipv4_source"][0])), keys["udp_source"][0]


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
        raise out_of_range(f"initialise: words={words}; accepted: {MIN_WORDS}..{largest}")
    return words
