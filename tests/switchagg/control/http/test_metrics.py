"""The metrics for Prometheus: the controller's state, with bounded labels and without secrets."""

from __future__ import annotations

import json
import socket

from prometheus_client.parser import text_string_to_metric_families

from switchagg.wire.heartbeat import Heartbeat, Report
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read(place: ServedController, token: str | None = None) -> tuple[str, Values]:
    """The text, and values by name and labels."""
    status, text = place.text("/metrics", token)
    assert status == 200
    values: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return text, values


def test_what_is_there() -> None:
    with serving() as place:
        joined = place.join_all("stranger-text", 3)
        assert place.leave("stranger-text", joined[2])[0] == 200
        place.refused("other", 0, 33)
        place.refused("stranger-text", 0, 3)
        beats = joined[0].place["heartbeat"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            cookie = bytes.fromhex(beats["cookie"])
            for datagram in (
                Heartbeat(cookie, 1, Report()).pack(),
                Heartbeat(bytes(16), 1, Report()).pack(),
                b"x",
            ):
                udp.sendto(datagram, (beats["address"], beats["port"]))
        place.call("GET", "/v1/jobs/one")
        place.call("GET", "/v1/jobs/two")
        place.call("GET", "/nothing")

        def heard() -> bool:
            counted = read(place)[1]["switchagg_heartbeats_total"]
            return all(counted[(("outcome", each),)] == 1 for each in ("taken", "unknown", "malformed"))

        eventually(heard)
        text, values = read(place)
        fake = (("switch", "fake"),)
        assert values["switchagg_switch_slots"] == {fake: 4096}
        assert values["switchagg_switch_free_slots"] == {fake: 4080}
        assert values["switchagg_switch_state"][(("state", "up"), *fake)] == 1
        assert values["switchagg_switch_state"][(("state", "down"), *fake)] == 0
        assert values["switchagg_tenant_slots"] == {(("tenant", "default"),): 16}
        assert values["switchagg_jobs"] == {(("state", "running"), ("tenant", "default")): 1}
        members = values["switchagg_members"]
        assert members[(("state", "joined"), ("tenant", "default"))] == 2
        assert members[(("state", "left"), ("tenant", "default"))] == 1
        assert values["switchagg_joins_total"][(("outcome", "admitted"),)] == 3
        assert values["switchagg_joins_total"][(("outcome", "rank_taken"),)] == 1
        assert values["switchagg_events_total"][(("kind", "job_created"),)] == 1
        assert values["switchagg_silence_seconds"][(("tenant", "default"),)] < 60
        requests = values["switchagg_http_requests_total"]
        assert requests[(("method", "GET"), ("route", "/v1/jobs/{name}"), ("status", "404"))] == 2
        assert requests[(("method", "GET"), ("route", "other"), ("status", "404"))] == 1
        for name in ("joins_total", "events_total", "build_info", "warnings"):
            assert f"# HELP switchagg_{name.removesuffix('_total').removesuffix('_info')}" in text
        secrets = [beats["cookie"], str(joined[0].place["token"]), str(joined[0].place["result_token"])]
        assert [each for each in (*secrets, "stranger-text", "one") if f'"{each}"' in text] == []
        assert "process_resident_memory_bytes" in values


def test_labels_are_bounded() -> None:
    """Whatever strangers ask for, and however many jobs there were, there are no more lines."""
    with serving() as place:

        def round_of(number: int) -> None:
            for path in (f"/v1/jobs/{number}", f"/{number}", f"/v1/jobs/{number}/history"):
                place.call("GET", path)
            connection = place.connection()
            connection.request(f"VERB{number}", "/v1/jobs")
            assert connection.getresponse().status == 405
            connection.close()
            for member in place.join_all(f"job{number}", 1):
                assert place.leave(f"job{number}", member)[0] == 200

        round_of(0)
        read(place)
        eventually(lambda: place.call("GET", "/v1/jobs")[1] == {"jobs": []})
        before = len(read(place)[0].splitlines())
        for number in range(1, 21):
            round_of(number)
        eventually(lambda: place.call("GET", "/v1/jobs")[1] == {"jobs": []})
        assert len(read(place)[0].splitlines()) <= before


def test_a_failing_call_is_counted_and_logged_and_says_where_to_look() -> None:
    with serving() as place:

        def fails(*_: object) -> None:
            raise RuntimeError("swagg_secret")

        place.server.controller.queries.stats = fails  # type: ignore[method-assign,assignment]
        connection = place.connection()
        connection.request("GET", "/v1/stats", headers={"X-Request-Id": "mine-1"})
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, error["code"]) == (500, "internal")
        assert "its log says more at mine-1" in error["message"]
        assert response.headers["X-Request-Id"] == "mine-1"
        requests = read(place)[1]["switchagg_http_requests_total"]
        assert requests[(("method", "GET"), ("route", "/v1/stats"), ("status", "500"))] == 1
