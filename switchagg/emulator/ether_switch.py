"""`EtherSwitch`: the native switch between network interfaces of this host, as the switch of a rack.

    with EtherSwitch({1: "s1-eth1", 2: "s1-eth2"}) as switch:
        switch.frames.set_default_station(FLOOD, group)     # and the other tables for frames
        switch.add_job(entry, place)                        # with each worker's port

It does what `p4/switchagg_v1model.p4` does: forwards by MAC, answers ARP and echo requests for its address,
and adds. It needs root, or CAP_NET_RAW and CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchagg.emulator.faults import Faults
from switchagg.emulator.mtu import mtu_of
from switchagg.emulator.rates import Rate
from switchagg.emulator.software_switch import SoftwareSwitch
from switchagg.errors import SwitchError, UsageError, require
from switchagg.p4entities.matches import Exact, Range
from switchagg.p4program import entries as p4_entries
from switchagg.p4program.program import (
    ARPS,
    FLOOD_GROUP,
    LOCAL,
    MAX_PORT,
    OWN_SOURCE,
    V1MODEL_CPU_PORT,
    Entries,
    JobPlace,
    Parent,
    Station,
    SwitchAddress,
    TableEntry,
    v1model,
)
from switchagg.rules.slots import Address, JobEntry
from switchagg.wire.header import DEFAULT_PORT, max_words

if TYPE_CHECKING:
    from switchagg.emulator._native import NativeSwitch

OWN_SOURCE_KEYS: Final = ("ethernet_source", "ethernet_type", "tag_type", "hdr.arp.sender_ip", "ipv4_source")
LOCAL_KEYS: Final = ("ethernet_destination", "meta.traffic", "hdr.arp.target_ip", "ipv4_destination")
LOCAL_ACTIONS: Final = {"pass": 0, "answer_arp": 1, "answer_echo": 2, "admit": 3, "drop_local": 4}
"""The engine's numbers of the actions of `local`."""
DROP: Final = 0
FORWARD: Final = 1
FLOOD: Final = 2
_SOCKET_BUFFER: Final = 8 << 20  # of each interface, for super-frames
_RING: Final = 1 << 20  # bytes of packets that an interface's ring takes in any case
_INTERFACE_NAME: Final = 15
_LARGEST_MTU: Final = 9000


