"""Makes a `Session` from arguments and environment: finds the controller, joins the job, starts the engine.

argument            environment                       otherwise
controller=         SWITCHAGG_CONTROLLER              rank 0 starts one on MASTER_ADDR, where that is set
job=                SWITCHAGG_JOB                     "default"
rank=, world_size=  RANK and WORLD_SIZE, or those of      0 and 1
                    Open MPI, PMI, MVAPICH, Slurm:
                    `worker_lib.launchers`
address=            SWITCHAGG_ADDRESS                 the one from which the controller is reached
timeout=            SWITCHAGG_TIMEOUT                 30 seconds
on_loss=            SWITCHAGG_ON_LOSS                 as the job was made, or "fail"
deadline=           SWITCHAGG_DEADLINE                as the job was made, or 10 seconds
credential=         SWITCHAGG_TOKEN                   none
transport=          SWITCHAGG_TRANSPORT               shared memory if the switch is on this host, else UDP
switch=             SWITCHAGG_SWITCH                  the one whose hosts this address is among, or any
stripes=            SWITCHAGG_STRIPES                 1
congestion=         SWITCHAGG_CONGESTION              "dedicated"
check=              SWITCHAGG_CHECK                   no
seal=               SWITCHAGG_SEAL                    no
timeline=           SWITCHAGG_TIMELINE                no
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import warnings
from collections.abc import Sequence
from typing import Any, Final

from switchagg.addresses import local_address_towards, resolve, show_address
from switchagg.errors import AdmissionError, SwitchAggError, SwitchError, UsageError
from switchagg.http_client import endpoint
from switchagg.rules.planner import SkipPolicy
from switchagg.runtime import SYSTEM, Runtime
from switchagg.wire.header import MAX_TREE_WORKERS
from worker_lib import _native, launchers
from worker_lib import timeline as timelines
from worker_lib.membership import checked_deadline, checked_on_loss
from worker_lib.monitor import MembershipMonitor, end_dropped
from worker_lib.secret import Secret, read_secret
from worker_lib.session import Session, close_all
from worker_lib.session_state import SessionState
from worker_lib.transport import (
    BoundSocket,
    bind,
    checked_congestion,
    checked_stripes,
    checked_transport,
    shared_memory,
    start_engine,
)

_LEAST_SEALED_WORDS: Final = 18  # a header's 12 and 6 check words
_LONG_LIST: Final = 8  # characters of a group's ranks in its job's name
_embedded: list[Any] = []  # controllers that this process started; they end with it


def connect(
    controller: str | None = None,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    address: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    words: int | None = None,
    slots: int | None = None,
    transport: str | None = None,
    on_loss: str | None = None,
    deadline: float | None = None,
    priority: int | None = None,
    credential: str | None = None,
    switch: str | None = None,
    stripes: int | None = None,
    congestion: str | None = None,
    check: bool | None = None,
    seal: bool | str | os.PathLike[str] | None = None,
    timeline: str | os.PathLike[str] | None = None,
) -> Session:
    """Joins a job and returns this worker's session. Blocks until all ranks have joined.

    Args:
        controller: its URL, such as ``http://127.0.0.1:8080``.
        job: name that all ranks of the job share.
        rank: this worker's number, 0 to world_size - 1.
        world_size: number of workers, at most 32 on one switch and 256 on a tree of switches. A group of one
            needs no controller and no switch.
        address: IP address of this host to use; by default that of SWITCHAGG_ADDRESS, or the one that leads
            to the controller.
        timeout: seconds that a collective may take unless its call says otherwise.
        join_timeout: seconds to wait for the other ranks; `timeout` by default.
        words: 32-bit words a packet (K, at least 16).
        slots: of the job on the switch (P, a power of two). Of both, the first rank that asks decides; by
            default 352 and 512 on Ethernet, 2,032 and 256 where the switch's interface takes larger packets,
            as loopback does; on one switch these 256 are halved for ranks that share them in memory, unless
            the job was created before, and halved again from 16 ranks on.
        transport: ``"shm"``: packets through memory shared with a switch on this host; ``"slots"``: slots
            that all ranks share there (docs/using.md), or packets where they cannot; ``"udp"``; ``"xdp"``:
            AF_XDP on the interface of `address`, or UDP and a warning; ``"dpdk"``: DPDK, as SWITCHAGG_DPDK
            says; or ``"auto"``: ``"slots"`` where the switch runs on this host, else UDP.
        on_loss: the fate of the job after a rank's process ends or goes silent: ``"fail"`` ends every
            rank's session with a `WorkerLostError`; ``"shrink"`` lets the others go on after it. A rank that
            comes back joins with the rank and world_size that it had at first. All ranks ask for the same.
        deadline: seconds of silence after which a rank is lost, 1 to 3,600.
        priority: 0 to 9, of a job that has to wait for room on a switch.
        credential: the tenant's token, where the controller wants one.
        switch: name of the one that this worker attaches to, of several that take it.
        stripes: switches that the job's packets are dealt to by weights, 1 to 16, so that it has the links
            of all of them. Packets go by UDP. All ranks ask for the same.
        congestion: how packets that go over a network answer loss: ``"dedicated"``: the job has its links to
            itself, and loss is taken for random; ``"shared"``: other jobs or flows have them too, and loss
            is taken for congestion, as TCP does (docs/using.md).
        check: three words of every packet prove the sum of the others, so that damage on the way, in the
            switch and in shared memory is noticed: it is healed, or an `IntegrityError` is raised. All ranks
            ask for the same. docs/protocol.md, section 14, has what is certain and what is probable.
        seal: sums are encrypted and authenticated, also from the switch, with a secret that all ranks have:
            the path of a file, ``"fd:N"`` for an inherited descriptor, or True for what SWITCHAGG_SEAL names.
            docs/security.md says what stays visible.
        timeline: a folder, where this rank writes when its collectives began and ended, for
            `switchagg trace`.

    Raises:
        UsageError: an argument or variable is missing or out of range.
        AdmissionError: the controller refused: rank taken, no room on the switch, ranks missing after
        `join_timeout`. SwitchError: nobody answers at the controller's address.
    """
    try:
        for name, value in (("rank", rank), ("world_size", world_size)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"{name} is {value!r}; accepted: an integer")
        all_given = rank is not None and world_size is not None
        launch = None if all_given else launchers.read(os.environ, rank, world_size)
        size = launch.world_size if launch is not None else 1 if world_size is None else world_size
        if not 1 <= size <= MAX_TREE_WORKERS:
            raise UsageError(f"world_size is {size}; accepted: 1 to {MAX_TREE_WORKERS}")
        me = launch.rank if launch is not None else rank
        if me is None and size > 1:
            raise UsageError("rank is not given, and RANK is not set, nor any other launcher's variable")
        me = me or 0
        if not 0 <= me < size:
            raise UsageError(f"rank is {me}; accepted: 0 to {size - 1} in a world of {size}")
        if timeout is None:
            timeout = _seconds("SWITCHAGG_TIMEOUT", 30.0)
        if not timeout > 0:
            raise UsageError(f"timeout is {timeout!r}; accepted: seconds greater than 0")
        name = job if job is not None else os.environ.get("SWITCHAGG_JOB", "default")
        if size == 1:
            if world_size is None and (launch is None or launch.launcher == "Slurm"):
                launchers.warn_in_allocation(os.environ)
            return _alone(SkipPolicy(), timeout, name)
        patience = timeout if join_timeout is None else join_timeout
        way = checked_transport(transport)
        dealt = checked_stripes(stripes, way)
        shares = checked_congestion(congestion) == "shared"
        checked, secret = _checked(check), read_secret(seal)
        wishes: dict[str, Any] = {
            "on_loss": checked_on_loss(on_loss, os.environ.get("SWITCHAGG_ON_LOSS")),
            "deadline": checked_deadline(deadline, os.environ.get("SWITCHAGG_DEADLINE")),
            "priority": priority,
            "credential": credential,
            "switch": switch if switch is not None else os.environ.get("SWITCHAGG_SWITCH") or None,
        }
        url, retry = _controller(controller, me, patience, launch)
        try:
            return _join(
                url, name, me, size, address=address, timeout=timeout, patience=patience, words=words,
                slots=slots, transport=way, stripes=dealt, shares=shares, check=checked, secret=secret,
                retry=retry, timeline=timeline or os.environ.get(timelines.VARIABLE) or None, **wishes,
            )  # fmt: skip
        except BaseException:
            secret.wipe()
            raise
    except SwitchAggError as error:
        # The message says all; frames and causes from in here would stand between it and the caller's line.
        raise error.with_traceback(None) from None


def _alone(policy: SkipPolicy, timeout: float, name: str, *, may_group: bool = True) -> Session:
    """A group of one, which needs nobody; its groups are as it is."""
    state = SessionState(0, 1, engine=None, monitor=None, policy=policy, timeout=timeout, name=name)
    return Session(state, (lambda *_: _alone(policy, timeout, name, may_group=False)) if may_group else None)


def _join(
    url: str,
    name: str,
    rank: int,
    size: int,
    *,
    timeout: float,
    patience: float,
    words: int | None,
    slots: int | None,
    transport: str,
    stripes: int,
    shares: bool,
    check: bool,
    secret: Secret,
    address: str | None = None,
    retry: bool = False,
    may_group: bool = True,
    timeline: str | os.PathLike[str] | None = None,
    runtime: Runtime = SYSTEM,
    **wishes: Any,
) -> Session:
    """Joins a job; `wishes` are more arguments of `worker_lib.join.join`."""
    from worker_lib.join import join

    there = endpoint(url, wishes.get("credential"))
    own = address or os.environ.get("SWITCHAGG_ADDRESS")
    if own is None and transport == "dpdk":
        raise UsageError(
            "transport is 'dpdk': address or SWITCHAGG_ADDRESS says which address its ports have"
        )
    own = own or local_address_towards(there.host, there.port)
    socks: list[BoundSocket] = []
    try:
        for _ in range(stripes):
            socks.append(bind(own, transport))
        if socks[0].warning:
            warnings.warn(socks[0].warning, stacklevel=3)
        shared = shared_memory(transport, check=check or bool(secret) or stripes > 1)
        member = join(
            url, name, rank, size, own, [sock.port for sock in socks], words=words, slots=slots,
            timeout=patience, retry=retry, memory=shared, **wishes,
        )  # fmt: skip
    except BaseException:
        for sock in socks:
            sock.native.close()
        raise
    if secret and member.words < _LEAST_SEALED_WORDS:
        member.leave()
        raise UsageError(
            f"the job has {member.words} words a packet; "
            f"accepted for sealed sums: {_LEAST_SEALED_WORDS} or more"
        )
    try:
        engine, used = start_engine(
            socks,
            member,
            transport,
            lambda ways: _native.Engine(*ways[0], check, secret.show(), ways[1:], shares),
        )
        monitor = MembershipMonitor(
            engine, member, transport=transport, used=used, address=own, runtime=runtime
        )
    except RuntimeError as error:  # libcrypto
        member.leave()
        raise UsageError(str(error)) from None
    except SwitchError:
        member.leave()
        raise

    def group(session: Session, ranks: Sequence[int], few: int | None, narrow: int | None) -> Session:
        if len(ranks) == 1:
            return _alone(session.policy, session.timeout, session.name, may_group=False)
        # Ranks that came back have made as many groups as the others since, and know the same job.
        here = monitor.generations[session._state.generation]
        # With the list, so that ranks which were given different ones never meet.
        members = "-".join(map(str, ranks))
        if len(members) > _LONG_LIST:
            members = hashlib.sha256(members.encode()).hexdigest()[:_LONG_LIST]
        label = f"{name}.{here.job}.group{session._state.groups_made}.{members}"
        try:
            return _join(
                url, label, list(ranks).index(session.rank), len(ranks), address=own, timeout=timeout,
                patience=patience, words=narrow or member.words, slots=few or member.slots,
                transport=transport, stripes=stripes, shares=shares, check=check, secret=secret.copy(),
                may_group=False, timeline=timeline, runtime=runtime, **wishes,
            )  # fmt: skip
        except AdmissionError as error:
            if error.code == "join_timeout":
                error.add_note(
                    f"Every rank must call group() with the same list and as often; here it is {list(ranks)}."
                )
            raise

    try:
        recorder = None if timeline is None else timelines.Timeline(
            timeline, name, member.rank, member.world_size, monitor.transport, monitor.generations, runtime
        )  # fmt: skip
    except UsageError:
        engine.close()
        monitor.leave(0, 0, None)
        raise
    state = SessionState(
        member.rank, member.world_size, engine=engine, monitor=monitor, policy=member.policy,
        timeout=timeout, name=name, secret=secret, timeline=recorder,
    )  # fmt: skip
    return Session(state, group if may_group else None)


def _controller(
    given: str | None, rank: int, patience: float, launch: launchers.Launch | None
) -> tuple[str, bool]:
    """Returns the controller's URL, and True if it may still be starting."""
    url = given if given is not None else os.environ.get("SWITCHAGG_CONTROLLER")
    if url:
        return url, False
    from worker_lib.embedded import controller_address, start_embedded

    address = controller_address(os.environ)
    if address is None and launch is not None and not os.environ.get("MASTER_ADDR"):
        address = launch.address
    if address is None:
        raise UsageError(
            "no controller named: pass controller='http://host:port', set SWITCHAGG_CONTROLLER, run "
            "under `switchagg run`, or set MASTER_ADDR and MASTER_PORT (as torchrun does) so that rank 0 "
            "starts one"
        )
    host, port = address
    if rank == 0 and not any(
        each.process.poll() is None and each.controller.endswith(f":{port}") for each in _embedded
    ):
        several = launch is not None and launch.several_hosts
        _embedded.append(start_embedded(host, port, timeout=patience, several_hosts=several))
    with contextlib.suppress(OSError, UnicodeError):  # who cannot find it now asks again when it joins
        if (number := resolve(host)).startswith("127."):
            host = number  # a controller on loopback has no other name
    return f"http://{show_address(host, port)}", True


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    try:
        return float(text) if text else default
    except ValueError:
        raise UsageError(f"{variable} is {text!r}; accepted: seconds greater than 0") from None


def _checked(given: bool | None) -> bool:
    """Returns what was asked for: by argument, or by SWITCHAGG_CHECK."""
    if not isinstance(given, bool | None):
        raise UsageError(f"check is {given!r}; accepted: True, False")
    if given is not None:
        return given
    text = os.environ.get("SWITCHAGG_CHECK") or "0"
    if text not in ("0", "1"):
        raise UsageError(f"SWITCHAGG_CHECK is {text!r}; accepted: 0, 1")
    return text == "1"


def _leave_at_exit() -> None:
    close_all()
    end_dropped()
    for controller in _embedded:
        controller.close()


def _forget_controllers_in_child() -> None:
    for controller in _embedded:
        controller.close_descriptors()  # the parent ends them
    _embedded.clear()


os.register_at_fork(after_in_child=_forget_controllers_in_child)


atexit.register(_leave_at_exit)
