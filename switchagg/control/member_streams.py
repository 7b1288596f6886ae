"""The event streams of members, and their calls that wait for an answer. Callers hold a lock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, cast

from switchagg.addresses import ANY_IPV6, local_address_towards
from switchagg.control.answers import AdmittedView, AttachedSwitch, Endpoint
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs.effects import ChangeStep
from switchagg.control.jobs.job import Member
from switchagg.control.jobs.records import Admission, EventStream
from switchagg.errors import AdmissionError, NetworkError


class MemberStreams:
    """At most one stream a member, and one pending call of each step of a change of membership."""

    def __init__(self) -> None:
        self._streams: dict[Member, EventStream] = {}
        self._members: dict[EventStream, Member] = {}
        self._calls: dict[tuple[Member, ChangeStep], Future[Any]] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self._streams

    def __len__(self) -> int:
        """Returns the number of streams and pending calls."""
        return len(self._streams) + len(self._calls)

    def open(self, member: Member, stream: EventStream) -> None:
        """Makes `stream` the member's; closes an older one."""
        self._close(member)
        self._streams[member] = stream
        self._members[stream] = member

    def closed(self, stream: EventStream) -> Member | None:
        """Takes out a stream whose connection has ended; returns its member, if it was one's stream."""
        member = self._members.pop(stream, None)
        if member is not None:
            del self._streams[member]
        return member

    def send(self, member: Member, event: Mapping[str, Any]) -> None:
        """Sends an event to a member, if it has a stream."""
        if (stream := self._streams.get(member)) is not None:
            stream.send(event)

    def refuse(self, member: Member, error: AdmissionError) -> None:
        """Answers a member's join with an error, if it has a stream."""
        if (stream := self._streams.pop(member, None)) is not None:
            del self._members[stream]
            stream.refuse(error)

    @contextmanager
    def call(self, member: Member, step: ChangeStep) -> Iterator[Future[Any]]:
        """Yields the future of a new call; fails an earlier one of the same step.

        The call is taken back if the block raises.
        """
        again = f"rank {member.rank} of job {member.job.name!r} has asked for its {step} again"
        self.fail(member, step, AdmissionError(again, "failed"))
        future = self._calls[member, step] = Future()
        try:
            yield future
        except BaseException:
            if self._calls.get((member, step)) is future:
                del self._calls[member, step]
            raise

    def answer(self, member: Member, step: ChangeStep, result: Any) -> None:
        """Answers a pending call, if there is one."""
        future = self._calls.pop((member, step), None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(result)

    def fail(self, member: Member, step: ChangeStep, error: AdmissionError) -> None:
        """Fails a pending call, if there is one."""
        future = self._calls.pop((member, step), None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_exception(error)

    def end(self, member: Member) -> None:
        """Closes the stream of a member that has left or is lost, and fails its calls."""
        self._close(member)
        text = f"rank {member.rank} of job {member.job.name!r} is {member.state.value}"
        error = AdmissionError(f"{text}: {member.why}" if member.why else text, "lost")
        for step in ChangeStep:
            self.fail(member, step, error)

    def close(self, error: AdmissionError) -> None:
        """Closes every stream and fails every call."""
        for member in list(self._streams):
            self._close(member)
        for member, step in list(self._calls):
            self.fail(member, step, error)

    def _close(self, member: Member) -> None:
        if (stream := self._streams.pop(member, None)) is not None:
            del self._members[stream]
            stream.close()


def admitted(
    admission: Admission,
    drivers: Mapping[str, SwitchDriver],
    member: str,
    heartbeat: tuple[str, int] | None,
    *,
    standby: bool,
) -> AdmittedView:
    """Returns the first event of the stream of the member at this address."""
    shown = asdict(admission)
    cookie, interval, tree = (shown.pop(name) for name in ("cookie", "interval", "tree"))
    threads = math.lcm(*(drivers[name].threads for name in tree or [admission.switch]))
    address, port = heartbeat or ("", 0)
    shown |= {
        "event": "admitted",
        "places": list(admission.places),
        "receivers": list(admission.receivers),
        "standby": standby,
        "lost": [{"rank": rank, "why": why} for rank, why in admission.lost],
        "switch": _attached(drivers[admission.switch], member) | {"threads": threads},
        "stripes": [
            asdict(each) | {"switch": _attached(drivers[each.switch], member)} for each in admission.stripes
        ],
        "on_loss": admission.on_loss.value,
        "heartbeat": {"address": address, "port": port, "cookie": cookie.hex(), "interval": interval},
    }
    return cast(AdmittedView, shown)


def _attached(driver: SwitchDriver, member: str) -> AttachedSwitch:
    return {"name": driver.name, **endpoint(driver, member)}


def endpoint(driver: SwitchDriver, member: str | None = None) -> Endpoint:
    """Returns a switch's address and port for workers, and the parameters of the way there.

    Args:
        member: a worker's address: of a switch at ::, it is told the one from which packets come to it.
    """
    host, port = driver.address
    if host == ANY_IPV6 and member is not None:
        with suppress(NetworkError):  # without a route now, the worker tries where it found the controller
            host = local_address_towards(member, port)
    return {
        "address": host,
        "port": port,
        "receive_buffer": driver.receive_buffer,
        "link": driver.link,
        "threads": driver.threads,
    }
