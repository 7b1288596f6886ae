"""A switch and its controller in one process, as `switchagg host` and tests run them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from switchagg.addresses import parse_address
from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.jobs.records import OPEN
from switchagg.control.service import ControlServer
from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.switch import DEFAULT_MEMORY

if TYPE_CHECKING:
    from switchagg.devices.dpdk import DpdkSettings
    from switchagg.emulator.faults import Faults
    from switchagg.emulator.rates import Rate
    from switchagg.emulator.switch import Switch


class EmbeddedController:
    """A software switch with its controller, from construction to `close()`. A context manager.

    Args:
        host: address that the switch binds to, and the controller unless `controller_host` is given.
        port: UDP port of the switch; 0 takes a free one.
        controller_host, controller_port: address of the HTTP service; port 0 takes a free one.
        capacity: slots of the switch.
        memory: bytes that slots may take.
        rate, faults, pcap, links, transport, dpdk, threads: passed on to the switch.
        words, slots, policy: of jobs whose ranks ask for none.
        credential: the token that every request must bring; None for no authentication.

    Raises `UsageError` if `host` is not one concrete address or a value is out of range, `SwitchError` if an
    address or port is not available.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        controller_host: str | None = None,
        controller_port: int = 0,
        capacity: int = 65536,
        memory: int = DEFAULT_MEMORY,
        rate: Rate | None = None,
        faults: Faults | None = None,
        pcap: Path | None = None,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
        links: bool = True,
        transport: str = "udp",
        dpdk: DpdkSettings | None = None,
        threads: int = 1,
        credential: str | None = None,
    ) -> None:
        from switchagg.emulator.switch import Switch

        if host == "0.0.0.0":
            raise UsageError(
                f"host is {host}; workers are told where to send: name the address of one interface, or ::, "
                "where each is told the address from which packets go to it"
            )
        parse_address("host", host)
        self.switch: Switch = Switch(
            host,
            port,
            capacity=capacity,
            rate=rate,
            faults=faults,
            pcap=pcap,
            links=links,
            transport=transport,
            dpdk=dpdk,
            threads=threads,
        )
        self.switch.start()
        try:
            self.driver = EmbeddedDriver(self.switch, capacity, memory)
            self.controller = Controller([self.driver], words=words, slots=slots, policy=policy)
            if credential is not None:
                self.controller.store.put_tenant(OPEN)
                self.controller.tenants.adopt(OPEN.name, credential)
            self._server = ControlServer(
                self.controller,
                controller_host or host,
                controller_port,
                authentication=credential is not None,
            )
            self._server.start()
        except BaseException:
            self.switch.close()
            raise

    @property
    def url(self) -> str:
        """The controller's URL, ``http://host:port``."""
        return self._server.url

    @property
    def warnings(self) -> list[str]:
        """Warnings for people about how the switch runs here, a sentence each."""
        return self.driver.warnings

    def close(self) -> None:
        """Ends every job, connection and thread. Safe to call twice."""
        self._server.close()
        self.switch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
