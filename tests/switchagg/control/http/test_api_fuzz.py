"""schemathesis against the OpenAPI of the real service: no 5xx, no undocumented answer, no nonsense taken.

`make fuzz-api` runs more of it, with SWITCHAGG_API_EXAMPLES examples a call.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from switchagg.control.http.app import openapi_document
from tests.switchagg.control.served_controller import ServedController, serving

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is in the extra dev")

from hypothesis import HealthCheck, Phase, seed, settings  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

EXAMPLES = int(os.environ.get("SWITCHAGG_API_EXAMPLES", "8"))
SEED = int(os.environ.get("SWITCHAGG_TEST_SEED", secrets.randbelow(2**32)))


@pytest.fixture(scope="module")
def place() -> Iterator[ServedController]:
    with serving() as there:
        tenants = there.server.controller.tenants
        tenants.add("fuzz", admin=True)
        tenants.adopt("fuzz", TOKEN)
        yield there


# /v1/live streams for ever; test_streams has it.
schema = schemathesis.openapi.from_dict(openapi_document()).exclude(path="/v1/live")


TOKEN = "swagg_" + "fuzz" * 8


@schema.auth()
class Bearer:
    def get(self, case: Any, context: Any) -> str:
        del case, context
        return TOKEN

    def set(self, case: Any, data: str, context: Any) -> None:
        del context
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


def hurried(body: Any) -> Any:
    """A join that does not last: one that is admitted streams for ever, and one that waits takes its time."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    if body.get("world_size") == 1:
        body["world_size"] = 2
    if isinstance(body.get("timeout", 30), int | float) and body.get("timeout", 30) > 0.01:
        body["timeout"] = 0.01
    return body


@schema.parametrize()
@seed(SEED)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_every_call(case: Any, place: ServedController) -> None:
    print(f"SWITCHAGG_TEST_SEED={SEED}")
    if case.operation.path.endswith("/members"):
        case.body = hurried(case.body)
    # A schema cannot tell the room of a switch. And 1.0 is an integer to JSON Schema, not to us.
    case.call_and_validate(base_url=place.url, excluded_checks=[positive_data_acceptance], timeout=120)
