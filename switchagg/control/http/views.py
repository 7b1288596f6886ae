"""Calls of people and their tools: jobs, switches, slots, counters, the event log, the live view."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from switchagg.control.http.errors import HttpError
from switchagg.control.http.schemas import (
    Digits,
    EventsView,
    HistoryView,
    JobOrder,
    JobsView,
    JobView,
    Segment,
    SlotsView,
    StatsView,
    SwitchesView,
    SwitchView,
    WaitingView,
)
from switchagg.control.http.shared import (
    BODY,
    Asking,
    JobId,
    Name,
    Narrowed,
    Service,
    failures,
    streamed,
)
from switchagg.control.http.streams import SSE, LiveStream
from switchagg.control.jobs.records import MAX_NAME, JobSpec, OnLoss

MAX_EVENTS = 1000
_CREATE = (
    "world_size",
    "quota",
    "not_found",
    "name_taken",
    "no_slots",
    "no_memory",
    "draining",
    "switch",
    "stopping",
)
_SwitchName = Annotated[
    str, Segment, Path(min_length=1, max_length=MAX_NAME, description="The switch's name.")
]
_Since = Annotated[
    Annotated[int, Field(ge=0, le=2**53), Digits], Query(description="Only events with a greater number.")
]


def job_routes(service: Service) -> APIRouter:
    """Returns the routes of jobs as a whole."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    controller, in_thread = service.controller, service.in_thread

    @routes.post(
        "",
        summary="Create a job",
        status_code=201,
        response_model=JobView,
        responses=failures(*BODY, *_CREATE),
    )
    async def create(order: JobOrder, tenant: Asking) -> Response:
        """Makes a job before its ranks join. Where no switch has room it waits in the queue."""
        spec = JobSpec(**order.model_dump() | {"on_loss": OnLoss(order.on_loss)})
        return JSONResponse(await in_thread(controller.create, tenant, spec), 201)

    @routes.get("", summary="List jobs", response_model=JobsView, responses=failures())
    async def jobs(tenant: Narrowed) -> Response:
        """Returns every job that has not ended, of whoever asks."""
        return JSONResponse({"jobs": await in_thread(controller.queries.jobs, tenant)})

    @routes.get(
        "/{name}",
        summary="Show a job",
        response_model=JobView,
        responses=failures("not_found"),
    )
    async def job(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Returns the newest job of that name, or the one with this id."""
        return JSONResponse(_found(name, await in_thread(controller.queries.job, tenant, name, job_id)))

    @routes.delete(
        "/{name}",
        summary="Evict a job",
        response_model=JobView,
        responses=failures("not_found"),
    )
    async def evict(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Ends a job now; its members are told by whom."""
        return JSONResponse(await in_thread(controller.evict, tenant, name, job_id))

    @routes.post(
        "/{name}/drain",
        summary="Drain a job",
        response_model=JobView,
        responses=failures(*BODY, "not_found", "failed"),
    )
    async def drain(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Lets nobody in any more; the job ends when all have left."""
        return JSONResponse(await in_thread(controller.drain, tenant, name, job_id))

    @routes.get(
        "/{name}/history",
        summary="Show a job over time",
        response_model=HistoryView,
        responses=failures("not_found"),
    )
    async def history(name: Name, tenant: Narrowed, job_id: JobId = None) -> Response:
        """Returns what its heartbeats have told in the last 10 minutes, a point a second."""
        return JSONResponse(_found(name, await in_thread(controller.queries.history, tenant, name, job_id)))

    return routes


def switch_routes(service: Service) -> APIRouter:
    """Returns the routes of switches, slots, counters and events."""
    routes = APIRouter(prefix="/v1", tags=["switches"])
    controller, in_thread = service.controller, service.in_thread

    @routes.get("/switches", summary="List switches", response_model=SwitchesView, responses=failures())
    async def switches(tenant: Narrowed) -> Response:
        """Returns every switch with its slot map. Other tenants' jobs have no names there."""
        return JSONResponse({"switches": await in_thread(controller.queries.switches, tenant)})

    async def _drain(call: Any, name: str, tenant: Any) -> Response:
        if not tenant.admin:
            raise HttpError("forbidden", "draining a switch is for administrators")
        return JSONResponse(await in_thread(call, tenant, name))

    drained = failures(*BODY, "not_found")

    @routes.post(
        "/switches/{name}/drain", summary="Drain a switch", response_model=SwitchView, responses=drained
    )
    async def drain(name: _SwitchName, tenant: Asking) -> Response:
        """Puts no new jobs there, and moves those that can be moved. For administrators."""
        return await _drain(controller.drain_switch, name, tenant)

    @routes.post(
        "/switches/{name}/undrain", summary="Undrain a switch", response_model=SwitchView, responses=drained
    )
    async def undrain(name: _SwitchName, tenant: Asking) -> Response:
        """Takes new jobs there again. For administrators."""
        return await _drain(controller.undrain_switch, name, tenant)

    @routes.get(
        "/slots",
        summary="Show slots",
        response_model=SlotsView | WaitingView,
        responses=failures("not_found"),
    )
    async def slots(
        tenant: Narrowed,
        job: Annotated[
            str | None, Query(max_length=MAX_NAME, description="Which slots of this job wait for whom.")
        ] = None,
        job_id: JobId = None,
    ) -> Response:
        """Returns who has which slots; or of one job those that wait, and for whom."""
        if job is not None:
            return JSONResponse(
                _found(job, await service.of_switch(controller.queries.waiting_slots, tenant, job, job_id))
            )
        return JSONResponse(await in_thread(controller.queries.slots, tenant))

    @routes.get("/stats", summary="Show counters", response_model=StatsView, responses=failures())
    async def stats(tenant: Narrowed) -> Response:
        """Returns the counters of the switches and of every job."""
        return JSONResponse(await service.of_switch(controller.queries.stats, tenant))

    @routes.get("/events", summary="Read the event log", response_model=EventsView, responses=failures())
    async def events(
        tenant: Narrowed,
        since: _Since = 0,
        limit: Annotated[Annotated[int, Field(ge=1, le=MAX_EVENTS), Digits], Query()] = 200,
    ) -> Response:
        """Returns the newest events past `since`, oldest first."""
        return JSONResponse({"events": await in_thread(controller.queries.events, tenant, since, limit)})

    @routes.get(
        "/live",
        summary="Watch",
        response_class=Response,
        responses=streamed(
            "Server-sent events: `snapshot`, once a second, with `now`, `switches`, `jobs` and new `events`.",
            SSE,
        )
        | failures(),
    )
    async def live(tenant: Narrowed, since: _Since = 0) -> Response:
        """Streams what runs."""

        async def snapshot(after: int) -> dict[str, Any]:
            return await in_thread(controller.queries.snapshot, tenant, after)

        return LiveStream(snapshot, since, service.stop)

    return routes


def _found(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
    if value is None:
        raise HttpError("not_found", f"there is no job {name[:MAX_NAME]!r}")
    return value
