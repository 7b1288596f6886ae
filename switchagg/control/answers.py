"""The answers of the controller's API, each described once: for the code that builds them and for OpenAPI.

An answer is a dict of JSON's types. mypy checks those that `queries` and `member_streams` build, and the
OpenAPI document is made from the types here: a string below a field is its description there.
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from switchagg.control.jobs.records import JobState, SwitchState


class Empty(TypedDict):
    """Done; there is nothing to say."""


class Endpoint(TypedDict):
    """The address that workers send to."""

    address: str
    port: int
    receive_buffer: int
    """Bytes that the switch's socket takes in one go."""
    link: str
    """UNIX socket of the shared memory, for workers on the switch's own computer; or empty."""
    threads: int
    """To which blocks of 64 consecutive slots are dealt in turn: no train of packets should have slots of two
    blocks, if there are several. Of a tree, members are told the least common multiple of its switches'."""


class MemberView(TypedDict):
    """One rank of a job."""

    rank: int
    state: str
    """`joined`, `left`, `lost`, or `waiting`: it was lost, is back, and comes in at the next pause."""
    address: str
    port: int
    switch: str | None
    """The one that it sends to."""
    silent: float | None
    """Seconds since its last heartbeat."""
    packets: int | None
    """Its packets that the switch admitted."""
    why: str | None
    """The reason of its loss, or the exception with which it left."""


class PolicyWord(TypedDict):
    """The skip policy of a job."""

    block: int
    """Elements that are sent or skipped together."""
    dense: bool
    """Every block is sent without looking for zeros."""
    bits: int | None
    """Lanes of calls that leave them to the job."""


class PolicyView(PolicyWord):
    """The skip policy of a job, since when it holds, and why."""

    since: float
    """Unix seconds."""
    why: str | None


class RatesView(TypedDict):
    """Means of a job's last seconds."""

    GBps: float | None
    """Bytes of tensors that are reduced, 10^9 a second."""
    packets_per_s: float | None
    collectives: float | None
    """A second, of one rank on average."""
    loss: float | None
    """Share of packets that were sent again."""
    skip_ratio: float | None
    """Share of blocks that were not sent."""
    density: float | None
    """Share of a rank's blocks that are not zero."""
    rtt_us: float | None
    exact: float | None
    """Share of elements that are summed exactly."""
    bounded: float | None
    """Share of elements that are summed within the default's bound."""
    refined: float | None
    """Share of the latter that takes more words than others."""


class LeafView(TypedDict):
    """A job's range on a leaf, and the ranks that attach there."""

    switch: str
    base: int
    ranks: list[int]


class StripeView(TypedDict):
    """A job's range on one of the switches that it is dealt to."""

    switch: str
    base: int
    weight: int
    """Its part of the packets at first, by the bandwidth that is free there; then ranks follow the rates."""


class JobView(TypedDict):
    """A job."""

    name: str
    id: int | None
    """On the switch; another in each generation."""
    tenant: str
    state: JobState
    why: str | None
    """The reason of its failure, or of its waiting."""
    world_size: int
    members: list[MemberView]
    missing: list[int]
    lost: list[int]
    places: list[int]
    """For each rank now, the one that it joined as."""
    switch: str | None
    """The one that makes its results: of a tree the root, of several stripes the first."""
    base: int | None
    leaves: list[LeafView]
    """Of a job on a tree of switches."""
    stripes: list[StripeView]
    """Of a job that is dealt to several switches, all of them in order."""
    slots: int | None
    words: int | None
    shared: bool
    """Its workers share the slots' memory, and run the slot machine themselves."""
    age: float
    """Seconds."""
    priority: int
    queue_position: int | None
    """1 is next."""
    deadline: float
    on_loss: str
    draining: bool
    policy: PolicyView
    rates: RatesView | None


class JobsView(TypedDict):
    """Every job that has not ended, of whoever asks."""

    jobs: list[JobView]


class RangeView(TypedDict):
    """Slots that a job has. Another tenant's has no name."""

    switch: NotRequired[str]
    base: int
    slots: int
    words: int
    job: int | None
    name: str | None
    tenant: str | None


class CapacityView(TypedDict):
    """The room on a switch."""

    slots: int
    words: int
    memory: int
    """Bytes."""
    workers: int | None
    groups: int | None
    exact_words: int | None
    """The one K that its program has."""
    directs: bool
    """It sends the words of a directed contribution to one worker alone."""


class SwitchView(Endpoint):
    """A switch."""

    name: str
    target: str
    state: SwitchState
    why: str | None
    draining: bool
    warnings: list[str]
    parent: str | None
    """The switch above, of a leaf."""
    hosts: list[str] | None
    """Networks of the workers that attach here; null: any."""
    bandwidth: float
    """Bits a second of the link over which its workers reach it, as the operator says."""
    capacity: CapacityView
    free: int
    largest_free: int
    memory_used: int
    """Bytes."""
    ranges: list[RangeView]
    counters: dict[str, int]


class SwitchesView(TypedDict):
    """Every switch."""

    switches: list[SwitchView]