class EtherSwitch(SoftwareSwitch):
    """A software switch between interfaces.

    Args:
        interfaces: the interface of each port, 0..511. None makes a switch without interfaces, whose frames
            come and go by `feed`, with `ports`.
        udp_port: of the protocol.
        controller_port: the number of the port behind which the controller is; no interface has it.
        capacity: slots, 1..65,536.
        rate: of each port's link, each way.
        faults: what to do to frames, on their way in and out; None for nothing.
        pcap: file to write all frames to; overwritten.

    Raises `UsageError` for a value that cannot work and `SwitchError` on other systems than Linux.
    """

    def __init__(
        self,
        interfaces: Mapping[int, str] | None,
        *,
        ports: tuple[int, ...] = (),
        udp_port: int = DEFAULT_PORT,
        controller_port: int = V1MODEL_CPU_PORT,
        capacity: int = 65536,
        rate: Rate | None = None,
        faults: Faults | None = None,
        pcap: Path | None = None,
    ) -> None:
        super().__init__(capacity, rate, faults, pcap)
        if interfaces is not None and not interfaces:
            raise UsageError("a switch between interfaces needs one at least")
        self.interfaces = dict(interfaces or {})
        """The interface of each port."""
        self._queues = interfaces is None
        self.ports = tuple(sorted(self.interfaces)) or ports
        """Numbers of its ports."""
        for port in self.ports:
            if not 0 <= port <= MAX_PORT or port == controller_port:
                raise UsageError(
                    f"port is {port}; accepted: 0..{MAX_PORT}, but {controller_port}, the controller's"
                )
        if len(set(self.interfaces.values())) < len(self.interfaces):
            raise UsageError(f"an interface can be one port only, and these are: {self._named()}")
        for name in self.interfaces.values():
            if not 0 < len(name.encode()) <= _INTERFACE_NAME:
                raise UsageError(
                    f"interface {name!r}: an interface's name has 1 to {_INTERFACE_NAME} characters"
                )
        if not 1 <= udp_port <= 0xFFFF:
            raise UsageError(f"port is {udp_port}; accepted: 1..65535")
        self.udp_port, self._controller_port = udp_port, controller_port
        self.mtu = _LARGEST_MTU
        """Bytes of the largest IP packet that all interfaces carry; known from the start on."""

    def start(self) -> None:
        """Opens the interfaces and serves frames from now on.

        Raises:
            UsageError: there is no such interface, or `pcap` cannot be written.
            SwitchError: no permission for packet sockets, or this switch was started before.
        """
        for name in self.interfaces.values():
            try:
                self.mtu = min(self.mtu, mtu_of(name))
            except OSError:
                raise UsageError(
                    f"interface {name}: there is none; `ip link` lists those of this host"
                ) from None
        try:
            self._open(
                self._native.open_ethernet,
                [(port, self.interfaces.get(port, "")) for port in self.ports],
                queues=self._queues,
                udp_port=self.udp_port,
                controller_port=self._controller_port,
                receive_buffer=_SOCKET_BUFFER,
            )
        except OSError as error:
            raise _open_error(error) from error

    @property
    def address(self) -> Address:
        """0.0.0.0 and the UDP port: the frame tables hold the IP address."""
        return "0.0.0.0", self.udp_port

    @property
    def largest_words(self) -> int:
        """The largest K that all interfaces carry; known from the start on."""
        return max_words(self.mtu)

    @property
    def receive_buffer(self) -> int:
        """Bytes that each interface may queue. What workers have in flight together should fit."""
        return _RING

    @property
    def link(self) -> str:
        """No worker attaches by shared memory."""
        return ""

    @property
    def threads(self) -> int:
        """One thread has all slots."""
        return 1

    @property
    def memory(self) -> str:
        """No job has shared slots."""
        return ""

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator: interfaces that are down, frames that no cable carries, a failure."""
        return [
            f"interface {each['name']} (port {each['port']}) is down or away: ip link set {each['name']} up; "
            "its frames are dropped until it is back"
            for each in self.interface_counters()
            if not each["up"]
        ] + self.trouble

    @property
    def trouble(self) -> list[str]:
        """Of `warnings`, those that do not pass by themselves."""
        found = []
        for each in self.interface_counters():
            name = each["name"]
            if each["refused"]:
                found.append(
                    f"interface {name}: super-frames of an offload were dropped that cannot be cut up; on "
                    f"the host that sends them: ethtool -K {name} tso off gso off tx-udp-segmentation off"
                )
            if each["too_large"]:
                found.append(
                    f"interface {name}: frames larger than it carries were dropped: give all interfaces one "
                    f"MTU, or ethtool -K IFACE gro off lro off where they come from another host"
                )
        return found + self._capture_warnings

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None:
        """Admits a job's workers. Its slots need INIT packets (`packet_out`) before they work.

        Args:
            place: behind which port each worker is, and its MAC; the parent's, where the job has one.

        Raises `UsageError` where the id is in use, the range leaves the capacity or overlaps another job's,
        or somebody has no place.
        """
        if place is None:
            raise UsageError(f"job {job.job} has no places: a switch on Ethernet needs its workers' ports")
        stations = []
        for worker in job.workers:
            station = place.stations.get(worker.bit)
            if station is None:
                raise UsageError(f"job {job.job}: worker {worker.bit} has no place")
            stations.append((station.port, station.mac))
        if job.parent is not None:
            if place.parent is None:
                raise UsageError(f"job {job.job}: its parent has no place")
            stations.append((place.parent.station.port, place.parent.station.mac))
        self._here().add_placed_job(job, stations)

    # ---- frames ----

    @property
    def frames(self) -> NativeSwitch:
        """The engine's tables for frames, its frames from and to the controller, and its counters of both."""
        return self._here()

    def ether_counters(self) -> dict[str, int]:
        """Returns counts of frames by outcome: own_source, answered_arp, answered_echo, admitted,
        local_dropped, forwarded, flooded, unknown, returned, malformed, unaddressed, no_such_port."""
        return self._here().ether_counters()

    def interface_counters(self) -> list[dict[str, Any]]:
        """Returns of each interface: port, name, up; packets and bytes, in and out; send_errors, and of these
        too_large; missed, which came while the buffer was full; split and refused super-frames; downs."""
        return self._here().interface_counters()

    def port_counters(self) -> dict[str, int]:
        """Returns packets_in, packets_out, and these of each port; send_errors, no_such_port, downs."""
        interfaces = self.interface_counters()
        total = {
            name: sum(each[name] for each in interfaces)
            for name in ("packets_in", "packets_out", "send_errors", "missed", "split", "refused", "downs")
        }
        total["no_such_port"] = self.ether_counters()["no_such_port"]
        for each in interfaces:
            for name in ("packets_in", "packets_out"):
                total[f"port_{each['port']}_{name}"] = each[name]
        return total

    def _named(self) -> str:
        return ", ".join(f"{port}={name}" for port, name in sorted(self.interfaces.items()))


