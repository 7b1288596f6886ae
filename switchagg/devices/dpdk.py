"""DPDK by ctypes: starts it, opens its ports, and hands to native code the functions that move packets.

    settings = DpdkSettings("--no-huge --no-pci --vdev=net_af_packet0,iface=eth1")
    ports = start(settings)              # once a process; the same again for the same settings
    ports.native_arguments("a worker")   # of Socket.on_dpdk and NativeSwitch.use_dpdk

Nothing is needed to build or to install: the libraries are looked for when somebody asks for DPDK. Versions
of its ABI differ in the layout of what is inline in C. `LAYOUTS` has those that are known, and others are
refused. Each start checks the layout against the library itself: `_check_pool`, `_check_mbufs`,
`_check_function`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from switchagg.errors import NetworkError, UsageError

VARIABLE: Final = "SWITCHAGG_DPDK"
_QUEUE: Final = 1024  # descriptors
_FEWEST_MBUFS: Final = 16383
_BURSTS: Final = 256  # mbufs of a queue on their way between its rings and a thread
_RECEIVE_FRAMES: Final = 2048  # that may wait: the queue and what is taken from it
_HEADROOM: Final = 128
_DATA_ROOM: Final = 2048
_LARGEST_MTU: Final = 9216
_MOST_PORTS: Final = 32
_STRUCT: Final = 16384  # more than any structure has that the library reads or fills in
_REFUSED: Final = (
    "-h",
    "--help",
    "-v",
    "--version",
    "--proc-type=secondary",
)  # end the process, or need another


@dataclass(frozen=True, slots=True)
class DpdkSettings:
    """The way to start DPDK.

    Attributes:
        arguments: of its EAL, as its programs take them, such as ``--no-huge --no-pci --vdev=net_ring0``. All
            ports that it finds are used.
        mtu: bytes of the largest IP packet; None for the ports' own.
        poll: look for packets all the time, with a whole core, and never sleep.
        queues: of each port, each way: one for each thread of a switch.
    """

    arguments: str
    mtu: int | None = None
    poll: bool = False
    queues: int = 1

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.arguments)
        except ValueError as error:
            raise UsageError(f"DPDK's arguments are {self.arguments!r}: {error}") from None
        for word in words:
            if word in _REFUSED:
                raise UsageError(f"DPDK's arguments have {word!r}; accepted: those that start a process")
        if self.mtu is not None and not 68 <= self.mtu <= _LARGEST_MTU:
            raise UsageError(f"DPDK's MTU is {self.mtu}; accepted: 68..{_LARGEST_MTU}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> DpdkSettings:
        """Reads SWITCHAGG_DPDK (arguments), SWITCHAGG_DPDK_MTU and SWITCHAGG_DPDK_POLL (1).

        Raises `UsageError` where the first is not set, or a value cannot be.
        """
        if VARIABLE not in environment:
            raise UsageError(
                f"transport is 'dpdk', and {VARIABLE} is not set; give it the arguments of DPDK's EAL: "
                f"{VARIABLE}='-a 0000:01:00.0' or '--no-huge --no-pci --vdev=net_af_packet0,iface=eth1'"
            )
        mtu = environment.get(f"{VARIABLE}_MTU") or None
        poll = environment.get(f"{VARIABLE}_POLL") or "0"
        if (mtu is not None and not mtu.isdecimal()) or poll not in ("0", "1"):
            raise UsageError(
                f"{VARIABLE}_MTU is {mtu!r} and {VARIABLE}_POLL {poll!r}; accepted: bytes; 0 or 1"
            )
        return cls(environment[VARIABLE], None if mtu is None else int(mtu), poll == "1")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Offsets in bytes that differ between versions of the ABI.

    `burst` and `queue` are in a half of `rte_eth_fp_ops`, of which the first receives; `interrupts` is the
    byte of `rte_eth_conf` with the flags of interrupts.
    """

    burst: int
    queue: int
    interrupts: int


