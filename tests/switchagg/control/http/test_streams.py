"""Streams: the live view, and lines that are written to from other threads."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from typing import Any

import pytest

from switchagg.control.http import streams
from switchagg.control.http.schemas import EventView, JobView, SwitchView
from switchagg.control.http.streams import MemberLine
from switchagg.errors import AdmissionError
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually


def watch(
    place: ServedController, path: str = "/v1/live"
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = place.connection()
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    return connection, response


def snapshot(response: http.client.HTTPResponse) -> dict[str, Any] | None:
    event, data = b"", b""
    while line := response.readline():
        name, _, value = line.strip().partition(b": ")
        event, data = (value if name == b"event" else event), (value if name == b"data" else data)
        if not line.strip():
            assert event == b"snapshot"
            return dict(json.loads(data))
    return None


def test_a_snapshot_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LIVE_INTERVAL", 0.05)
    with serving() as place:
        connection, response = watch(place)
        first = snapshot(response)
        assert first is not None
        assert first["jobs"] == []
        joined = place.join_all("a<b>")
        seen: list[int] = [event["n"] for event in first["events"]]

        def shown() -> bool:
            now = snapshot(response)
            assert now is not None
            seen.extend(event["n"] for event in now["events"])
            for each, model in (
                (now["events"], EventView),
                (now["jobs"], JobView),
                (now["switches"], SwitchView),
            ):
                for one in each:
                    model.model_validate(one)  # what the page shows is what the API page says
            return [job["name"] for job in now["jobs"]] == ["a<b>"] and now["jobs"][0]["state"] == "running"

        eventually(shown)
        assert seen == sorted(set(seen))  # each event comes once
        assert len(joined) == 2
        later, others = watch(place, f"/v1/live?since={seen[-1]}")
        fresh = snapshot(others)
        assert fresh is not None
        assert fresh["events"] == []
        later.close()
        place.server.close()
        while snapshot(response) is not None:
            pass
        connection.close()


def test_a_viewer_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LIVE_INTERVAL", 0.0)
    with serving() as place:
        connection, _ = watch(place)
        for number in range(3):
            for member in place.join_all(f"a{number}"):
                assert place.leave(f"a{number}", member)[0] == 200
        place.server.close()
        connection.close()


def test_views_are_as_the_api_page_says() -> None:
    with serving() as place:
        joined = place.join_all("a")
        JobView.model_validate(place.call("GET", "/v1/jobs/a")[1])
        for each in place.call("GET", "/v1/switches")[1]["switches"]:
            SwitchView.model_validate(each)
        described = set(JobView.model_fields)
        assert set(place.call("GET", "/v1/jobs/a")[1]) <= described
        assert len(joined) == 2


def test_a_line_from_many_threads() -> None:
    """Every event comes, in the order of each sender; and the end after them."""

    async def run() -> list[int]:
        line = MemberLine(asyncio.get_running_loop())

        def send(sender: int) -> None:
            for number in range(50):
                line.send({"event": "n", "n": sender * 100 + number})

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        got = []
        for _ in range(200):
            event = await asyncio.wait_for(line.next(), 20)
            assert event is not None
            got.append(event["n"])
        for thread in threads:
            thread.join()
        line.send({"event": "last"})
        line.close()
        line.send({"event": "too late"})
        assert await line.next() == {"event": "last"}
        assert await line.next() is None
        return got

    got = asyncio.run(run())
    for sender in range(4):
        assert [n for n in got if n // 100 == sender] == [sender * 100 + number for number in range(50)]


def test_a_line_that_is_refused() -> None:
    async def run() -> None:
        line = MemberLine(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(line.next())
        await asyncio.sleep(0)
        line.refuse(AdmissionError("no", "no_slots"))
        with pytest.raises(AdmissionError, match="no"):
            await waiting

    asyncio.run(run())
    gone = asyncio.new_event_loop()
    line = MemberLine(gone)
    gone.close()
    line.send({"event": "to nobody"})  # the service has ended: no error, nobody waits
    line.close()
