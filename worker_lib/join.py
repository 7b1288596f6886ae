"""Joins a job at its controller: the request, the admission, and the stream of events that stays open.

    membership = join("http://127.0.0.1:40000", "default", 0, 4, address="127.0.0.1", port=40001)
    ...
    membership.leave()

The join is one HTTP request whose answer begins when all ranks are there, and does not end: its first line is
the admission, later ones are the controller's events for this rank (`Membership.next_event`). A connection
that closes without a leave tells the controller that this rank is lost. So a process that dies is noticed at
once, and one that forks must call `close_descriptors` in the child, which would otherwise keep the dead
parent's connection open.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from switchagg import http_client
from switchagg.errors import SwitchError
from switchagg.http_client import Endpoint, NotHttp, member_path
from switchagg.rules.planner import SkipPolicy
from switchagg.wire.header import MAX_WEIGHT

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

GRACE: Final = 5.0  # seconds past a join's timeout for the controller to name the missing ranks
SHORT_TIMEOUT: Final = 5.0  # seconds for requests that do not wait for other ranks
MAX_EVENT: Final = 1 << 20  # bytes

_RANK_0_STARTS_IT: Final = (
    "rank 0 starts the switch there, with its controller, when it calls connect(): look at rank 0's output, "
    "or set SWITCHAGG_CONTROLLER on all ranks to a controller that runs already"
)
_T = TypeVar("_T")


class MemberStream:
    """The connection that a rank joined on, with a line of JSON for each event of the controller.

    One thread reads; any other may close, which wakes it.

    Args:
        connection: the one that `response` came on; closed together with it.
        sock: its socket.
        response: a success, of whose body nothing has been read.

    Attributes:
        peer: the controller's address.
    """

    def __init__(self, connection: HTTPConnection, sock: socket.socket, response: HTTPResponse) -> None:
        self._connection = connection
        self._sock = sock
        self._response = response
        self._reading = threading.Lock()
        self._closed = False
        self.peer = str(sock.getpeername()[0])

    def next_event(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Waits for the next event; the controller's pings are passed over.

        Args:
            timeout: seconds to wait for each line; None for ever.

        Returns None once the stream has ended, from either side.

        Raises:
            TimeoutError: nothing came in time. The connection is closed then.
            NotHttp: a line is not an event.
        """
        from http.client import HTTPException

        while True:
            with self._reading:
                if self._closed:
                    return None
                try:
                    # A timeout of 0 would mean a socket that does not block.
                    self._sock.settimeout(None if timeout is None else max(timeout, 0.001))
                    line = self._response.readline(MAX_EVENT)
                except TimeoutError:
                    # http.client reads no further from a socket that timed out once.
                    self._closed = True
                    self._connection.close()
                    self._response.close()
                    raise
                except (OSError, HTTPException, ValueError):  # ValueError: closed meanwhile
                    return None
            if not line.endswith(b"\n"):
                return None
            try:
                event = json.loads(line)
            except ValueError as error:
                raise NotHttp(repr(error)) from error
            if not isinstance(event, dict):
                raise NotHttp(f"{event!r}"[:200])
            if event.get("event") != "ping":
                return event

    def close(self) -> None:
        """Ends the connection, and with it a `next_event` that waits in another thread."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # the peer was faster
            # Not SSLSocket's own, which would first take the TLS state from under the reader.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        with self._reading:
            self._connection.close()
            self._response.close()

    def close_in_child(self) -> None:
        """For a forked child: lets go of its copy of the connection. The parent's stays as it is."""
        if self._closed:
            return
        self._closed = True
        # Not close(): a thread of the parent may have held the locks of these objects when it forked.
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, self._sock.fileno(), inheritable=False)
        os.close(nowhere)


class _HeldStream:
    """The member's stream, which survives a change of membership and may be replaced when it breaks."""

    def __init__(self, stream: MemberStream) -> None:
        self.stream: MemberStream = stream
        self.over = False  # left, or a forked child's

    def close(self) -> None:
        self.over = True
        self.stream.close()


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The target of this rank's heartbeats: UDP address and port, cookie, seconds between two."""

    address: str
    port: int
    cookie: bytes = field(repr=False)
    interval: float