LAYOUTS: Final = {
    23: _Layout(burst=0, queue=24, interrupts=2264),  # 22.11
    24: _Layout(burst=16, queue=0, interrupts=2272),  # 23.11
    25: _Layout(burst=16, queue=0, interrupts=2272),  # 24.11
}
"""By the number of the ABI, which is that of the shared libraries."""

_FP_OPS: Final = 128  # bytes of a port's `rte_eth_fp_ops`
_HALF: Final = 64
_MBUF: Final = {"refcnt": 18, "nb_segs": 20, "pkt_len": 36, "data_len": 40, "data_off": 16, "pool": 56}
_MEMPOOL_SIZE: Final = 64
_MEMPOOL_OPS: Final = 88
_OPS_TABLE: Final = 64  # the place of its first entry
_OPS: Final = 128  # bytes of an entry
_DEQUEUE: Final = 56
_GET_COUNT: Final = 64
_RXQ_INTERRUPTS: Final = 2
_RSS: Final = (1 << 2 | 1 << 5, 1 << 5, 1 << 2)
"""By IPv4 addresses, by ports of UDP too: a driver refuses what has a bit that it does not know."""
_RSS_IN_CONF: Final = 16  # the place of the bits in `rte_eth_rss_conf`
_MQ_MODE: Final = 8  # in `rte_eth_conf`; 1 is RSS
_MTU: Final = 12
_RSS_HASH: Final = 144
_LIBRARIES: Final = ("eal", "mempool", "mbuf", "ethdev")


class _Library:
    """The loaded libraries of one version."""

    def __init__(self) -> None:
        loaded: dict[str, ctypes.CDLL] = {}
        for abi in sorted(LAYOUTS, reverse=True):
            with contextlib.suppress(OSError):
                loaded = {
                    name: ctypes.CDLL(f"librte_{name}.so.{abi}", mode=ctypes.RTLD_GLOBAL)
                    for name in _LIBRARIES
                }
                self.abi, self.layout = abi, LAYOUTS[abi]
                break
        if not loaded:
            raise NetworkError(_missing())
        self.eal, self.mempool, self.mbuf, self.ethdev = (loaded[name] for name in _LIBRARIES)
        self.eal.rte_version.restype = ctypes.c_char_p
        self.eal.rte_strerror.restype = ctypes.c_char_p
        self.mbuf.rte_pktmbuf_pool_create.restype = ctypes.c_void_p
        self.read = self.mbuf["__rte_pktmbuf_read"]
        self.read.restype = ctypes.c_void_p
        self.version = self.eal.rte_version().decode()

    def error(self) -> str:
        number = ctypes.c_int.in_dll(self.eal, "per_lcore__rte_errno").value
        return str(self.eal.rte_strerror(number).decode())

    def address(self, library: ctypes.CDLL, name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    def data(self, library: ctypes.CDLL, name: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))


def _missing() -> str:
    import subprocess  # not above: a worker without DPDK imports this module too

    known = ", ".join(map(str, sorted(LAYOUTS)))
    with contextlib.suppress(OSError):
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        found = sorted({line.split()[0] for line in listed.splitlines() if "librte_eal.so." in line})
        if found:
            return (
                f"DPDK is here as {', '.join(found)}, and this ABI is not known or not whole; known: {known} "
                "(22.11, 23.11, 24.11), with the libraries librte_eal, mempool, mbuf and ethdev"
            )
    return (
        f"DPDK is not installed: no librte_eal.so of the ABI {known}. On Debian: apt-get install "
        "librte-ethdev23 librte-mempool-ring23, and the drivers of the ports, such as librte-net-memif23"
    )


