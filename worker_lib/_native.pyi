"""Bindings of `switchagg/native/worker/module.cpp`. Times are nanoseconds, memory addresses integers.

A `Final` attribute is read-only here; the engine changes it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

kernels: str  # instruction set that the engine uses: base, v3 or v4

class Socket:
    """A bound UDP socket before an `Engine` takes it."""

    def __init__(self, ip: int, port: int, receive_buffer: int, offload: bool) -> None:
        """Binds. Raises `OSError`."""
    ip: Final[int]
    port: Final[int]
    receive_buffer: Final[int]
    gso: Final[bool]
    gro: Final[bool]
    @staticmethod
    def on_dpdk(
        ip: int,
        *,
        ports: Sequence[Sequence[int]],
        mtu: int,
        pool: int,
        functions: Sequence[int],
        receive_frames: int,
        poll: bool,
    ) -> Socket:
        """An endpoint on the ports of `switchagg.devices.dpdk`. Raises `OSError`."""
    def use_xdp(self) -> str:
        """Makes the engine's port one through AF_XDP on the interface of the socket's address.

        Returns how that works there. Raises `OSError` that says what was refused.
        """
    def use_udp(self) -> None: ...
    def measure(
        self, to: tuple[int, int] | None, bytes: int, batch: int, ns: int, bare: bool
    ) -> tuple[int, int, int, int]:
        """Sends to an endpoint, or without one receives, as fast as it goes; the socket is closed then.

        Returns packets, bytes, and nanoseconds of time and of the thread's processor time.
        """
    def close(self) -> None: ...

class LoopBench:
    """The loops that touch every element, on data of a seed; see native/worker/loop_bench.h."""

    def __init__(self, seed: int, elements: int) -> None:
        """Raises `ValueError` where `elements` is no multiple of 4,096."""
    loops: Final[list[tuple[str, float]]]  # of the class: names, and bytes an element, read and written
    levels: Final[list[str]]  # of the class: instruction sets of this processor, as `kernels`
    def measure(self, loop: int, level: int, runs: int) -> tuple[int, int]:
        """Nanoseconds of so many runs, and of as many of a memcpy that moves as many bytes."""
    def digest(self, loop: int, level: int) -> int:
        """A hash of all that a run writes and returns: the same at each level and of each processor."""

class Call:
    """One rank's part in one collective; see `struct Call` in native/worker/plan.h."""

    def __init__(
        self,
        kind: int,
        op: int,
        dtype: int,
        bits: int,
        root: int = 0,
        sparse: bool = True,
        block: int = 64,
        count: int = 0,
        fingerprint_count: int = 0,
        shape_crc: int = 0,
        workers: int = 1,
        rank: int = 0,
        policy: int = 0,
        input: int = 0,
        in_begin: int = 0,
        in_end: int = 0,
        output: int = 0,
        out_begin: int = 0,
        out_end: int = 0,
        mask: int = 0,
        zero_fill: bool = False,
        auto_zeros: bool = False,
        auto_block: bool = False,
        auto_lanes: int = 0,
        memory: int = 0,
        union_out: int = 0,
        part: int = 0,
        reader: int = 0,
        owner_ends: int = 0,
    ) -> None: ...
    nontemporal: bool  # resolved by an engine, by the size of the result
    checked: bool  # likewise: packets have check words
    directed: bool  # resolved by an engine, by its admission and the number of elements

class Collective:
    """A collective that was submitted. `status`: 0 pending, 1 done, 2 mismatch, 3 timeout, 4 aborted,
    5 lost, 6 moved, 7 damaged; see native/worker/engine.h."""

    status: Final[int]
    difference: Final[list[int]]
    policy: Final[int]
    call_number: Final[int]
    generation: Final[int]
    # Nanoseconds of `time.monotonic_ns`; 0: not yet. Opened: every rank has begun it.
    submitted_at: Final[int]
    begun_at: Final[int]
    opened_at: Final[int]
    ended_at: Final[int]
    again: Final[list[tuple[int, int]]]  # retransmissions, once it has ended: when, and how many packets
    resolved: Final[tuple[bool, int, int]]  # once done: zeros skipped, elements a block, bits of lanes
    packets: Final[int]
    results: Final[int]

