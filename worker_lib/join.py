"""Joins a job at its controller, and holds the place.

    membership = join("http://127.0.0.1:40000", "default", rank=0, world_size=4, address="127.0.0.1",
    port=40001) ... membership.leave()

The join is one HTTP request whose answer comes when all ranks are there. Its TCP connection then stays open:
when it closes without a leave, the controller takes this rank for lost. So a process that dies is noticed at
once, and one that forks must call `close_descriptors` in the child, which would otherwise keep the dead
parent's place.
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from switchagg.errors import AdmissionError, SwitchError, UsageError

if TYPE_CHECKING:
    from http.client import HTTPConnection

GRACE: Final = 5.0  # seconds past a join's timeout in which the controller says who is missing
SHORT_TIMEOUT: Final = 5.0  # seconds for calls that wait for nobody


class _LifeLine:
    """The connection of a join, until it is closed. Not for two threads at once."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection: HTTPConnection | None = connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


@dataclass(frozen=True, slots=True)
class Membership:
    """One rank's place in a running job, as the controller gave it.

    Attributes:
        controller: its URL. name, rank, world_size: as in `join`.
        job: job id. token: goes into every packet sent. result_token: stands in every RESULT.
        switch_address, switch_port: IPv4 address and UDP port that packets go to.
        switch_receive_buffer: bytes that the switch can queue there.
        switch_link: name of the UNIX socket where workers of the switch's own host attach; empty for none.
        base, slots, words: the slot range, P and K.
        first_seq: sequence number of position 0.
        block, dense, bits: the job's skip policy: elements that are sent or skipped together; whether every
            block is sent without looking for zeros; the lanes of calls that leave them to the job.
        worker_bit: this rank's bit in the switch.
    """

    controller: str
    name: str
    rank: int
    world_size: int
    job: int
    token: int = field(repr=False)
    result_token: int = field(repr=False)
    switch_address: str
    switch_port: int
    switch_receive_buffer: int
    switch_link: str
    base: int
    slots: int
    words: int
    first_seq: int
    block: int
    dense: bool
    bits: int | None
    worker_bit: int
    _line: _LifeLine = field(repr=False, compare=False)

    def leave(self) -> None:
        """Gives the place back in order. Does nothing the second time, or where the controller is gone."""
        connection = self._line.connection
        if connection is None:
            return
        try:
            if connection.sock is not None:
                connection.sock.settimeout(SHORT_TIMEOUT)
                _call(
                    connection,
                    "POST",
                    f"/v1/jobs/{quote(self.name, safe='')}/members/{self.rank}/leave",
                    {"token": self.token},
                )
        except (OSError, SwitchError, _NotHttp):
            pass  # nobody is there to be told; the closed connection says the same
        finally:
            self._line.close()

    def lost_ranks(self, timeout: float = SHORT_TIMEOUT) -> tuple[int, ...]:
        """Returns the ranks that the controller has lost in this job, in order.

        Args:
            timeout: seconds that each step of the question may take.

        Raises `SwitchError` where the controller does not answer, or no longer knows the job.
        """
        host, port = _endpoint(self.controller)
        connection = _connect(self.controller, host, port, timeout)
        try:
            job = _call(connection, "GET", f"/v1/jobs/{quote(self.name, safe='')}?id={self.job}")
            return tuple(int(rank) for rank in job["lost"])
        except (OSError, _NotHttp, KeyError, TypeError, ValueError) as error:
            raise SwitchError(f"the controller at {self.controller} did not answer: {error!r}") from error
        finally:
            connection.close()

    def controller_gone(self) -> bool:
        """Returns whether the controller has closed the connection, or ended. Does not block."""
        connection = self._line.connection
        if connection is None or connection.sock is None:
            return True
        poll = select.poll()
        poll.register(connection.sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close_descriptors(self) -> None:
        """For a forked child: closes its copy of the connection. The parent's place stays as it is."""
        self._line.close()


def join(
    controller_url: str,
    job: str,
    rank: int,
    world_size: int,
    address: str,
    port: int,
    words: int | None = None,
    slots: int | None = None,
    timeout: float = 30.0,
    *,
    retry: bool = False,
    touch: bool = True,
) -> Membership:
    """Joins a job and waits until all its ranks have.

    Args:
        controller_url: ``http://host:port``.
        job: its name; all ranks use the same.
        rank, world_size: 0 <= rank < world_size <= 32.
        address, port: IPv4 address and UDP port that this rank's packets will come from.
        words: K, the words of a packet; None leaves it to the others, or to the controller.
        slots: P, the job's slots, a power of two; None likewise.
        timeout: seconds for everything.
        touch: False makes a job whose payloads the switch neither stores nor adds: the floor of the
            benchmark.
        retry: try again, for the time given, while nobody listens at the controller's address.

    Raises:
        AdmissionError: the controller refused; `code` says why, such as ``rank_taken`` or ``join_timeout``.
        SwitchError: no controller answers, or it went away.
        UsageError: `controller_url` is no such URL.
    """
    host, tcp_port = _endpoint(controller_url)
    deadline = time.monotonic() + timeout
    connection = _connect(controller_url, host, tcp_port, timeout, deadline if retry else None)
    try:
        remaining = max(0.001, deadline - time.monotonic()) if timeout > 0 else timeout
        connection.sock.settimeout(max(0.0, remaining) + GRACE)
        answer = _call(
            connection,
            "POST",
            f"/v1/jobs/{quote(job, safe='')}/members",
            {
                "rank": rank,
                "world_size": world_size,
                "address": address,
                "port": port,
                "words": words,
                "slots": slots,
                "touch": touch,
                "timeout": remaining,
            },
        )
        membership = _membership(
            answer,
            _LifeLine(connection),
            controller=controller_url,
            name=job,
            rank=rank,
            world_size=world_size,
        )
        connection.sock.settimeout(None)
        return membership
    except TimeoutError:
        connection.close()
        raise SwitchError(
            f"the controller at {controller_url} took the connection but did not answer "
            f"within {timeout:g} seconds"
        ) from None
    except (OSError, _NotHttp, KeyError, TypeError, ValueError) as error:
        connection.close()
        raise SwitchError(
            f"the controller at {controller_url} went away, or is no switchagg controller, "
            f"while rank {rank} joined job {job!r}: {error!r}"
        ) from error
    except BaseException:
        connection.close()
        raise


class _NotHttp(Exception):
    """What came back is no HTTP answer with a JSON object in it."""


def _endpoint(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port, scheme, path = parts.hostname, parts.port, parts.scheme, parts.path
    except ValueError:
        host, port, scheme, path = None, None, "", ""
    if not host or port is None or scheme != "http" or path.strip("/"):
        raise UsageError(f"controller is {url!r}; accepted: http://host:port")
    return host, port


def _connect(url: str, host: str, port: int, timeout: float, deadline: float | None = None) -> HTTPConnection:
    """Connects; until `deadline`, if there is one, again and again while nobody listens."""
    from http.client import HTTPConnection  # here: it costs as much to import as the rest of this library

    connection = HTTPConnection(host, port, timeout=max(0.1, timeout))
    pause = 0.02
    while True:
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            now = time.monotonic()
            if deadline is not None and now < deadline and isinstance(error, ConnectionRefusedError):
                time.sleep(min(pause, deadline - now))
                pause = min(2 * pause, 0.5)
                continue
            reason = (error.strerror or str(error) or type(error).__name__).lower()
            raise SwitchError(
                f"no controller at {url}: {reason}; start one with `switchagg run` or `switchagg host`"
            ) from error
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.auto_open = 0  # a second connection would be another life line
        return connection


def _call(
    connection: HTTPConnection, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One request.

    Raises `AdmissionError` for a refusal, OSError for a lost connection, `_NotHttp` for nonsense.
    """
    from http.client import HTTPException

    headers = {"Content-Type": "application/json"} if body is not None else {}
    data = json.dumps(body).encode() if body is not None else None
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        status, value = response.status, json.loads(response.read())
    except OSError:  # RemoteDisconnected is both
        raise
    except (HTTPException, ValueError) as error:
        raise _NotHttp(repr(error)) from error
    if not isinstance(value, dict):
        raise _NotHttp(f"status {status}, {value!r}"[:200])
    if status == 200:
        return value
    refusal = value.get("error")
    if not isinstance(refusal, dict):
        raise _NotHttp(f"status {status}, {value!r}"[:200])
    raise AdmissionError(str(refusal.get("message")), str(refusal.get("code")))


def _membership(
    answer: dict[str, Any], line: _LifeLine, *, controller: str, name: str, rank: int, world_size: int
) -> Membership:
    switch, policy = answer["switch"], answer["policy"]
    return Membership(
        controller=controller,
        name=name,
        rank=rank,
        world_size=world_size,
        job=int(answer["job"]),
        token=int(answer["token"]),
        result_token=int(answer["result_token"]),
        switch_address=str(switch["address"]),
        switch_port=int(switch["port"]),
        switch_receive_buffer=int(switch["receive_buffer"]),
        switch_link=str(switch.get("link", "")),
        base=int(answer["base"]),
        slots=int(answer["slots"]),
        words=int(answer["words"]),
        first_seq=int(answer["first_seq"]),
        block=int(policy["block"]),
        dense=bool(policy["dense"]),
        bits=None if policy.get("bits") is None else int(policy["bits"]),
        worker_bit=int(answer["worker_bit"]),
        _line=line,
    )