class DpdkPorts:
    """DPDK, started, and its ports, open. Made by `start`.

    Attributes:
        settings: what it was started with.
        version: as the library says it, such as "DPDK 22.11.11".
        mtu: bytes of the largest IP packet that all ports carry.
    """

    def __init__(self, settings: DpdkSettings) -> None:
        self.settings = settings
        self._rings: dict[int, tuple[int, int]] = {}  # descriptors of a port's queues to receive and to send
        self._room = _HEADROOM + max(_DATA_ROOM, (settings.mtu or 0) + 64)
        self._library = library = _Library()
        self._owner = ""
        self.version = library.version
        with _kept_output() as said:
            self._start_eal(said)
            self.numbers = [
                number for number in range(_MOST_PORTS) if library.ethdev.rte_eth_dev_is_valid_port(number)
            ]
            if not self.numbers:
                raise UsageError(
                    f"DPDK finds no port with the arguments {settings.arguments!r}; name a device with -a or "
                    f"--vdev, and install its driver{said()}"
                )
            for number in self.numbers:
                self._configure(number, said)
            mbufs = self._mbufs(map(sum, self._rings.values()))
            self._pool = self._make_pool(mbufs)
            _check_pool(library, self._pool, mbufs)
            _check_mbufs(library, self._pool)
            self.mtu = min(self._open_port(number, said) for number in self.numbers)
        self._ports = [
            self._native_port(number, queue) for number in self.numbers for queue in range(settings.queues)
        ]

    # ---- start ----

    def _mbufs(self, descriptors: Iterable[int]) -> int:
        """Packets that full rings of all ports hold, and what threads have from and for them.

        Args:
            descriptors: of a queue each way, by port.
        """
        queues = self.settings.queues
        rings = sum(queues * (each + _BURSTS) for each in descriptors)
        return max(_FEWEST_MBUFS, rings + queues * _RECEIVE_FRAMES)

    def _megabytes(self, mbufs: int) -> int:
        """Memory without hugepages that a pool of so many packets fits into."""
        pages = -(-(self._room + 512) // 4096)  # of an mbuf, which begins in a page of its own
        return 64 + mbufs * pages * 4096 // 2**20

    def _start_eal(self, said: _Said) -> None:
        words = shlex.split(self.settings.arguments)
        # One thread of DPDK's own, and on the processors that this one may use.
        if not any(word.startswith(("-l", "-c", "--lcores")) for word in words):
            mine = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            words += [f"--lcores=0@({mine})"]
        if "--no-telemetry" not in words and "--telemetry" not in words:
            words.append("--no-telemetry")
        if "--no-huge" in words and not any(
            word.startswith("-m") or word == "--socket-mem" for word in words
        ):
            devices = sum(word.startswith(("--vdev", "-a", "--allow")) for word in words)
            words += ["-m", str(self._megabytes(self._mbufs([2 * _QUEUE] * devices)))]
        if not any(word.startswith(("--file-prefix", "--in-memory", "--no-shconf")) for word in words):
            # Several processes on a host, and no file that outlives them.
            words.append("--no-shconf" if "--no-huge" in words else "--in-memory")
        line = [b"switchagg", *(word.encode() for word in words)]
        affinity = os.sched_getaffinity(0)
        done = self._library.eal.rte_eal_init(len(line), (ctypes.c_char_p * len(line))(*line))
        os.sched_setaffinity(0, affinity)
        if done < 0:
            why = self._library.error()
            if ctypes.c_int.in_dll(self._library.eal, "per_lcore__rte_errno").value in (
                errno.EACCES,
                errno.EPERM,
            ):
                why += "; hugepages and devices need root, and --no-huge --no-pci do without them"
            raise UsageError(f"DPDK does not start with the arguments {shlex.join(words)!r}: {why}{said()}")

    def _make_pool(self, mbufs: int) -> int:
        pool = self._library.mbuf.rte_pktmbuf_pool_create(b"switchagg", mbufs, 0, 0, self._room, -1)
        if not pool:
            raise NetworkError(
                f"DPDK has no memory for {mbufs:,} packets of {self._room:,} bytes: {self._library.error()}; "
                f"its ports ({len(self.numbers)}) and their queues each way ({self.settings.queues}) need -m "
                f"{self._megabytes(mbufs)} or more, or as many MiB of hugepages"
            )
        return int(pool)

    def _open_port(self, number: int, said: _Said) -> int:
        """Starts a port; returns its MTU."""
        ethdev = self._library.ethdev

        def checked(result: int, what: str) -> None:
            self._checked(number, result, what, said)

        if self.settings.mtu is not None:
            result = ethdev.rte_eth_dev_set_mtu(number, self.settings.mtu)
            # Some drivers have nothing to set.
            checked(0 if result == -errno.ENOTSUP else result, f"it takes no MTU of {self.settings.mtu}")
        receive, send = self._rings[number]
        pool = ctypes.c_void_p(self._pool)
        for queue in range(self.settings.queues):
            result = ethdev.rte_eth_rx_queue_setup(number, queue, receive, -1, None, pool)
            checked(result, "no queue to receive with")
            checked(ethdev.rte_eth_tx_queue_setup(number, queue, send, -1, None), "no queue to send with")
        checked(ethdev.rte_eth_dev_start(number), "it does not start")
        mtu = ctypes.c_uint16()
        checked(ethdev.rte_eth_dev_get_mtu(number, ctypes.byref(mtu)), "it has no MTU")
        return min(mtu.value, self._room - _HEADROOM - 18)

    def _ring_sizes(self, number: int, said: _Said) -> tuple[int, int]:
        """Descriptors of a configured port's queues to receive and to send, as its driver takes them."""
        sizes = [ctypes.c_uint16(_QUEUE) for _ in range(2)]
        adjust = self._library.ethdev.rte_eth_dev_adjust_nb_rx_tx_desc
        self._checked(number, adjust(number, *map(ctypes.byref, sizes)), "its queues", said)
        return sizes[0].value, sizes[1].value

    def _rss(self, number: int) -> str:
        """A started port's own word on whether it spreads packets over its queues."""
        held = ctypes.create_string_buffer(_STRUCT)
        if self._library.ethdev.rte_eth_dev_rss_hash_conf_get(number, held) < 0:
            return "reports no RSS"
        found = ctypes.c_uint64.from_buffer(held, _RSS_IN_CONF).value & _RSS[0]
        return {0: "does not spread UDP by RSS", _RSS[2]: "has RSS by addresses"}.get(
            found, "has RSS by addresses and ports"
        )

    def _checked(self, number: int, result: int, what: str, said: _Said) -> None:
        if result < 0:
            raise NetworkError(f"DPDK's port {self.name(number)}: {what}: {os.strerror(-result)}{said()}")

    def _configure(self, number: int, said: _Said) -> None:
        """Gives a port its queues; with interrupts, and packets spread by addresses, where it can do these.

        Raises `UsageError` where it has fewer queues.
        """
        queues, name = self.settings.queues, self.name(number)
        if queues > 1 and name.startswith("net_memif"):
            # A memif writes into rings of queues that the other side does not have.
            raise UsageError(f"threads is {queues}; accepted with DPDK's port {name}, a memif: 1")
        configuration = ctypes.create_string_buffer(_STRUCT)
        ctypes.c_uint32.from_buffer(configuration, _MTU).value = self.settings.mtu or 0
        flags = ctypes.c_uint32.from_buffer(configuration, self._library.layout.interrupts)
        mode = ctypes.c_uint32.from_buffer(configuration, _MQ_MODE)
        spread = ctypes.c_uint64.from_buffer(configuration, _RSS_HASH)

        def configure(count: int, interrupts: int, hashed: int) -> int:
            flags.value, mode.value, spread.value = interrupts, int(hashed != 0), hashed
            return int(self._library.ethdev.rte_eth_dev_configure(number, count, count, configuration))

        for hashed in (*_RSS, 0) if queues > 1 else (0,):
            for interrupts in (0,) if self.settings.poll else (_RXQ_INTERRUPTS, 0):
                result = configure(queues, interrupts, hashed)
                if result >= 0:
                    self._rings[number] = self._ring_sizes(number, said)
                    return
        fewer = [count for count in range(1, queues) if configure(count, 0, 0) >= 0]
        if fewer:
            raise UsageError(
                f"threads is {queues}; accepted with DPDK's port {name}: 1..{fewer[-1]}, its queues each way"
            )
        what = f"it takes no configuration, MTU {self.settings.mtu or 'unchanged'}"
        self._checked(number, result, what, said)

    def _native_port(self, number: int, queue: int) -> list[int]:
        library, layout = self._library, self._library.layout
        at = library.data(library.ethdev, "rte_eth_fp_ops") + number * _FP_OPS
        mac = ctypes.create_string_buffer(6)
        library.ethdev.rte_eth_macaddr_get(number, mac)
        found = []
        for half in (at, at + _HALF):
            burst = _read(half + layout.burst)
            queues = _read(half + layout.queue)
            _check_function(library, burst, self.name(number))
            found += [burst, _read(queues + 8 * queue)]
        interrupt = -1
        if not self.settings.poll and library.ethdev.rte_eth_dev_rx_intr_enable(number, queue) == 0:
            library.ethdev.rte_eth_dev_rx_intr_disable(number, queue)
            interrupt = library.ethdev.rte_eth_dev_rx_intr_ctl_q_get_fd(number, queue)
        return [number, *found, int.from_bytes(mac.raw, "big"), interrupt, queue]

    # ---- use ----

    def native_arguments(self, owner: str) -> dict[str, Any]:
        """Returns keyword arguments of `Socket.on_dpdk` and `NativeSwitch.use_dpdk`.

        Args:
            owner: who takes the ports' packets, such as "a switch"; the same each time.

        Raises `UsageError` for another owner.
        """
        if self._owner not in ("", owner):
            raise UsageError(
                f"this process's DPDK ports belong to {self._owner}; start {owner} in another process"
            )
        self._owner = owner
        library = self._library
        table = library.data(library.mempool, "rte_mempool_ops_table")
        ops = table + _OPS_TABLE + _OPS * _read(self._pool + _MEMPOOL_OPS, ctypes.c_int32)
        functions = [_read(ops + _DEQUEUE), library.address(library.mbuf, "rte_pktmbuf_free_bulk")]
        for name in ("rte_eth_dev_rx_intr_enable", "rte_eth_dev_rx_intr_disable"):
            functions.append(library.address(library.ethdev, name))
        return {
            "ports": self._ports,
            "mtu": self.mtu,
            "pool": self._pool,
            "functions": functions,
            "receive_frames": _RECEIVE_FRAMES,
            "poll": self.settings.poll,
        }

    def name(self, number: int) -> str:
        """The name of a port, such as "net_memif0" or a PCI address."""
        found = ctypes.create_string_buffer(256)
        self._library.ethdev.rte_eth_dev_get_name_by_port(number, found)
        return found.value.decode()

    def link_up(self, number: int) -> bool:
        """True if a port has a link: a cable, or the other side of a virtual one."""
        link = ctypes.create_string_buffer(64)
        self._library.ethdev.rte_eth_link_get_nowait(number, link)
        return bool(link.raw[4] & 4)

    def statistics(self, number: int) -> dict[str, int]:
        """Returns what a port counts: packets and bytes, in and out, and what it could not take or send."""
        names = (
            "packets_in",
            "packets_out",
            "bytes_in",
            "bytes_out",
            "missed",
            "errors_in",
            "errors_out",
            "no_mbuf",
        )
        values = (ctypes.c_uint64 * (_STRUCT // 8))()
        self._library.ethdev.rte_eth_stats_get(number, ctypes.byref(values))
        return dict(zip(names, values, strict=False))

    @property
    def free_mbufs(self) -> int:
        """Packets that the pool has memory for now."""
        return int(self._library.mempool.rte_mempool_avail_count(ctypes.c_void_p(self._pool)))

    @property
    def description(self) -> str:
        """A line for people: version, ports, whether it sleeps; with several queues, which ports have RSS."""
        names = ", ".join(self.name(number) for number in self.numbers)
        interrupts = all(port[6] >= 0 for port in self._ports)
        waits = (
            "polls"
            if self.settings.poll
            else "waits for interrupts"
            if interrupts
            else "sleeps between looks"
        )
        several = self.numbers if self.settings.queues > 1 else ()
        rss = (f"{self.name(number)} {self._rss(number)}" for number in several)
        return ", ".join((f"{self.version} on {names}, MTU {self.mtu}, {waits}", *rss))

    def stop(self) -> None:
        """Stops the ports, which then write what they hold back, such as captures.

        No switch or session may have them any more. A process that ends need not call it.
        """
        while self.numbers:
            number = self.numbers.pop()
            self._library.ethdev.rte_eth_dev_stop(number)
            self._library.ethdev.rte_eth_dev_close(number)


_lock = threading.Lock()
_started: list[tuple[int, DpdkPorts]] = []  # at most one, with the process that has it


def start(settings: DpdkSettings) -> DpdkPorts:
    """Starts DPDK in this process, or returns the ports that were started with the same settings.

    Raises:
        UsageError: its arguments cannot work, it finds no port, or the process has started it otherwise.
        NetworkError: it is not installed, its ABI is not known, or a port does not open.
    """
    if sys.platform != "linux":
        raise UsageError(f"DPDK is used on Linux only; this is {sys.platform}")
    with _lock:
        for process, ports in _started:
            if process != os.getpid():
                raise UsageError(
                    "DPDK was started by the parent of this process; start a fresh process instead of a fork"
                )
            if ports.settings != settings:
                raise UsageError(
                    f"DPDK runs in this process already, with {ports.settings}; a process starts it once, "
                    f"not also with {settings}"
                )
            return ports
        made = DpdkPorts(settings)
        _started.append((os.getpid(), made))
        return made


# ---- the library against what we know of it ----


def _read(at: int, kind: Any = ctypes.c_uint64) -> int:
    return int(kind.from_address(at).value)


def _unlike(library: _Library, what: str) -> NetworkError:
    return NetworkError(f"{library.version} (ABI {library.abi}) is not laid out as it should be: {what}")


def _check_pool(library: _Library, pool: int, size: int) -> None:
    """Raises `NetworkError` unless the memory pool and its operations are where they should be."""
    if _read(pool + _MEMPOOL_SIZE, ctypes.c_uint32) != size:
        raise _unlike(library, "the size of a memory pool is elsewhere")
    index = _read(pool + _MEMPOOL_OPS, ctypes.c_int32)
    table = library.data(library.mempool, "rte_mempool_ops_table")
    if not 0 <= index < min(_read(table + 4, ctypes.c_uint32), 16):
        raise _unlike(library, "the operations of a memory pool are elsewhere")
    ops = table + _OPS_TABLE + _OPS * index
    count = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p)
    _check_function(library, _read(ops + _GET_COUNT), "the memory pool")
    _check_function(library, _read(ops + _DEQUEUE), "the memory pool")
    if count(_read(ops + _GET_COUNT))(pool) != library.mempool.rte_mempool_avail_count(ctypes.c_void_p(pool)):
        raise _unlike(library, "a memory pool's operations count otherwise than the library")


def _check_mbufs(library: _Library, pool: int) -> None:
    """Raises `NetworkError` unless each field of an mbuf that we write is the one that the library reads.

    The library's own check of an mbuf says which field is wrong. Each field in turn is set to a value that
    cannot be.
    """
    ops = library.data(library.mempool, "rte_mempool_ops_table") + _OPS_TABLE
    ops += _OPS * _read(pool + _MEMPOOL_OPS, ctypes.c_int32)
    one = (ctypes.c_void_p * 1)()
    dequeue = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)(
        _read(ops + _DEQUEUE)
    )
    before = library.mempool.rte_mempool_avail_count(ctypes.c_void_p(pool))
    if dequeue(pool, ctypes.cast(one, ctypes.c_void_p), 1) != 0 or not one[0]:
        raise _unlike(library, "a memory pool gives no mbuf")
    mbuf: int = one[0]
    if library.mempool.rte_mempool_avail_count(ctypes.c_void_p(pool)) != before - 1:
        raise _unlike(library, "a memory pool has given another number of mbufs")

    def verdict() -> str:
        reason = ctypes.c_char_p()
        bad = library.mbuf.rte_mbuf_check(ctypes.c_void_p(mbuf), 1, ctypes.byref(reason))
        return (reason.value or b"").decode() if bad else ""

    def field(name: str) -> Any:
        kind = {"pkt_len": ctypes.c_uint32, "pool": ctypes.c_uint64}.get(name, ctypes.c_uint16)
        return kind.from_address(mbuf + _MBUF[name])

    field("data_off").value, field("pkt_len").value, field("data_len").value = _HEADROOM, 100, 100
    if said := verdict():
        raise _unlike(library, f"a fresh mbuf is called wrong ({said})")
    wrong = {
        "pool": (0, "bad mbuf pool"),
        "refcnt": (0, "bad ref cnt"),
        "nb_segs": (2, "bad nb_segs"),
        "pkt_len": (101, "bad pkt_len"),
        "data_len": (101, "bad data_len"),
        "data_off": (0xFFF0, "data offset too big in mbuf segment"),
    }
    for name, (value, reason) in wrong.items():
        right = field(name).value
        field(name).value = value
        said = verdict()
        field(name).value = right
        if said != reason:
            raise _unlike(library, f"{name} of an mbuf is elsewhere (the library says {said or 'nothing'!r})")
    # The data itself: the library reads what we wrote behind buf_addr and data_off.
    data = _read(mbuf) + _HEADROOM
    ctypes.memmove(data, bytes(range(100)), 100)
    copy = ctypes.create_string_buffer(100)
    at = library.read(ctypes.c_void_p(mbuf), 0, 100, copy)
    if not at or ctypes.string_at(at, 100) != bytes(range(100)):
        raise _unlike(library, "an mbuf's data are elsewhere")
    library.mbuf.rte_pktmbuf_free_bulk(one, 1)
    if library.mempool.rte_mempool_avail_count(ctypes.c_void_p(pool)) != before:
        raise _unlike(library, "a freed mbuf does not return to its pool")


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _check_function(library: _Library, address: int, whose: str) -> None:
    """Raises `NetworkError` unless this is an address in one of DPDK's libraries."""
    info = _DlInfo()
    found = address and ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    if not found or not os.path.basename(info.file or b"").startswith((b"librte_", b"dpdk")):
        raise _unlike(library, f"a function of {whose} is elsewhere")


# ---- what DPDK says while it starts ----


class _Said:
    """Calling it returns the last lines that DPDK has written, to put behind a message."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __call__(self) -> str:
        self._file.seek(0)
        lines = [line.strip() for line in self._file.read().decode(errors="replace").splitlines()]
        told = [line for line in lines if line.startswith("EAL: ") or "(): " in line]
        told = [line for line in told if not line.startswith(("EAL: Detected", "EAL: Selected"))]
        return f" ({'; '.join(told[-3:])})" if told else ""


@contextlib.contextmanager
def _kept_output() -> Iterator[_Said]:
    """Keeps what DPDK writes to standard output and error, which has no other place for its reasons."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    with tempfile.TemporaryFile() as file:
        before = {number: os.dup(number) for number in (1, 2)}
        for number in before:
            os.dup2(file.fileno(), number)
        try:
            yield _Said(file)
        finally:
            ctypes.CDLL(None).fflush(None)  # the library's own buffers
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