class RackSwitch(EtherSwitch):
    """An `EtherSwitch` that knows its own address and its stations, and so needs no places of jobs' workers.

    Frames for unknown stations are flooded.

    Args:
        interfaces, options: as of `EtherSwitch`.
        own: the switch's addresses; None for a switch that only forwards.
        stations: hosts and other switches, by IPv4 address.

    Raises `UsageError` for a station behind no port.
    """

    def __init__(
        self,
        interfaces: Mapping[int, str],
        own: SwitchAddress | None,
        stations: Mapping[str, Station],
        **options: Any,
    ) -> None:
        super().__init__(interfaces, udp_port=own.udp_port if own else DEFAULT_PORT, **options)
        self._own, self._stations = own, stations
        for ip, station in stations.items():
            if station.port not in self.ports:
                raise UsageError(
                    f"station {ip} is at port {station.port}; accepted: {', '.join(map(str, self.ports))}"
                )

    def start(self) -> None:
        """Opens the interfaces, fills the tables for frames, and serves; raises as `EtherSwitch` does."""
        super().start()
        entries = Entries((), ())
        if self._own is not None:
            entries = p4_entries.switch_entries(v1model(), self._own, self.ports)
        fill_frame_tables(self, entries, self._stations.values())

    @property
    def address(self) -> Address:
        """The address that workers send to; 0.0.0.0 for a switch that only forwards."""
        return super().address if self._own is None else (self._own.ip, self._own.udp_port)

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None:
        """Admits a job's workers, at their stations unless `place` is given; raises as `EtherSwitch` does."""
        super().add_job(job, place or self._place(job))

    def _place(self, job: JobEntry) -> JobPlace:
        addresses = [each.ip for each in job.workers] + ([job.parent.ip] if job.parent else [])
        for ip in addresses:
            if ip not in self._stations:
                raise UsageError(f"job {job.job}: {ip} is no station; name it: station {ip},MAC,PORT")
        above, parent = job.parent, None
        if above is not None:
            station = self._stations[above.ip]
            parent = Parent(station, above.ip, above.token, above.base, above.result_token, above.port)
        return JobPlace(0, {each.bit: self._stations[each.ip] for each in job.workers}, parent)


def interfaces_by_port(given: Iterable[tuple[str, str]]) -> dict[int, str]:
    """Returns names of interfaces by port.

    Args:
        given: texts PORT=NAME, each with the message for one of another form.

    Raises `UsageError` for another form, a port that no switch has, or one that is given twice.
    """
    found: dict[int, str] = {}
    for text, wrong in given:
        port, _, name = text.partition("=")
        if not (port.isascii() and port.isdigit()) or not name:
            raise UsageError(wrong)
        number = int(port[:9])  # longer numbers are no port of any switch
        require(number <= MAX_PORT, "port", number, f"0..{MAX_PORT}")
        if number in found:
            raise UsageError(f"port {port} is given twice")
        found[number] = name
    return found


def fill_frame_tables(switch: EtherSwitch, entries: Entries, stations: Iterable[Station]) -> None:
    """Fills a started switch's tables for frames; frames for unknown stations are flooded by all ports.

    Args:
        entries: those of a switch; what is in other tables is left out.
    """
    tables = switch.frames
    ordered = sorted(entries.tables, key=lambda entry: -entry.priority)
    own_source = [each for each in ordered if each.table == OWN_SOURCE]
    local = [each for each in ordered if each.table == LOCAL]
    tables.set_own_source(
        [(number, _values_and_masks(each, OWN_SOURCE_KEYS)) for number, each in enumerate(own_source, 1)]
    )
    tables.set_local(
        [
            (number, _values_and_masks(each, LOCAL_KEYS), LOCAL_ACTIONS[each.action])
            for number, each in enumerate(local, 1 + len(own_source))
        ]
    )
    tables.set_arps(
        {
            key.value: each.params["mac"]
            for each in ordered
            if each.table == ARPS and isinstance(key := each.matches["hdr.arp.target_ip"], Exact)
        }
    )
    tables.set_group(FLOOD_GROUP, list(switch.ports))
    tables.set_default_station(FLOOD, FLOOD_GROUP)
    for station in stations:
        tables.set_station(station.mac, FORWARD, station.port)


def _values_and_masks(entry: TableEntry, keys: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    found = []
    for key in keys:
        match = entry.matches.get(key)
        assert not isinstance(match, Range), "tables for frames have no ranges"
        if match is None:
            found.append((0, 0))
        elif isinstance(match, Exact):
            found.append((match.value, (1 << 64) - 1))
        else:
            found.append((match.value, match.mask))
    return tuple(found)


def _open_error(error: OSError) -> SwitchError | UsageError:
    what = str(error.strerror or error)
    match error.errno:
        case errno.EPERM | errno.EACCES:
            return SwitchError(
                "packet sockets need root, or CAP_NET_RAW and CAP_NET_ADMIN: run it with sudo, or in a "
                "network namespace of your own (unshare -Urn)"
            )
        case errno.ENODEV:
            return UsageError(
                f"interface {what.partition(':')[0]}: there is none; `ip link` lists those of this host"
            )
        case _:
            return SwitchError(f"interfaces cannot be opened: {what}")
