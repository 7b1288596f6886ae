"""The calls of the API: jobs, their members, switches, slots, counters, the event log, the live view.

Each route names the controller's method that it calls. Calls that wait for a switch run in threads of their
own, and so do those that wait for the store: one that does not answer keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, TypeVarTuple

from fastapi import APIRouter, Depends, Path, Query, Request, Security
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field

from switchagg.control import answers
from switchagg.control.answers import JobView
from switchagg.control.http.errors import STATUS
from switchagg.control.http.guard import TENANT, Authenticator
from switchagg.control.http.requests import (
    Bearing,
    Beat,
    Digits,
    Failure,
    JobOrder,
    Join,
    Leaving,
    Proceed,
    Progress,
    Replay,
    Segment,
)
from switchagg.control.http.streams import NDJSON, SSE, LiveStream, MemberStream, admitted, unless_gone
from switchagg.control.jobs.records import MAX_NAME, JobSpec, JoinRequest, OnLoss, Tenant
from switchagg.errors import AdmissionError
from switchagg.wire.header import MAX_TREE_WORKERS

if TYPE_CHECKING:
    from switchagg.control.controller import Controller
    from switchagg.control.http.metrics import Metrics

MAX_EVENTS: Final = 1000
THREADS: Final = 16  # for calls that wait for the controller
SWITCH_THREADS: Final = 8  # for calls that wait for a switch
STORE_THREADS: Final = 8  # for calls that wait for the store

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@dataclass(frozen=True, slots=True)
class Service:
    """The controller as the routes see it.

    Attributes:
        stop: set when the service ends.
        pool: for calls that wait for the controller's lock, or a moment for a switch.
        switch_pool: for calls that wait until a switch has answered.
        store_pool: for calls that wait until the store has answered.
    """

    controller: Controller
    authenticator: Authenticator
    metrics: Metrics
    stop: asyncio.Event
    pool: ThreadPoolExecutor
    switch_pool: ThreadPoolExecutor
    store_pool: ThreadPoolExecutor

    async def in_thread(self, call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Awaits a call that may block for a moment."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *arguments)

    async def of_switch(self, call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Awaits a call that waits for an answer of a switch."""
        return await asyncio.get_running_loop().run_in_executor(self.switch_pool, call, *arguments)

    async def kept(self, call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Awaits a call that waits until the store has its change."""
        return await asyncio.get_running_loop().run_in_executor(self.store_pool, call, *arguments)

    def close(self) -> None:
        """Waits for the calls under way."""
        self.pool.shutdown()
        self.switch_pool.shutdown()
        self.store_pool.shutdown()


def check_query(request: Request) -> None:
    """Raises `AdmissionError` for a query parameter that the call does not have: it is a slip."""
    if given := set(request.query_params):
        operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
        known = sorted(each["name"] for each in operation.get("parameters", ()) if each["in"] == "query")
        if unknown := sorted(given - set(known)):
            said = f"there is no query parameter {unknown[0][:60]!r}; accepted: {', '.join(known) or 'none'}"
            raise AdmissionError(said, "bad_request")


_bearer = HTTPBearer(
    auto_error=False,
    description="A tenant's token. Not needed while no tenants are set up, on loopback alone.",
)


async def _tenant(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Tenant:
    check_query(request)
    tenant: Tenant = request.scope[TENANT]
    return tenant


Asking = Annotated[Tenant, Depends(_tenant)]
Owner = Annotated[
    str | None,
    Query(alias="tenant", min_length=1, max_length=MAX_NAME, description="Whose, if an administrator asks."),
]


async def _narrowed(asking: Asking, owner: Owner = None) -> Tenant:
    if owner is None or owner == asking.name:
        return asking
    if not asking.admin:
        raise AdmissionError(f"tenant is {owner!r}; accepted: your own, {asking.name!r}", "forbidden")
    return Tenant(owner, by=asking.name)


Narrowed = Annotated[Tenant, Depends(_narrowed)]
"""The tenant that asks, or the one as whom an administrator looks."""
Name = Annotated[str, Segment, Path(min_length=1, max_length=MAX_NAME, description="The job's name.")]
Rank = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TREE_WORKERS - 1), Digits],
    Path(description="The rank that the member joined as."),
]
JobId = Annotated[
    Annotated[int, Field(ge=0, le=65535), Digits] | None,
    Query(alias="id", description="One generation of that name, by its id."),
]
SwitchName = Annotated[
    str, Segment, Path(min_length=1, max_length=MAX_NAME, description="The switch's name.")
]
WaitingJob = Annotated[
    str | None, Query(max_length=MAX_NAME, description="Show the slots of this job that wait.")
]
EventsJob = Annotated[str | None, Query(max_length=MAX_NAME, description="Only events of jobs of this name.")]
Limit = Annotated[Annotated[int, Field(ge=1, le=MAX_EVENTS), Digits], Query()]
Since = Annotated[
    Annotated[int, Field(ge=0, le=2**53), Digits], Query(description="Only events with a greater number.")
]


def _failures(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for a call that may fail with these codes, besides the usual ones."""
    by_status: dict[int, list[str]] = {}
    for code in ("bad_request", "unauthorized", "forbidden", "switch", *codes):
        by_status.setdefault(int(STATUS[code]), []).append(code)
    return {
        status: {"model": Failure, "description": ", ".join(f"`{code}`" for code in of_status)}
        for status, of_status in sorted(by_status.items())
    }


def answering(model: Any, *codes: str) -> dict[str, Any]:
    """Returns the settings of a route that answers with a model's JSON, or fails with one of these codes."""
    return {"response_model": model, "responses": _failures(*codes)}


def streaming(description: str, media_type: str, *codes: str) -> dict[str, Any]:
    """Returns the settings of a route that answers with text of this type, or fails with these codes."""
    text = {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}
    return {"response_class": Response, "responses": {200: text} | _failures(*codes)}


_BODY: Final = ("length_required", "too_large")  # of every call with a body
_CREATE: Final = (
    *("world_size", "quota", "not_found", "name_taken"),
    *("no_slots", "no_memory", "draining", "stopping"),
)
_MEMBER: Final = ("wrong_token", "not_found")
_CHANGE: Final = (*_MEMBER, "lost", "failed", "evicted", "stopping")
_PROCEED: Final = (*_CHANGE, "address_taken", "no_slots", "no_memory", "no_switch")
_JOIN: Final = (
    *("rank_out_of_range", "world_size", "quota", "rank_taken", "address_taken", "world_size_mismatch"),
    *("settings_mismatch", "join_timeout", "draining", "evicted", "failed"),
    *("no_slots", "no_memory", "no_switch", "stopping"),
)
_STREAM: Final = (
    "A stream of events, a JSON object a line, that lasts as long as the membership. The first is "
    "`admitted` (schema AdmittedView). Later: `lost`, `left`, `switch`, `evicted`, `stopping`, `policy`, "
    "`pause`, and `ping` every 5 s. The connection is the member's life line: its end without a leave means "
    "that the member is lost."
)


def operation_id(route: APIRoute) -> str:
    """Returns a route's name in the OpenAPI document."""
    return f"{route.name}_{'_'.join(map(str, route.tags))}"


def _router(prefix: str, tag: str) -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=operation_id)


