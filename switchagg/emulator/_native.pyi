from collections.abc import Sequence
from typing import Any, Final

from switchagg.emulator.outcomes import JobOutcomes
from switchagg.rules.slots import Address, JobEntry, Out, SlotState

class _Jobs:
    """The methods that a slot table and a switch have in common; there is no such class at run time."""

    def add_job(self, job: JobEntry) -> None: ...
    def remove_job(self, job_id: int) -> None: ...
    def fence(self, job_id: int, bits: int) -> None: ...
    def admit(self, job_id: int, bits: int) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def job_counters(self, job_id: int) -> dict[str, int]: ...
    def outcome_counters(self, job_id: int) -> JobOutcomes: ...
    def unknown_job_counters(self) -> dict[str, int]: ...
    def slot(self, index: int) -> SlotState: ...

class SlotTable(_Jobs):
    """The rules of `switchagg.rules.slots`, in C++; `tests/reference/slots.py` is the readable form.

    Of `shards` tables, this one has the slots of every so many-th block, with the number `shard`.
    """

    def __init__(self, capacity: int, shard: int = 0, shards: int = 1) -> None: ...
    def owner(self, index: int) -> int:
        """Returns the number of the table that has a job's slot."""

    def receive_or_shard(self, payload: bytes, source: Address | None) -> tuple[list[Out], int | None]:
        """`receive`, or the number of the table that has the packet's slot; nothing was done then."""

    def receive(self, payload: bytes, source: Address | None) -> list[Out]: ...
    def receive_batch(self, packets: Sequence[tuple[bytes, Address | None]]) -> tuple[list[Out], int]:
        """`receive` for many packets that reads results as late as it can.

        Returns the packets sent, and how often a packet had to wait for a result that it
        would have overwritten.
        """

# For tests.
def parse_header(data: bytes) -> dict[str, int]: ...
def rewrite_header(data: bytes) -> bytes: ...
def kernel_levels() -> list[str]: ...
def run_kernel(level: str, kernel: str, to: bytes, source: bytes) -> bytes: ...

class FaultSettings:
    """`switchagg.emulator.faults.Faults`, in nanoseconds and with a seed."""

    def __init__(
        self,
        *,
        loss: float,
        duplicate: float,
        reorder: float,
        corrupt: float,
        delay_ns: int,
        jitter_ns: int,
        seed: int,
    ) -> None: ...

class RateSettings:
    """`switchagg.emulator.rates.Rate`."""

    def __init__(self, *, bits_per_second: float, queue_bytes: int, mark_bytes: int) -> None: ...

class NativeSwitch(_Jobs):
    """A slot table and the threads that serve it on a UDP socket; see `switchagg.emulator.switch.Switch`."""

    def __init__(self, capacity: int, threads: int = 1) -> None: ...
    def open(
        self,
        address: Address,
        *,
        receive_buffer: int,
        offload: bool,
        rate: RateSettings | None,
        faults: FaultSettings | None,
        capture: int,
        links: bool,
    ) -> None:
        """Binds and starts. Once. Takes over `capture`, a file descriptor or -1. Raises `OSError`."""
    def use_xdp(self, address: str) -> str:
        """Makes `open` take packets through AF_XDP on the interface that has this address, without links.

        Returns how that works there. Raises `OSError` that says what was refused.
        """
    def use_dpdk(
        self,
        address: str,
        *,
        ports: Sequence[Sequence[int]],
        mtu: int,
        pool: int,
        functions: Sequence[int],
        receive_frames: int,
        poll: bool,
    ) -> None:
        """Makes `open` take packets from the ports of `switchagg.devices.dpdk`. Raises `OSError`."""
    def stray_counters(self) -> dict[str, int]: ...
    def host_counters(self) -> dict[str, int]:
        """Datagrams that the device dropped, by reason; empty on a socket of the kernel."""
    def close(self) -> None: ...
    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors. Elsewhere it does nothing."""
    in_own_process: Final[bool]
    address: Final[Address]
    receive_buffer: Final[int]
    link_name: Final[str]
    gso: Final[bool]
    gro: Final[bool]
    failure: Final[str]
    def packet_out(self, packet: bytes) -> list[bytes]: ...
    def port_counters(self) -> dict[str, int]: ...
    def rate_counters(self) -> dict[str, int]: ...
    def fault_counters(self) -> dict[str, int]: ...
    def open_ethernet(
        self,
        interfaces: Sequence[tuple[int, str]],
        *,
        queues: bool,
        udp_port: int,
        controller_port: int,
        receive_buffer: int,
        rate: RateSettings | None,
        faults: FaultSettings | None,
        capture: int,
    ) -> None:
        """Opens the interfaces and starts; with `queues` neither, see `feed`. Raises `OSError`."""
    def add_placed_job(self, job: JobEntry, stations: Sequence[tuple[int, int]]) -> None:
        """`stations`: (port, MAC) of each worker in the order of the job's, then of the parent."""
    def feed(self, port: int | None, frame: bytes) -> list[tuple[int, bytes]]:
        """Without interfaces: takes a frame and returns the frames sent because of it, with their ports.

        Without a port it returns those that `send_frame` and `inject` have queued.
        """
    def send_frame(self, port: int, frame: bytes) -> bool:
        """Sends a frame unchanged out at a port; False where there is no such port."""
    def inject(self, frame: bytes) -> tuple[bytes | None, list[bytes]]:
        """Runs a frame through the switch as from the controller's port.

        Returns the UDP payload of a packet of the protocol for the switch, which is for `packet_out`, and
        the frames that leave by the controller's port.
        """
    # An entry is an id, a (value, mask) for each of `OWN_SOURCE_KEYS` or `LOCAL_KEYS`, and in `local` an
    # action of `LOCAL_ACTIONS`. The highest priority comes first.
    def set_own_source(self, entries: Sequence[tuple[int, tuple[tuple[int, int], ...]]]) -> None: ...
    def set_local(self, entries: Sequence[tuple[int, tuple[tuple[int, int], ...], int]]) -> None: ...
    # `kind` is `DROP`, `FORWARD` to a port, or `FLOOD` to a group.
    def set_station(self, mac: int, kind: int, to: int) -> None: ...
    def remove_station(self, mac: int) -> None: ...
    def set_default_station(self, kind: int, to: int) -> None: ...
    def set_group(self, group: int, ports: Sequence[int]) -> None: ...
    def remove_group(self, group: int) -> None: ...
    def set_arps(self, macs: dict[int, int]) -> None:
        """Sets the answers to ARP requests: MACs by IPv4 address."""
    def clear_frame_tables(self) -> None: ...
    def entry_packets(self) -> dict[int, int]:
        """Packets that hit each entry of `own_source` and `local`, by id."""
    def station_packets(self) -> dict[int, int]:
        """Packets for each station, by MAC."""
    def ether_counters(self) -> dict[str, int]: ...
    def interface_counters(self) -> list[dict[str, Any]]: ...
    def capture_counters(self) -> dict[str, int]: ...
