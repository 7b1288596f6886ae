"""Event streams that record what they are sent, and joins of controllers with them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from switchagg.control.controller import Controller
from switchagg.control.jobs.records import OPEN, JoinRequest, Tenant
from switchagg.errors import AdmissionError
from tests.waiting import eventually


class Recorder:
    """A `EventStream` that keeps what it is sent."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.error: AdmissionError | None = None
        self.closed = False
        self._settled = threading.Event()

    def send(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        self._settled.set()

    def refuse(self, error: AdmissionError) -> None:
        self.error = error
        self._settled.set()

    def close(self) -> None:
        self.closed = True
        self._settled.set()

    def wait(self) -> dict[str, Any]:
        """Returns the admission. Raises what it was refused with."""
        assert self._settled.wait(60)
        if self.error is not None:
            raise self.error
        return self.events[0]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Returns the events of one kind."""
        return [event for event in self.events if event["event"] == kind]


def asked(rank: int, world_size: int = 2, **options: Any) -> JoinRequest:
    return JoinRequest(rank, world_size, "10.0.0.1", 4000 + rank, **options)


def join_all(
    controller: Controller, name: str = "a", world_size: int = 2, tenant: Tenant = OPEN, **options: Any
) -> list[Recorder]:
    """Joins every rank, and waits until they are in."""
    lines = [Recorder() for _ in range(world_size)]
    for rank, line in enumerate(lines):
        controller.join(tenant, name, asked(rank, world_size, **options), line)
    for line in lines:
        line.wait()
    return lines


def token(line: Recorder) -> int:
    """The latest that the member was told on its stream."""
    return int(line.of("admitted")[-1]["token"])


def up(controller: Controller) -> None:
    """Waits until all switches are up."""
    eventually(lambda: all(switch["state"] == "up" for switch in controller.queries.switches(OPEN)))
