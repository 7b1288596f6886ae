"""Authorization: tokens, tenants, quotas and browsers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from switchagg.control.jobs.records import Quota
from tests.switchagg.control.http_calls import Refused, call
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually


@dataclass
class Town:
    """A controller with two tenants and an administrator."""

    place: ServedController
    alice: str
    bob: str
    root: str


@pytest.fixture
def town() -> Iterator[Town]:
    with serving() as place:
        tenants = place.server.controller.tenants
        yield Town(
            place,
            tenants.add("alice", quota=Quota(jobs=2, slots=64, memory=1 << 20)),
            tenants.add("bob"),
            tenants.add("root", admin=True),
        )


def routes(place: ServedController) -> list[tuple[str, str]]:
    """Method and path of every call that there is, as OpenAPI has it."""
    status, schema = place.call("GET", "/openapi.json")
    assert status == 200
    return [
        (method.upper(), re.sub(r"\{rank\}", "0", re.sub(r"\{name\}", "a", path)))
        for path, operations in schema["paths"].items()
        for method in operations
    ]


def test_nothing_without_a_token(town: Town) -> None:
    place = town.place
    closed = [(method, path) for method, path in routes(place) if path != "/healthz"]
    assert len(closed) > 15
    connection = place.connection()
    for method, path in [*closed, ("GET", "/v1/nothing")]:
        body: Any = {} if method == "POST" else None
        for token, said in (
            (None, "no token came"),
            ("swagg_guessed", "is not, or no longer, a tenant's"),
            (town.alice[:-1], "is not, or no longer, a tenant's"),
            ("x" * 4000, "is not, or no longer, a tenant's"),
        ):
            status, answer = call(connection, method, path, body, token)
            assert (status, answer["error"]["code"]) == (401, "unauthorized"), (method, path)
            assert said in answer["error"]["message"]
    for header in ("Basic YTpi", "Bearer", "Bearer ", town.alice, "Bearer \xe9"):
        connection.request("GET", "/v1/jobs", headers={"Authorization": header})
        response = connection.getresponse()
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        response.read()
    # Nothing has changed, and nobody is told what runs.
    assert place.call("GET", "/v1/jobs", token=town.root) == (200, {"jobs": []})
    assert set(place.call("GET", "/healthz")[1]) == {"status", "version", "authentication"}
    assert "switches" in place.call("GET", "/healthz", token=town.bob)[1]


def test_the_scheme_is_read_in_any_case(town: Town) -> None:
    connection = town.place.connection()
    connection.request("GET", "/v1/jobs", headers={"authorization": f"bEaReR   {town.bob} "})
    assert connection.getresponse().status == 200


def test_a_token_is_good_until_it_is_revoked(town: Town) -> None:
    tenants, connection = town.place.server.controller.tenants, town.place.connection()
    second = tenants.issue("bob")
    assert [call(connection, "GET", "/v1/jobs", token=token)[0] for token in (town.bob, second)] == [200, 200]
    third = tenants.issue("bob", revoke=True)
    tried = [call(connection, "GET", "/v1/jobs", token=token)[0] for token in (town.bob, second, third)]
    assert tried == [401, 401, 200]
    tenants.remove("bob")
    assert call(connection, "GET", "/v1/jobs", token=third)[0] == 401


def test_tenants_do_not_see_each_other(town: Town) -> None:
    place = town.place
    mine = place.join("secret%20name", 0, 1, town.alice)
    other = place.join("secret%20name", 0, 1, town.bob, port=41000)  # names are each tenant's own
    assert mine.place["job"] != other.place["job"]
    third = place.join("only", 0, 1, town.alice, port=41001)
    connection = place.connection()

    def ask(method: str, path: str, body: Any = None, token: str = town.bob) -> tuple[int, Any]:
        return call(connection, method, path, body, token)

    assert [job["tenant"] for job in ask("GET", "/v1/jobs")[1]["jobs"]] == ["bob"]
    for method, path in (
        ("GET", "/v1/jobs/only"),
        ("DELETE", "/v1/jobs/only"),
        ("POST", "/v1/jobs/only/drain"),
        ("GET", "/v1/jobs/only/history"),
        ("GET", "/v1/slots?job=only"),
        ("DELETE", f"/v1/jobs/only?id={mine.place['job']}"),
    ):
        status, answer = ask(method, path)
        assert (status, answer["error"]["message"]) == (404, "there is no job 'only'"), path
    for verb, body in (
        ("leave", {}),
        ("heartbeat", {}),
        ("attach", {}),
        ("progress", {"completed": 1}),
        ("proceed", {"address": "127.0.0.1", "port": 1}),
    ):
        path = f"/v1/jobs/secret%20name/members/0/{verb}"
        status, answer = ask("POST", path, {"token": mine.place["token"], **body})
        assert (status, answer["error"]["code"]) == (403, "wrong_token"), verb
    switches = ask("GET", "/v1/switches")[1]["switches"]
    named = [(each["tenant"], each["name"]) for each in switches[0]["ranges"]]
    assert sorted(named, key=str) == [("bob", "secret name"), (None, None), (None, None)]
    for path in ("/v1/slots", "/v1/stats", "/v1/events", "/v1/switches", "/v1/jobs"):
        text = str(ask("GET", path)[1])
        assert "alice" not in text, path
        assert "only" not in text, path
    status, answer = ask("GET", "/v1/jobs?tenant=alice")
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert third.place["rank"] == 0
    assert place.members("only", town.alice) == {0: "joined"}  # none of this has changed anything

    # The administrator sees all, and may ask as of one.
    assert len(ask("GET", "/v1/jobs", token=town.root)[1]["jobs"]) == 3
    assert len(ask("GET", "/v1/jobs?tenant=alice", token=town.root)[1]["jobs"]) == 2
    assert ask("GET", "/v1/jobs/secret%20name", token=town.root)[0] == 400  # whose?
    assert ask("DELETE", "/v1/jobs/secret%20name?tenant=bob", token=town.root)[0] == 200
    evicted = other.event()
    assert evicted is not None
    assert evicted["event"] == "evicted"
    assert place.members("secret%20name", town.alice) == {0: "joined"}


def test_what_only_administrators_may(town: Town) -> None:
    for method, path in (
        ("POST", "/v1/switches/fake/drain"),
        ("POST", "/v1/switches/fake/undrain"),
        ("GET", "/metrics"),
    ):
        status, answer = town.place.call(method, path, token=town.alice)
        assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert town.place.call("POST", "/v1/switches/fake/drain", token=town.root)[1]["state"] == "draining"
    assert town.place.call("POST", "/v1/switches/fake/undrain", token=town.root)[1]["state"] == "up"
    assert town.place.call("POST", "/v1/switches/none/drain", token=town.root)[0] == 404


def test_past_the_quota(town: Town) -> None:
    place = town.place

    def create(name: str, **options: Any) -> tuple[int, Any]:
        order = {"name": name, "world_size": 2, "slots": 16, **options}
        return place.call("POST", "/v1/jobs", order, town.alice)

    for options in ({"slots": 128}, {"slots": 64, "words": 364, "switch": "fake"} | {"slots": 1024}):
        status, answer = create("big", **options)
        assert (status, answer["error"]["code"]) == (403, "quota"), answer
        assert "alice" in answer["error"]["message"]
    assert [create(name)[0] for name in ("one", "two")] == [201, 201]
    status, answer = create("three")
    assert (status, answer["error"]["code"]) == (403, "quota")
    with pytest.raises(Refused) as refusal:
        place.join("four", 0, 1, town.alice)
    assert (refusal.value.status, refusal.value.code) == (403, "quota")
    assert [job["name"] for job in place.call("GET", "/v1/jobs", token=town.alice)[1]["jobs"]] == [
        "one",
        "two",
    ]
    assert place.call("DELETE", "/v1/jobs/one", token=town.alice)[0] == 200
    eventually(lambda: create("three")[0] == 201)


def test_the_first_tenant_ends_the_open_mode() -> None:
    with serving() as place:
        assert place.call("GET", "/v1/jobs")[0] == 200
        token = place.server.controller.tenants.add("first")
        assert place.call("GET", "/v1/jobs")[0] == 401
        assert place.call("GET", "/v1/jobs", token=token)[0] == 200


def test_tenants_that_are_gone_do_not_open_it_again() -> None:
    with serving(authentication=True) as place:
        assert place.call("GET", "/v1/jobs")[0] == 401
        tenants = place.server.controller.tenants
        token = tenants.add("only")
        assert place.call("GET", "/v1/jobs", token=token)[0] == 200
        tenants.remove("only")
        assert place.call("GET", "/v1/jobs")[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"Host": "localhost:{port}"}, 201),
        ({"Host": "rebound.example:{port}"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 201),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
    ],
)
def test_what_a_browser_can_be_made_to_send(headers: dict[str, str], status: int) -> None:
    """While no token is asked for, a page of somebody else's must not order anything."""
    with serving() as place:
        connection = place.connection()
        sent = {"Content-Type": "application/json"} | {
            name: value.format(port=place.port) for name, value in headers.items()
        }
        connection.request("POST", "/v1/jobs", b'{"name": "a", "world_size": 1}', sent)
        assert connection.getresponse().status == status
        connection.close()
        assert len(place.call("GET", "/v1/jobs")[1]["jobs"]) == (status == 201)
        if "Origin" in headers:
            connection.request("POST", "/v1/switches/fake/drain", headers=sent)
            assert connection.getresponse().status == (200 if status == 201 else 403)


def test_what_is_asked_stays_out_of_the_log(
    town: Town, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")
    # Earlier tests of this process may have set levels, or switched off all loggers that there were.
    for name in ("switchagg", "switchagg.http"):
        caplog.set_level("DEBUG", logger=name)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    member = town.place.join("a", 0, 1, town.alice)
    town.place.call("POST", "/v1/jobs/a/members/0/leave", {"token": member.place["token"]}, town.alice)
    town.place.call("GET", "/v1/jobs", token="swagg_guessed")
    eventually(lambda: any("/leave" in record.getMessage() for record in caplog.records))
    logged = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    secrets = [town.alice, "swagg_guessed", member.place["heartbeat"]["cookie"]]
    secrets += [str(member.place[name]) for name in ("token", "result_token")]
    assert [secret for secret in secrets if secret in logged] == []
    (record,) = [each for each in caplog.records if "/leave" in each.getMessage()]
    assert vars(record)["tenant"] == "alice"
    assert vars(record)["route"] == "/v1/jobs/{name}/members/{rank}/leave"
    assert re.fullmatch("[0-9a-f]{16}", vars(record)["request"])