def job_routes(service: Service) -> APIRouter:
    """Returns the routes of jobs as a whole."""
    routes = _router("/v1/jobs", "jobs")
    controller, in_thread = service.controller, service.in_thread

    @routes.post("", summary="Create a job", status_code=201, **answering(JobView, *_BODY, *_CREATE))
    async def create(order: JobOrder, tenant: Asking) -> Response:
        """Makes a job before its ranks join. If no switch has room for it, it waits in the queue."""
        spec = JobSpec(**order.model_dump() | {"on_loss": OnLoss(order.on_loss)})
        return JSONResponse(await service.kept(controller.create, tenant, spec), 201)

    @routes.get("", summary="List jobs", **answering(answers.JobsView))
    async def jobs(tenant: Narrowed) -> Response:
        """Returns every job that has not ended, of whoever asks."""
        return JSONResponse({"jobs": await in_thread(controller.queries.jobs, tenant)})

    @routes.get("/{name}", summary="Show a job", **answering(JobView, "not_found"))
    async def job(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Returns the newest job of that name, or the one with this id."""
        return _found(name, await in_thread(controller.queries.job, tenant, name, job_id))

    @routes.delete("/{name}", summary="Evict a job", **answering(JobView, "not_found"))
    async def evict(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Ends a job now; its members are told by whom."""
        return JSONResponse(await service.kept(controller.evict, tenant, name, job_id))

    @routes.post("/{name}/drain", summary="Drain a job", **answering(JobView, *_BODY, "not_found", "failed"))
    async def drain(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Lets nobody in any more; the job ends when all have left."""
        return JSONResponse(await service.kept(controller.drain, tenant, name, job_id))

    @routes.get(
        "/{name}/history", summary="Show a job over time", **answering(answers.HistoryView, "not_found")
    )
    async def history(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Returns the last 10 minutes of a job by its heartbeats, a point a second."""
        return _found(name, await in_thread(controller.queries.history, tenant, name, job_id))

    return routes


def member_routes(service: Service) -> APIRouter:
    """Returns the routes of members: join, attach, leave, heartbeats, and changes of membership."""
    routes = _router("/v1/jobs/{name}/members", "members")
    controller = service.controller

    @routes.post("", summary="Join", **streaming(_STREAM, NDJSON, *_BODY, *_JOIN))
    async def join(name: Name, asked: Join, tenant: Asking, request: Request) -> Response:
        """Takes a rank in a job, which is made if there is none of that name. Waits for all ranks."""
        given = asked.model_dump(exclude_none=True)
        given["more_ports"] = tuple(asked.more_ports)
        if asked.on_loss is not None:
            given["on_loss"] = OnLoss(asked.on_loss)
        stream = MemberStream(asyncio.get_running_loop())
        controller.join(tenant, name, JoinRequest(**given), stream)
        return await admitted(stream, controller, request)

    @routes.post("/{rank}/attach", summary="Attach", **streaming(_STREAM, NDJSON, *_BODY, *_CHANGE))
    async def attach(name: Name, rank: Rank, shown: Bearing, tenant: Asking, request: Request) -> Response:
        """Opens a member's stream again, after the controller was restarted or the connection broke."""
        stream = MemberStream(asyncio.get_running_loop())
        controller.attach(tenant, name, rank, shown.token, stream)
        return await admitted(stream, controller, request)

    @routes.post("/{rank}/leave", summary="Leave", **answering(answers.Empty, *_BODY, *_MEMBER))
    async def leave(name: Name, rank: Rank, shown: Leaving, tenant: Asking) -> Response:
        """Gives a rank back. With on_loss="shrink", one that an exception ends is lost."""
        controller.leave(tenant, name, rank, shown.token, shown.begun, shown.completed, shown.why)
        return JSONResponse({})

    @routes.post(
        "/{rank}/heartbeat", summary="Heartbeat", **answering(answers.Empty, *_BODY, *_MEMBER, "lost")
    )
    async def heartbeat(name: Name, rank: Rank, beat: Beat, tenant: Asking) -> Response:
        """Says that a member lives, and what it has done."""
        controller.beat(tenant, name, rank, beat.token, beat.report)
        return JSONResponse({})

    @routes.post("/{rank}/progress", summary="Progress", **answering(answers.CompleteView, *_BODY, *_CHANGE))
    async def progress(name: Name, rank: Rank, said: Progress, tenant: Asking, request: Request) -> Response:
        """First step of a change of membership. Waits for all survivors."""
        future = controller.progress(tenant, name, rank, said.token, said.completed, replaying=said.replaying)
        return JSONResponse({"complete_to": await unless_gone(request, asyncio.wrap_future(future))})

    @routes.post("/{rank}/proceed", summary="Proceed", **answering(answers.AdmittedView, *_BODY, *_PROCEED))
    async def proceed(name: Name, rank: Rank, asked: Proceed, tenant: Asking, request: Request) -> Response:
        """Second step: goes over to the new generation. Waits for all survivors and those who join them."""
        future = controller.proceed(tenant, name, rank, asked.token, asked.address, asked.ports)
        return JSONResponse(await unless_gone(request, asyncio.wrap_future(future)))

    @routes.post("/{rank}/replay", summary="Replay", **answering(answers.AdmittedView, *_BODY, *_PROCEED))
    async def replay(name: Name, rank: Rank, asked: Replay, tenant: Asking, request: Request) -> Response:
        """Goes over to another switch, since this one is gone or gives wrong sums. Waits for all members."""
        future = controller.replay(
            tenant, name, rank, asked.token, (asked.lowest, *asked.more_lowest), asked.address, asked.ports,
            stripe=asked.stripe, damaged=asked.damaged,
        )  # fmt: skip
        return JSONResponse(await unless_gone(request, asyncio.wrap_future(future)))

    return routes


def switch_routes(service: Service) -> APIRouter:
    """Returns the routes of switches, slots, counters and events."""
    routes = _router("/v1", "switches")
    controller, in_thread = service.controller, service.in_thread
    drained = answering(answers.SwitchView, *_BODY, "not_found")

    @routes.get("/switches", summary="List switches", **answering(answers.SwitchesView))
    async def switches(tenant: Narrowed) -> Response:
        """Returns every switch with its slot map. Other tenants' jobs have no names there."""
        return JSONResponse({"switches": await in_thread(controller.queries.switches, tenant)})

    async def _drain(call: Any, name: str, tenant: Tenant) -> Response:
        if not tenant.admin:
            raise AdmissionError("draining a switch is for administrators", "forbidden")
        return JSONResponse(await service.kept(call, tenant, name))

    @routes.post("/switches/{name}/drain", summary="Drain a switch", **drained)
    async def drain(name: SwitchName, tenant: Asking) -> Response:
        """Puts no new jobs there, and moves those that can be moved. For administrators."""
        return await _drain(controller.drain_switch, name, tenant)

    @routes.post("/switches/{name}/undrain", summary="Undrain a switch", **drained)
    async def undrain(name: SwitchName, tenant: Asking) -> Response:
        """Takes new jobs there again. For administrators."""
        return await _drain(controller.undrain_switch, name, tenant)

    @routes.get(
        "/slots", summary="Show slots", **answering(answers.SlotsView | answers.WaitingView, "not_found")
    )
    async def slots(tenant: Narrowed, job: WaitingJob = None, job_id: JobId = None) -> Response:
        """Returns the slots that jobs have; or those of one job that wait, and for which ranks."""
        if job is not None:
            return _found(job, await service.of_switch(controller.queries.waiting_slots, tenant, job, job_id))
        return JSONResponse(await in_thread(controller.queries.slots, tenant))

    @routes.get("/stats", summary="Show counters", **answering(answers.StatsView))
    async def stats(tenant: Narrowed) -> Response:
        """Returns the counters of the switches and of every job."""
        return JSONResponse(await service.of_switch(controller.queries.stats, tenant))

    @routes.get("/events", summary="Read the event log", **answering(answers.EventsView))
    async def events(
        tenant: Narrowed, since: Since = 0, limit: Limit = 200, job: EventsJob = None
    ) -> Response:
        """Returns the newest events past `since`, oldest first."""
        found = await in_thread(controller.queries.events, tenant, since, limit, job)
        return JSONResponse({"events": found})

    said = "Server-sent events: `snapshot`, once a second, with `now`, `switches`, `jobs` and new `events`."

    @routes.get("/live", summary="Watch", **streaming(said, SSE))
    async def live(tenant: Narrowed, since: Since = 0) -> Response:
        """Streams a snapshot of jobs and switches a second."""

        async def snapshot(after: int) -> answers.Snapshot:
            return await in_thread(controller.queries.snapshot, tenant, after)

        return LiveStream(snapshot, since, service.stop)

    return routes


def _found(name: str, value: Any | None) -> Response:
    if value is None:
        raise AdmissionError(f"there is no job {name[:MAX_NAME]!r}", "not_found")
    return JSONResponse(value)
