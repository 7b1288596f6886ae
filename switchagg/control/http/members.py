"""Calls of a job's members: join, attach, leave, heartbeat, and the two steps of a change of membership."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from switchagg.control.http.schemas import (
    AdmittedView,
    Bearing,
    Beat,
    CompleteView,
    Empty,
    Join,
    Leaving,
    Proceed,
    Progress,
)
from switchagg.control.http.shared import BODY, Asking, Name, Rank, Service, failures, streamed
from switchagg.control.http.streams import NDJSON, MemberLine, admitted, unless_gone
from switchagg.control.jobs.records import JoinRequest, OnLoss

_STREAM = streamed(
    "A stream of events, a JSON object a line, that lasts as long as the membership. The first is "
    "`admitted` (schema AdmittedView). Later: `lost`, `left`, `switch`, `evicted`, `stopping`, `policy`, "
    "`pause`, and `ping` every 5 s. The connection is the member's life line: its end without a leave means "
    "that the member is lost.",
    NDJSON,
)
_CHANGE = ("wrong_token", "not_found", "lost", "failed", "evicted", "stopping")
_JOIN = (
    "rank_out_of_range",
    "world_size",
    "quota",
    "rank_taken",
    "address_taken",
    "world_size_mismatch",
    "settings_mismatch",
    "join_timeout",
    "draining",
    "evicted",
    "failed",
    "no_slots",
    "no_memory",
    "no_switch",
    "switch",
    "stopping",
)


def member_routes(service: Service) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter(prefix="/v1/jobs/{name}/members", tags=["members"])
    controller = service.controller

    @routes.post(
        "",
        summary="Join",
        response_class=Response,
        responses=_STREAM | failures(*BODY, *_JOIN),
    )
    async def join(name: Name, asked: Join, tenant: Asking, request: Request) -> Response:
        """Takes a rank in a job, which is made if there is none of that name. Waits for all ranks."""
        given = asked.model_dump(exclude_none=True)
        if asked.on_loss is not None:
            given["on_loss"] = OnLoss(asked.on_loss)
        wanted = JoinRequest(**given)
        line = MemberLine(asyncio.get_running_loop())
        controller.join(tenant, name, wanted, line)
        return await admitted(line, controller, request)

    @routes.post(
        "/{rank}/attach",
        summary="Attach",
        response_class=Response,
        responses=_STREAM | failures(*BODY, *_CHANGE),
    )
    async def attach(name: Name, rank: Rank, shown: Bearing, tenant: Asking, request: Request) -> Response:
        """Opens a member's stream again, after the controller was restarted or the connection broke."""
        line = MemberLine(asyncio.get_running_loop())
        controller.attach(tenant, name, rank, shown.token, line)
        return await admitted(line, controller, request)

    @routes.post(
        "/{rank}/leave",
        summary="Leave",
        response_model=Empty,
        responses=failures(*BODY, "wrong_token", "not_found"),
    )
    async def leave(name: Name, rank: Rank, shown: Leaving, tenant: Asking) -> Response:
        """Gives a rank back in order."""
        controller.leave(tenant, name, rank, shown.token, shown.begun)
        return JSONResponse({})

    @routes.post(
        "/{rank}/heartbeat",
        summary="Heartbeat",
        response_model=Empty,
        responses=failures(*BODY, "wrong_token", "not_found", "lost"),
    )
    async def heartbeat(name: Name, rank: Rank, beat: Beat, tenant: Asking) -> Response:
        """Says that a member lives, and what it has done."""
        controller.beat(tenant, name, rank, beat.token, beat.report)
        return JSONResponse({})

    @routes.post(
        "/{rank}/progress",
        summary="Progress",
        response_model=CompleteView,
        responses=failures(*BODY, *_CHANGE),
    )
    async def progress(name: Name, rank: Rank, said: Progress, tenant: Asking, request: Request) -> Response:
        """First step of a change of membership. Waits for all survivors."""
        future = controller.progress(tenant, name, rank, said.token, said.completed)
        return JSONResponse({"complete_to": await unless_gone(request, asyncio.wrap_future(future))})

    @routes.post(
        "/{rank}/proceed",
        summary="Proceed",
        response_model=AdmittedView,
        responses=failures(*BODY, *_CHANGE, "address_taken", "no_slots", "no_memory", "no_switch", "switch"),
    )
    async def proceed(name: Name, rank: Rank, asked: Proceed, tenant: Asking, request: Request) -> Response:
        """Second step: goes over to the new generation. Waits for all survivors and those who join them."""
        future = controller.proceed(tenant, name, rank, asked.token, asked.address, asked.port)
        return JSONResponse(await unless_gone(request, asyncio.wrap_future(future)))

    return routes
