"""What every route needs: the controller, threads for calls that ask switches, how answers are documented."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field

from switchagg.control.http.errors import STATUS, HttpError
from switchagg.control.http.guard import TENANT
from switchagg.control.http.schemas import Digits, Failure, Segment
from switchagg.control.jobs.records import MAX_NAME, Tenant
from switchagg.wire.header import MAX_TREE_WORKERS

if TYPE_CHECKING:
    from switchagg.control.controller import Controller
    from switchagg.control.http.auth import Authenticator
    from switchagg.control.http.metrics import Metrics

THREADS: Final = 16
QUESTIONS: Final = 8

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Service:
    """The controller as the routes see it.

    Attributes:
        stop: set when the service ends.
        pool: for calls that wait for the controller's lock, or a moment for a switch.
        questions: for calls that wait until a switch has answered. One that does not answer must not keep
            those from their work who have nothing to do with it.
    """

    controller: Controller
    authenticator: Authenticator
    metrics: Metrics
    stop: asyncio.Event
    pool: ThreadPoolExecutor
    questions: ThreadPoolExecutor

    async def in_thread(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Awaits a call that may block for a moment."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def of_switch(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Awaits a call that waits for an answer of a switch."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.questions, work)

    def close(self) -> None:
        """Waits for the calls under way."""
        self.pool.shutdown()
        self.questions.shutdown()


_bearer = HTTPBearer(
    auto_error=False,
    description="A tenant's token. Not needed while no tenants are set up, on loopback alone.",
)


def check_query(request: Request) -> None:
    """Raises `HttpError` for a query parameter that the call does not have, as a slip."""
    if given := set(request.query_params):
        operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
        known = sorted(each["name"] for each in operation.get("parameters", ()) if each["in"] == "query")
        if unknown := sorted(given - set(known)):
            said = f"there is no query parameter {unknown[0][:60]!r}; accepted: {', '.join(known) or 'none'}"
            raise HttpError("bad_request", said)


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
        raise HttpError("forbidden", f"tenant is {owner!r}; accepted: your own, {asking.name!r}")
    return Tenant(owner, by=asking.name)


Narrowed = Annotated[Tenant, Depends(_narrowed)]
"""Who asks, or as whom an administrator looks."""
Name = Annotated[str, Segment, Path(min_length=1, max_length=MAX_NAME, description="The job's name.")]
Rank = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TREE_WORKERS - 1), Digits],
    Path(description="The rank that the member joined as."),
]
JobId = Annotated[
    Annotated[int, Field(ge=0, le=65535), Digits] | None,
    Query(alias="id", description="One generation of that name, by its id."),
]


def failures(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for a call that may fail with these codes, besides the usual ones."""
    by_status: dict[int, list[str]] = {}
    for code in ("bad_request", "unauthorized", "forbidden", *codes):
        by_status.setdefault(int(STATUS[code]), []).append(code)
    return {
        status: {"model": Failure, "description": ", ".join(f"`{code}`" for code in of_status)}
        for status, of_status in sorted(by_status.items())
    }


def streamed(description: str, media_type: str) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for a call that answers with text of this type."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


BODY: Final = ("length_required", "too_large")  # what may be wrong with any body