class Admission:
    """The controller's answer to one worker. `link`: name of the switch's UNIX socket, empty for UDP."""

    def __init__(
        self,
        switch_ip: int,
        switch_port: int,
        job: int,
        token: int,
        result_token: int,
        base: int,
        slots: int,
        words: int,
        first_seq: int,
        rank: int,
        workers: int,
        window_limit: int,
        link: str = "",
        policy: int = 0,
        receivers: Sequence[int] = (),
        shared_slots: bool = False,
        threads: int = 1,
        weight: int = 32,
    ) -> None: ...

class Engine:
    """One worker's engine in one job; see native/worker/engine.h."""

    def __init__(
        self,
        socket: Socket,
        admission: Admission,
        checked: bool = False,
        secret: bytearray = ...,
        more: Sequence[tuple[Socket, Admission]] = ...,
        shared_links: bool = False,
    ) -> None:
        """Takes the sockets; `more` are of stripes 1 and up. Raises `OSError`; the sockets can then be used
        again. With a secret, which is copied and wiped by `close`, sums are sealed; raises `RuntimeError`
        where there is no libcrypto."""
    def submit(self, call: Call, timeout_ns: int, background: bool, generation: int = 0) -> Collective | None:
        """None: the engine is no longer in that generation."""
    def wait(self, work: Collective, slice_ns: int) -> int: ...
    def freeze(self) -> int: ...
    def finish(self, complete_to: int, slice_ns: int) -> bool: ...
    def resume(
        self,
        socket: Socket,
        admission: Admission,
        lost: bool = False,
        more: Sequence[tuple[Socket, Admission]] = ...,
    ) -> bool:
        """Takes the sockets as the constructor does. Raises `OSError`; they can then be used again."""
    def suspend(self) -> list[int]:
        """Of each stripe the lowest number whose RESULT is missing."""
    def move(
        self, socket: Socket, admission: Admission, first: int, stripe: int = 0, more: bool = False
    ) -> bool:
        """Takes the socket as the constructor does. Raises `OSError`; the socket can then be used again.
        Raises `ValueError` for a stripe, P, K or number that cannot be. `more`: another stripe moves too."""
    weights: Final[list[int]]  # of stripes, now
    def dealt(self, packet_number: int) -> tuple[int, int]:
        """The stripe that has a packet, and its number there."""
    refused: Final[list[int]]  # by the present switch of each stripe
    late: Final[int]  # a bit for each rank that a sum without slots waits for
    recovering: Final[bool]
    replaying: Final[bool]  # of an engine that is halted or broken: packets of complete collectives
    damage: Final[int | None]  # packet number whose RESULT was wrong twice
    unhealed: Final[int | None]  # the lowest one whose RESULTs so far were wrong
    def request_pause(self) -> None: ...
    pause_requested: Final[bool]
    def set_pause_eventfd(self, descriptor: int) -> None: ...
    def fail_from(self, begun: int) -> None: ...
    begun: Final[int]
    completed: Final[int]
    frozen: Final[bool]
    halted: Final[bool]
    generation: Final[int]
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    broken: Final[bool]
    calls: Final[int]
    policy: Final[int]  # the policy word of the next collective to begin
    def set_policy(self, word: int) -> None:
        """Sets the policy that the next header carries, on rank 0."""
    def silence_ns(self, completed: int) -> int: ...
    def probe(self, timeout_ns: int) -> bool:
        """True if the switch answers a packet without words; of a broken engine."""
    def stats(self) -> dict[str, int]: ...

class HeartbeatSender:
    """Sends an engine's heartbeats from a thread of its own; see native/worker/heartbeat.h."""

    def __init__(self, engine: Engine) -> None:
        """Raises `OSError`."""
    def start(self, ip: int, port: int, cookie: bytes, interval_ns: int) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    sent: Final[int]

def ip_number(text: str) -> int: ...
def address(array: object) -> int:
    """Returns the address of a NumPy array's first byte."""

class KnownCall:
    """A sum's call of the engine, to be used again; `label`, or `called()`, names it in messages."""

    def __init__(self, generation: int, call: Call, label: Any, called: Callable[[], str]) -> None: ...
    generation: Final[int]
    call: Final[Call]
    label: Final[Any]
    called: Final[Callable[[], str]]

class Caller:
    """Runs known calls of an engine, and records the last 32 collectives.

    `run` and `allreduce` run one in this thread for `slice_ns` and return True if it is done. One that is not
    done by then, or has failed, they add to `begun` with its call. If they do neither, nothing was sent.
    """

    def __init__(self, engine: Engine, slice_ns: int) -> None: ...
    known: Final[dict[Any, KnownCall]]
    inside: Final[int]  # threads that run one now
    def run(self, begun: list[tuple[Collective, KnownCall]], seconds: float, known: KnownCall) -> bool: ...
    def allreduce(
        self, begun: list[tuple[Collective, KnownCall]], seconds: float, x: object, out: object, op: object,
        bits: object, min_bits: object, blocks: object, block_size: object, accuracy: object,
    ) -> bytes | bool | None:  # fmt: skip
        """Runs the call of these arguments if `known` has it by its key, and returns that key otherwise.

        The key has the arguments as bytes, equal where memory, types, shapes and options are. None if `x`
        (or `out`, unless that is None) is no contiguous NumPy array of numbers in the computer's own byte
        order, nor a dense tensor of PyTorch's on the CPU without gradients, if the result's is read-only, or
        if others are anything but exactly None, int or str.
        """
    def note(self, called: Callable[[], str], work: Collective) -> None:
        """Adds a collective to the records."""
    def recent(self) -> list[tuple[Callable[[], str], Collective]]:
        """The records, about in the order of calls."""

# For tests.

class PacketCheck:
    """See native/worker/check.h; payloads are bytes."""

    def __init__(self, words: int, workers: int, nonce: int) -> None: ...
    def write(self, packet_number: int, digest: int, words: bytes) -> bytes:
        """Returns the words with check words behind them."""
    def holds(
        self, packet_number: int, digest: int, payload: bytes, all: bool = False, wraps: bool = False
    ) -> bool: ...
    def extended(self, before: int, words: Sequence[int]) -> int:
        """Returns the digest of more words."""

class Seal:
    """See native/worker/seal.h."""

    def __init__(self, secret: bytes, nonces: Sequence[bytes], rank: int, words: int) -> None:
        """`words`: K. Raises `RuntimeError` where there is no libcrypto."""
    def secret_words(self, count: int) -> list[int]: ...
    def sealed(
        self,
        packet_number: int,
        digest: tuple[int, int],
        workers: int,
        words: bytes,
        alone: bool = False,
    ) -> bytes:
        """Returns a contribution: K - 6 words, with check words, and the rank's pad on all."""

def heartbeat(cookie: bytes, sequence: int, report: Sequence[int]) -> bytes:
    """Returns the datagram that a `HeartbeatSender` sends."""

class Codec:
    """The steps of one call without a network. Payloads are K big-endian words; None is a SKIP."""

    def __init__(self, call: Call, call_number: int, words: int) -> None: ...
    plan_packets: Final[int]
    def plan_packet(self, packet: int) -> bytes | None: ...
    def plan_result(self, packet: int, payload: bytes | None) -> None: ...
    def next_step(self) -> int | None:
        """Begins the next step after the plan: exponents left out of it, marks, the stream, a refinement's.

        Call it once the step before has every result. Returns its packets; None if there is no other.
        """
    def is_or(self, packet: int) -> bool:
        """True if packets of this number in this step are reduced with OR."""
    def reader(self, packet: int) -> int | None:
        """The rank that alone reads the sums of a packet of this step."""
    def encode(self, packet: int) -> bytes | None: ...
    def decode(self, packet: int, payload: bytes | None) -> None: ...
    def finish(self) -> None: ...

class Deal:
    """Packet numbers dealt to stripes, for tests; see `tests.reference.deal.Deal`."""

    def __init__(self, weights: Sequence[int], kept: int) -> None: ...
    weights: Final[list[int]]
    def change(self, first: int, stripe: int, weight: int) -> None: ...
    def place(self, packet_number: int) -> tuple[int, int]: ...
    def packet_number(self, stripe: int, number: int) -> int: ...

class StripeRates:
    """The weights that suit the rates of stripes, for tests; see `tests.reference.deal.StripeRates`."""

    def __init__(self, weights: Sequence[int], period: int) -> None: ...
    def begin(self, now: int, packets: int, waits: int | None = None) -> None: ...
    def end(self, now: int) -> None: ...
    def next(self, weights: Sequence[int]) -> tuple[int, int]: ...

class Window:
    """The sender's window, for tests; see `tests.reference.window.Window`."""

    def __init__(
        self, slots: int, batch: int, limit: int, shared: bool = False, threads: int = 1, first_seq: int = 0
    ) -> None: ...
    base: Final[int]
    next: Final[int]
    cwnd: Final[int]
    train: Final[int]
    srtt: Final[int]
    rttvar: Final[int]
    rto: Final[int]
    retransmissions: Final[int]
    outstanding: Final[int]
    def room(self) -> int: ...
    def sent(self, count: int, now: int, timed: bool = True) -> None: ...
    def on_result(self, packet_number: int) -> bool: ...
    def on_ce(self, packet_number: int, now: int) -> None: ...
    @staticmethod
    def stamp(now: int) -> int: ...
    def answered(self, stamp: int, is_new: bool, now: int) -> None: ...
    def acknowledge(self, accepted: Sequence[int], now: int) -> None: ...
    def detect_lost(self, now: int) -> list[int]: ...
    def loss_timer(self) -> int | None: ...

def quantize_lanes(
    x: int,
    count: int,
    wide: bool,
    bits: int,
    units: int,
    block: int,
    top: int,
    first: int,
    second: int,
    words: int,
) -> int: ...
def dequantize_lanes(
    words: int, count: int, wide: bool, bits: int, units: int, block: int, x: int
) -> None: ...
def square_lanes(words: int, count: int, bits: int) -> int: ...
def to_residues(
    x: int, count: int, wide: bool, bits: int, unit: float, factors: int, first: int, second: int, words: int
) -> int: ...
def residue_values(
    x: int, count: int, wide: bool, unit: float, first: int, second: int, out: int
) -> None: ...
def rotate_blocks(
    x: int, count: int, wide: bool, block: int, factor: float, first: int, second: int, out: int
) -> None: ...
def unrotate_blocks(
    y: int, count: int, wide: bool, block: int, factor: float, first: int, second: int, x: int
) -> None: ...
def from_residues(
    words: int,
    count: int,
    wide: bool,
    bits: int,
    unit: float,
    factors: int,
    reference: int,
    workers: float,
    sum: int,
    mean: int,
    wrong: int,
) -> int: ...

# Rows of sparse tensors in a table of zeros; see native/worker/sparse_rows.cpp. `bitmap` has a bit a block.
def put_rows(
    indices: int,
    count: int,
    shape: Sequence[int],
    values: int,
    table: int,
    row_bytes: int,
    row_blocks: int,
    bitmap: int,
    adds: int,
) -> None:
    """Puts rows into the table, and sets their bits. Raises `IndexError` for an index outside `shape`.

    `adds`: rows of one number are added up, 1 to 4: as float32, float64, int32, int64; 0: there are none.
    """

def count_rows(bitmap: int, blocks: int, row_blocks: int) -> int:
    """The number of rows that have a bit."""

def take_rows(
    bitmap: int,
    blocks: int,
    shape: Sequence[int],
    table: int,
    row_bytes: int,
    row_blocks: int,
    values: int,
    indices: int,
    count: int,
    put: int,
) -> None:
    """Moves the `count` rows that have a bit out of the table, and clears `put`, another bitmap."""