@dataclass(frozen=True, slots=True)
class Membership:
    """One rank's admission to a running job, as the controller gave it.

    Attributes:
        controller: its URL. name: of the job. rank, world_size: now; after a change of membership ranks are
            numbered anew.
        places: for each rank the one that it joined as.
        lost: of the generation before, (the rank that it joined as, why); it may be back already.
        job: job id. token: goes into every packet sent. result_token: stands in every RESULT.
        switch_name: for people. switch_address, switch_port: IP address and UDP port that packets go to.
        switch_receive_buffer: bytes that the switch can queue there.
        switch_link: name of the UNIX socket where workers of the switch's own host attach; empty for none.
        switch_threads: to which the switch deals blocks of slots in turn; of a tree, the least common
            multiple of its switches'.
        shared: the slots are in memory that all workers share.
        base, slots, words: the slot range, P and K.
        first_seq: sequence number of packet number 0.
        first_packet: the first packet number on this switch; more than 0 after a failover.
        standby: the controller has another switch that could take the job, or may.
        policy: the job's skip policy.
        worker_bit: this rank's bit in the switch.
        receivers: for each rank the `reply` that names it in directed contributions; or empty.
        senders: how many send to the same slots of that switch: ranks, and switches below it.
        deadline: seconds of silence after which a rank is lost. on_loss: ``"fail"`` or ``"shrink"``.
        heartbeats: None where the controller wants none.
        weight: of this switch, in a job that is dealt to several: its part of the packets at first.
        stripes: of a job that is dealt to several switches, the admission at each, in which `job` and `token`
            are those of packets; else empty. `job` and `token` of the whole are for the controller.
    """

    controller: str
    name: str
    rank: int
    world_size: int
    places: tuple[int, ...]
    lost: tuple[tuple[int, str], ...]
    job: int
    token: int = field(repr=False)
    result_token: int = field(repr=False)
    switch_name: str
    switch_address: str
    switch_port: int
    switch_receive_buffer: int
    switch_link: str
    switch_threads: int
    shared: bool
    base: int
    slots: int
    words: int
    first_seq: int
    first_packet: int
    weight: int
    standby: bool
    policy: SkipPolicy
    worker_bit: int
    receivers: tuple[int, ...]
    senders: int
    deadline: float
    on_loss: str
    heartbeats: Heartbeats | None
    stripes: tuple[Membership, ...]
    _there: Endpoint = field(repr=False, compare=False)
    _held: _HeldStream = field(repr=False, compare=False)

    @property
    def parts(self) -> tuple[Membership, ...]:
        """The admission at each switch that this rank sends to."""
        return self.stripes or (self,)

    @property
    def place(self) -> int:
        """The rank that this process joined as, which the controller knows it by."""
        return self.places[self.rank]

    def next_event(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Waits for the controller's next event, for one thread at a time.

        Args:
            timeout: seconds; None for ever.

        Returns None when the stream has ended: the controller is gone (`attach`), or this side has closed it.

        Raises:
            TimeoutError: nothing came in time. The connection is closed then, as by `close_stream`.
            SwitchError: a line is not an event.
        """
        try:
            return self._held.stream.next_event(timeout)
        except NotHttp as error:
            raise SwitchError(
                f"the controller at {self.controller} says what is no event: {error}"
            ) from error

    def attach(self, timeout: float = SHORT_TIMEOUT) -> Membership:
        """Opens the stream again after it broke, as when the controller was restarted.

        Returns the membership as the controller now has it.

        Raises:
            AdmissionError: this rank has been lost meanwhile, or its job is gone.
            SwitchError: nobody answers.
        """
        stream, admitted = _open(
            self._there,
            member_path(self.name, self.place, "attach"),
            {"token": self.token},
            what=f"rank {self.place} of job {self.name!r} came back",
            timeout=timeout,
        )
        old, self._held.stream = self._held.stream, stream
        old.close()
        if self._held.over:  # left meanwhile
            stream.close()
        return self._renewed(admitted)

    def progress(self, completed: int, replaying: bool, timeout: float) -> int:
        """Reports the collectives that are complete here; waits for all survivors, for `timeout` seconds.

        Returns how many are to be completed before `proceed`. Raises as `attach` does.

        Args:
            replaying: RESULTs of this switch are missing of collectives that are complete.
        """
        body = {"token": self.token, "completed": completed, "replaying": replaying}
        answer = self._ask("progress", body, timeout)
        return _field(self.controller, lambda: int(answer["complete_to"]))

    def proceed(self, address: str, ports: Sequence[int], timeout: float) -> Membership:
        """Waits for all survivors, and whoever joins them, for `timeout` seconds; returns the new membership.

        The stream goes over to it. Raises as `attach` does.
        """
        body = {"token": self.token, "address": address, **_ports(ports)}
        return self._renewed(self._ask("proceed", body, timeout))

    def replay(
        self,
        lowest: Sequence[int],
        address: str,
        ports: Sequence[int],
        timeout: float,
        *,
        stripe: int = 0,
        damaged: bool = False,
    ) -> Membership:
        """Says that a stripe's switch is gone, or its RESULTs `damaged`, and which RESULTs this rank lacks.

        Waits for the others, for `timeout` seconds. Returns the membership on another switch, or on the same.
        Raises as `attach` does.

        Args:
            lowest, ports: by stripe.
        """
        body: dict[str, Any] = {"token": self.token, "lowest": lowest[0], "address": address, **_ports(ports)}
        if len(lowest) > 1:
            body |= {"more_lowest": list(lowest[1:]), "stripe": stripe}
        if damaged:
            body["damaged"] = True
        return self._renewed(self._ask("replay", body, timeout))

    def _renewed(self, answer: dict[str, Any]) -> Membership:
        return _field(
            self.controller,
            lambda: _membership(answer, self._there, self._held, controller=self.controller, name=self.name),
        )

    def leave(self, begun: int | None = None, completed: int | None = None, why: str | None = None) -> None:
        """Leaves the job. Does nothing the second time, or where the controller is gone.

        Args:
            begun, completed: collectives that this rank has begun and that are complete here since its
                admission, which the others are told; None if the switch may not have all RESULTs of these.
            why: the exception that ends this rank, likewise; None if it leaves in order.
        """
        if self._held.over:
            return
        self._held.over = True
        try:
            # Also where the stream has broken: a controller that was restarted still knows this rank.
            body = {"token": self.token, "begun": begun, "completed": completed}
            self._ask("leave", body if why is None else body | {"why": why}, SHORT_TIMEOUT)
        except SwitchError:
            pass  # nobody is there to be told; the closed connection says the same
        finally:
            self._held.close()

    def close_stream(self) -> None:
        """Closes the connection without a leave: the controller takes this rank for lost. From any thread."""
        self._held.close()

    def standing(self, timeout: float = SHORT_TIMEOUT) -> tuple[tuple[int, ...], str]:
        """Returns the ranks that the controller has lost in this job, in order, and what it says is wrong.

        Args:
            timeout: seconds that each step of the question may take.

        Returns an empty text where nothing is wrong. Raises `SwitchError` where the controller does not
        answer, or no longer knows the job.
        """
        path = f"{member_path(self.name).removesuffix('/members')}?id={self.job}"
        job = http_client.call_once(self._there, "GET", path, timeout=timeout)
        return _field(
            self.controller, lambda: (tuple(int(rank) for rank in job["lost"]), str(job.get("why") or ""))
        )

    def awaited(self, timeout: float = SHORT_TIMEOUT) -> tuple[int, ...] | None:
        """Returns the ranks whose packets the switch lacks in the oldest incomplete round, in order.

        It returns none where no slot waits, and None where the switch does not show its slots. Raises
        `SwitchError` where the controller or the switch does not answer.

        Args:
            timeout: seconds that each step of the question may take.
        """
        query = urlencode({"job": self.name, "id": self.job})
        answer = http_client.call_once(self._there, "GET", f"/v1/slots?{query}", timeout=timeout)
        if _field(self.controller, lambda: answer["slots"]) is None:
            return None
        behind = _field(self.controller, lambda: places_behind(answer["slots"], apart=bool(self.stripes)))
        return tuple(rank for rank, place in enumerate(self.places) if place in behind)

    def close_descriptors(self) -> None:
        """For a forked child: closes its copy of the connection. The parent's stays as it is."""
        self._held.over = True
        self._held.stream.close_in_child()

    def _ask(self, verb: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        path = member_path(self.name, self.place, verb)
        return http_client.call_once(self._there, "POST", path, body, timeout=timeout)


def join(
    controller_url: str,
    job: str,
    rank: int,
    world_size: int,
    address: str,
    port: int | Sequence[int],
    words: int | None = None,
    slots: int | None = None,
    timeout: float = 30.0,
    *,
    retry: bool = False,
    touch: bool = True,
    deadline: float | None = None,
    on_loss: str | None = None,
    priority: int | None = None,
    credential: str | None = None,
    switch: str | None = None,
    memory: str = "",
) -> Membership:
    """Joins a job and waits until all its ranks have.

    Args:
        controller_url: ``http://host:port`` or ``https://host:port``.
        job: its name; all ranks use the same.
        rank, world_size: 0 <= rank < world_size <= 256.
        address, port: IP address and UDP port that this rank's packets will come from; several ports for a
            job that is dealt to as many switches.
        words: K, the words of a packet; None leaves it to the others, or to the controller.
        slots: P, the job's slots, a power of two; None likewise.
        timeout: seconds for everything.
        touch: False makes a job whose payloads the switch neither stores nor adds: the benchmark's no-op
            baseline.
        retry: rank 0 starts the controller; try again, for the time given, while nobody listens there.
        deadline: seconds of silence after which a rank is lost; None leaves it to the others, or 10.
        on_loss: what becomes of the job then: ``"fail"`` or ``"shrink"``; None leaves it to the others.
        priority: 0 to 9, of a job that waits for room on a switch.
        credential: the tenant's token; SWITCHAGG_TOKEN by default.
        switch: name of the one that this rank attaches to; None leaves it to the controller.
        memory: identifies the processes with which it can share slots (`switchagg.computer.memory_identity`).

    Raises:
        AdmissionError: the controller refused; `code` says why, such as ``rank_taken`` or ``join_timeout``.
        SwitchError: no controller answers, or it went away.
        UsageError: `controller_url` is no such URL.
    """
    there = http_client.endpoint(controller_url, credential)
    until = time.monotonic() + timeout
    body: dict[str, Any] = {
        "rank": rank,
        "world_size": world_size,
        "address": address,
        **_ports([port] if isinstance(port, int) else port),
        "words": words,
        "slots": slots,
        "touch": touch,
    }
    optional = {"deadline": deadline, "on_loss": on_loss, "priority": priority, "switch": switch}
    optional["memory"] = memory or None
    body |= {name: value for name, value in optional.items() if value is not None}
    stream, admitted = _open(
        there,
        member_path(job),
        body,
        what=f"rank {rank} joined job {job!r}",
        timeout=timeout,
        until=until,
        retry=retry,
    )
    try:
        return _membership(admitted, there, _HeldStream(stream), controller=controller_url, name=job)
    except (KeyError, TypeError, ValueError) as error:
        stream.close()
        raise _nonsense(controller_url, f"rank {rank} joined job {job!r}", error) from error


def _open(
    there: Endpoint,
    path: str,
    body: dict[str, Any],
    *,
    what: str,
    timeout: float,
    until: float | None = None,
    retry: bool = False,
) -> tuple[MemberStream, dict[str, Any]]:
    """Asks for a stream; returns it with its first event.

    Args:
        what: the step that fails, for messages.
        until: `time.monotonic()` up to which the controller may wait for the other ranks; None: for nobody.
    """
    connection = http_client.connect(
        there, max(0.1, timeout), until if retry else None, advice=_RANK_0_STARTS_IT if retry else None
    )
    try:
        if until is not None:
            remaining = max(0.001, until - time.monotonic()) if timeout > 0 else timeout
            body = body | {"timeout": remaining}
            connection.sock.settimeout(max(0.0, remaining) + GRACE)
        sock = connection.sock
        stream = MemberStream(connection, sock, http_client.send(connection, there, "POST", path, body))
        event = stream.next_event(sock.gettimeout())
        if event is None or event.get("event") != "admitted":
            raise NotHttp(f"the stream began with {event!r}"[:200])
        return stream, event
    except TimeoutError:
        connection.close()
        raise SwitchError(
            f"the controller at {there.url} took the connection but did not answer within {timeout:g} seconds"
        ) from None
    except (OSError, NotHttp) as error:
        connection.close()
        raise _nonsense(there.url, what, error) from error
    except BaseException:
        connection.close()
        raise


def _ports(ports: Sequence[int]) -> dict[str, Any]:
    return {"port": ports[0], **({"more_ports": list(ports[1:])} if len(ports) > 1 else {})}


def places_behind(slots: Sequence[Mapping[str, Any]], *, apart: bool = False) -> set[int]:
    """Returns the places that the oldest round waits for, of slots as the API's `WaitingSlot`.

    With `apart` that of each switch: sequence numbers of stripes have nothing to do with each other.
    """
    if not slots:
        return set()
    if apart:
        of_switch: dict[str, list[Mapping[str, Any]]] = {}
        for slot in slots:
            of_switch.setdefault(str(slot["switch"]), []).append(slot)
        return set().union(*map(places_behind, of_switch.values()))
    # Sequence numbers of rounds in flight are close together, but may wrap.
    ages = [(int(slot["seq"]) - int(slots[0]["seq"]) + 2**31) % 2**32 for slot in slots]
    oldest = [slot for slot, age in zip(slots, ages, strict=True) if age == min(ages)]
    missing = {int(place) for slot in oldest for place in slot["missing"]}
    # The root of a tree waits for all ranks of a leaf that waits for one of them.
    return missing - {int(place) for slot in oldest for place in slot["seen"]}


def _nonsense(url: str, what: str, error: Exception) -> SwitchError:
    return SwitchError(
        f"the controller at {url} went away, or is no switchagg controller, while {what}: {error!r}"
    )


def _field(url: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (KeyError, TypeError, ValueError) as error:
        raise SwitchError(f"what answers at {url} is no switchagg controller: {error!r}") from error


def _membership(
    answer: dict[str, Any], there: Endpoint, held: _HeldStream, *, controller: str, name: str
) -> Membership:
    switch, policy, heartbeat = answer["switch"], answer["policy"], answer.get("heartbeat")
    rank, world_size = int(answer["rank"]), int(answer["world_size"])
    places = tuple(int(place) for place in answer["places"])
    if len(places) != world_size or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} at places {places}")
    receivers = tuple(int(each) for each in answer.get("receivers", ()))
    if len(receivers) not in (0, world_size) or not all(0 < each < 1 << 16 for each in receivers):
        raise ValueError(f"receivers {receivers} of {world_size} ranks")
    stripes = tuple(
        _membership({**answer, **each, "stripes": ()}, there, held, controller=controller, name=name)
        for each in answer.get("stripes", ())
    )
    return Membership(
        controller=controller,
        name=name,
        rank=rank,
        world_size=world_size,
        places=places,
        lost=tuple((int(each["rank"]), str(each["why"])) for each in answer.get("lost", ())),
        job=int(answer["job"]),
        token=int(answer["token"]),
        result_token=int(answer["result_token"]),
        switch_name=str(switch.get("name", "")),
        switch_address=_told(switch["address"], held.stream.peer),
        switch_port=int(switch["port"]),
        switch_receive_buffer=int(switch["receive_buffer"]),
        switch_link=str(switch.get("link", "")),
        switch_threads=int(switch.get("threads", 1)),
        shared=bool(answer.get("shared", False)),
        base=int(answer["base"]),
        slots=int(answer["slots"]),
        words=int(answer["words"]),
        first_seq=int(answer["first_seq"]),
        first_packet=int(answer.get("first_packet", 0)),
        weight=int(answer.get("weight", MAX_WEIGHT)),
        standby=bool(answer.get("standby", False)),
        policy=SkipPolicy(
            int(policy["block"]),
            bool(policy["dense"]),
            None if policy.get("bits") is None else int(policy["bits"]),
        ),
        worker_bit=int(answer["worker_bit"]),
        receivers=receivers,
        senders=int(answer.get("senders", world_size)),
        deadline=float(answer["deadline"]),
        on_loss=str(answer["on_loss"]),
        heartbeats=None if heartbeat is None else _heartbeats(heartbeat, held.stream.peer),
        stripes=stripes,
        _there=there,
        _held=held,
    )


def _told(address: Any, peer: str) -> str:
    """Returns an address that the controller tells: if that is all of its own, the one where we found it."""
    return peer if address in ("", "0.0.0.0", "::") else str(address)


def _heartbeats(given: dict[str, Any], peer: str) -> Heartbeats:
    address = _told(given["address"], peer)
    return Heartbeats(address, int(given["port"]), bytes.fromhex(given["cookie"]), float(given["interval"]))