class SlotTotals(TypedDict):
    """Slots and memory, free and used."""

    capacity: int
    free: int
    largest_free: int
    memory: int
    """Bytes."""
    memory_used: int
    max_words: int
    ranges: list[RangeView]


class SwitchSlots(SlotTotals):
    """The slots of one switch."""

    name: str


class SlotsView(SlotTotals):
    """The slots that jobs have, over all switches and on each."""

    switches: list[SwitchSlots]


class WaitingSlot(TypedDict):
    """A slot that lacks packets of some ranks."""

    switch: str
    slot: int
    seq: int
    filled: bool
    seen: list[int]
    """Ranks whose packets are there."""
    missing: list[int]
    """Ranks whose packets are not."""


class WaitingView(TypedDict):
    """The slots of a job that wait for some ranks; null where the switch does not show them."""

    job: str
    slots: list[WaitingSlot] | None


class JobCounters(TypedDict):
    """The counters of a job on one switch."""

    name: str
    id: int
    tenant: str
    switch: str
    counters: dict[str, int]


class StatsView(TypedDict):
    """Counters: of all switches together, of each, of each job."""

    switch: dict[str, int]
    switches: dict[str, dict[str, Any]]
    """By name; `error` in place of the counters where a switch does not answer."""
    jobs: list[JobCounters]


class EventView(TypedDict):
    """A line of the event log."""

    n: int
    time: float
    """Unix seconds."""
    kind: str
    text: str
    tenant: str | None
    job: str | None
    switch: str | None
    rank: int | None


class EventsView(TypedDict):
    """Lines of the event log, oldest first."""

    events: list[EventView]


class HistoryView(TypedDict):
    """A job over time."""

    job: str
    interval: float
    """Seconds between two points."""
    points: list[dict[str, float | None]]


class Snapshot(TypedDict):
    """All that the page shows."""

    now: float
    """Unix seconds."""
    switches: list[SwitchView]
    jobs: list[JobView]
    events: list[EventView]


class CompleteView(TypedDict):
    """The number of collectives to complete before `proceed`."""

    complete_to: int


class LostView(TypedDict):
    """A rank that was lost, and why."""

    rank: int
    why: str


class AttachedSwitch(Endpoint):
    """The switch that a rank sends to."""

    name: str


class HeartbeatView(TypedDict):
    """The address for heartbeats, and their interval."""

    address: str
    port: int
    cookie: str
    """16 bytes in hexadecimal digits, which say whose heartbeat it is."""
    interval: float
    """Seconds."""


class AdmittedStripe(TypedDict):
    """An admission at one of the switches that a job is dealt to. Numbers are the stripe's own."""

    switch: AttachedSwitch
    job: int
    """The id in packets to this switch."""
    token: int
    """In packets to this switch."""
    result_token: int
    base: int
    first_seq: int
    first_packet: int
    weight: int
    """Its part of the packets at first, 1 to 32."""


class AdmittedView(TypedDict):
    """An admission: all that a rank needs to send, and to check RESULTs; the first event of its stream."""

    event: Literal["admitted"]
    job: int
    token: int
    result_token: int
    base: int
    slots: int
    words: int
    first_seq: int
    policy: PolicyWord
    worker_bit: int
    senders: int
    """Workers and leaves that send to the same slots."""
    rank: int
    world_size: int
    places: list[int]
    lost: list[LostView]
    """The ranks lost since the generation before, and why."""
    receivers: list[int]
    """For each rank the `reply` that names it in directed contributions; empty: do not direct."""
    first_packet: int
    """The first packet number on this switch: what was sent from there on is sent again."""
    shared: bool
    """The slots are in memory that all workers share: each runs the slot machine itself."""
    stripes: list[AdmittedStripe]
    """Of a job whose packets are dealt to several switches by weights. Then `job` and `token` are for calls
    of the controller."""
    standby: bool
    """Another switch could take the job, or may: it has not been reached yet."""
    switch: AttachedSwitch
    deadline: float
    on_loss: str
    heartbeat: HeartbeatView


class Health(TypedDict):
    """The state of a controller."""

    status: Literal["ok"]
    switch: Endpoint | None
    switches: dict[str, str]
    """States by name."""
    warnings: list[str]


class HealthView(TypedDict):
    """The state of a controller. Without a token, where one is needed, only the first three."""

    status: Literal["ok"]
    version: str
    authentication: bool
    warnings: NotRequired[list[str]]
    switch: NotRequired[Endpoint | None]
    switches: NotRequired[dict[str, str]]


def _describe() -> None:
    """Makes the strings below fields their descriptions.

    Pydantic can do it too, but reads the source again for each use of a type, while a service starts.
    """
    try:
        source = inspect.getsource(sys.modules[__name__])
    except (OSError, TypeError):
        return  # an installation without sources, or a module without a file
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        hints = globals()[node.name].__annotations__
        for field, below in pairwise(node.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    hints[name] = Annotated[hints[name], Field(description=inspect.cleandoc(text))]


_describe()
