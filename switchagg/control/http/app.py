"""The FastAPI application: all routes, the page, and one shape for every failure."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

import switchagg
from switchagg.control.answers import HealthView
from switchagg.control.http import reference
from switchagg.control.http.errors import error_body, status_of
from switchagg.control.http.guard import REQUEST_ID, TENANT, Authenticator, Guard
from switchagg.control.http.metrics import MEDIA_TYPE, Metrics
from switchagg.control.http.page_files import PAGE_HEADERS, page_file
from switchagg.control.http.routes import (
    STORE_THREADS,
    SWITCH_THREADS,
    THREADS,
    Asking,
    Service,
    answering,
    check_query,
    job_routes,
    member_routes,
    operation_id,
    streaming,
    switch_routes,
)
from switchagg.control.http.streams import ClientGone
from switchagg.errors import AdmissionError, SwitchAggError

if TYPE_CHECKING:
    from switchagg.control.controller import Controller

DESCRIPTION = """Jobs, their members and their switches. Workers join here and are told what to send where;
people look at what runs, and drain and evict. Every failure is
`{"error": {"code": ..., "message": ...}}`, the code for programs, the message for people."""


def create_app(service: Service) -> FastAPI:
    """Returns the application without its guard; see `switchagg.control.http.guard`."""
    app = FastAPI(
        title="switchagg controller",
        version=switchagg.__version__,
        description=DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    # As they are, and not by include_router(): that makes all models again, now or at the first request.
    for made in (job_routes(service), member_routes(service), switch_routes(service)):
        app.router.routes.extend(made.routes)
    _add_others(app, service)
    _add_page(app)
    _add_failures(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def openapi_document() -> dict[str, Any]:
    """Returns the OpenAPI document, without a controller."""
    nobody: Any = None
    pool = ThreadPoolExecutor(1)  # starts no thread until it has work
    return create_app(Service(nobody, nobody, nobody, asyncio.Event(), pool, pool, pool)).openapi()


def guarded(
    controller: Controller, authenticator: Authenticator, metrics: Metrics, stop: asyncio.Event
) -> tuple[Guard, Service]:
    """Returns the whole application, and the service that its routes share."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="switchagg-http-call")
    switch_pool = ThreadPoolExecutor(SWITCH_THREADS, thread_name_prefix="switchagg-http-switch")
    store_pool = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="switchagg-http-store")
    service = Service(controller, authenticator, metrics, stop, pool, switch_pool, store_pool)
    return Guard(create_app(service), authenticator, metrics), service


def _add_others(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="Health", tags=["service"], **answering(HealthView))
    async def healthz(request: Request) -> Response:
        """Says that the controller runs; and its switches, to callers that may know."""
        check_query(request)
        answer: dict[str, Any] = {
            "status": "ok",
            "version": switchagg.__version__,
            "authentication": service.authenticator.required,
        }
        if TENANT in request.scope:
            answer |= await service.in_thread(service.controller.queries.health)
        return JSONResponse(answer)

    app.head("/healthz", include_in_schema=False)(healthz)
    shown = streaming("Prometheus' text format.", "text/plain")

    @app.get("/metrics", summary="Metrics", tags=["service"], **shown)
    async def metrics(tenant: Asking) -> Response:
        """Returns the metrics in Prometheus' text format. For administrators."""
        if not tenant.admin:
            raise AdmissionError("metrics are of all tenants, and for administrators", "forbidden")
        text = await service.in_thread(service.metrics.text)
        return Response(text, media_type=MEDIA_TYPE)


def _add_page(app: FastAPI) -> None:
    async def page(file: str = "") -> Response:
        found = page_file(file)
        if found is None:
            raise HTTPException(404)
        return Response(found.content, headers=dict(PAGE_HEADERS), media_type=found.media_type)

    methods = ["GET", "HEAD"]
    app.add_api_route("/", page, methods=methods, include_in_schema=False)
    app.add_api_route("/page/{file}", page, methods=methods, include_in_schema=False)

    async def docs() -> Response:
        headers = {**PAGE_HEADERS, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(reference.html(app.openapi()), headers=headers, media_type="text/html")

    app.add_api_route("/docs", docs, methods=methods, include_in_schema=False)


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(SwitchAggError)
    async def not_done(_: Request, error: SwitchAggError) -> Response:
        if isinstance(error, AdmissionError):
            return _failure(int(status_of(error)), error.code, str(error))
        return _failure(503, "switch", str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return _failure(400, *_invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def starlette(request: Request, error: HTTPException) -> Response:
        path = request.scope["path"][:200]
        match error.status_code:
            case 404:
                return _failure(404, "not_found", f"there is no {path}; /docs lists the calls")
            case 405:
                # Starlette's own header names the methods of only one route of the path.
                allowed = ", ".join(sorted(_methods(app, request)))
                text = f"{request.method} is not for {path}; accepted: {allowed}"
                return _failure(405, "method_not_allowed", text, {"Allow": allowed})
        return _failure(400, "bad_request", "the body cannot be read as JSON")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        request_id = request.scope[REQUEST_ID]
        return _failure(500, "internal", f"an error in the controller; its log says more at {request_id}")

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # for the log and the counters alone


def _methods(app: FastAPI, request: Request) -> set[str]:
    found: set[str] = set()
    for route in app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


def _failure(status: int, code: str, message: str, headers: Any = None) -> Response:
    return Response(error_body(code, message), status, headers, "application/json")


def _invalid(errors: Sequence[Any]) -> tuple[str, str]:
    """Returns code and message for the first error in a request."""
    error = errors[0]
    where, kind, given = error["loc"], error["type"], error.get("input")
    if kind == "json_invalid":
        reason = error.get("ctx", {}).get("error", "")
        return "bad_request", f"the body is not JSON: {reason} at character {where[-1]}"
    if where == ("body",):
        if kind == "missing":
            return (
                "bad_request",
                "there is no body; accepted: a JSON object, with Content-Type: application/json",
            )
        if isinstance(given, bytes):
            return "bad_request", "the body came without Content-Type: application/json"
        return "bad_request", f"the body is {_shown(given)}; accepted: a JSON object"
    name = ".".join(str(part) for part in where[1:])
    if kind == "missing":
        return "bad_request", f"{name!r} is missing"
    if kind == "extra_forbidden":
        return "bad_request", f"unknown field {name[:60]!r}"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    message = message.removeprefix("accepted: ")
    code = "bad_request"
    if kind in ("greater_than_equal", "less_than_equal"):
        code = {"world_size": "world_size", "rank": "rank_out_of_range"}.get(name, code)
    return code, f"{name!r} is {_shown(given)}; accepted: {message}"


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # such as an integer of more digits than Python prints
        text = f"of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for path in schema["paths"].values():
            for operation in path.values():
                # FastAPI's own shape of a validation error, which is not ours.
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema
