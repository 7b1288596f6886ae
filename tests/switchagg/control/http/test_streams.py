"""Streams: the live view, and lines that are written to from other threads."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from typing import Any

import pytest
from pydantic import TypeAdapter

from switchagg.control.answers import EventView, JobView, SwitchView
from switchagg.control.http import streams
from switchagg.control.http.streams import MemberStream
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
                    TypeAdapter(model).validate_python(one, extra="forbid")
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
        job = place.call("GET", "/v1/jobs/a")[1]
        TypeAdapter(JobView).validate_python(job, extra="forbid")
        for each in place.call("GET", "/v1/switches")[1]["switches"]:
            TypeAdapter(SwitchView).validate_python(each, extra="forbid")
        assert len(joined) == 2


def test_a_stream_from_many_threads() -> None:
    """Every event comes, in the order of each sender; and the end after them."""

    async def run() -> list[int]:
        stream = MemberStream(asyncio.get_running_loop())

        def send(sender: int) -> None:
            for number in range(50):
                stream.send({"event": "n", "n": sender * 100 + number})

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        got = []
        for _ in range(200):
            event = await asyncio.wait_for(stream.next(), 120)
            assert event is not None
            got.append(event["n"])
        for thread in threads:
            thread.join()
        stream.send({"event": "last"})
        stream.close()
        stream.send({"event": "too late"})
        assert await stream.next() == {"event": "last"}
        assert await stream.next() is None
        return got

    got = asyncio.run(run())
    for sender in range(4):
        assert [n for n in got if n // 100 == sender] == [sender * 100 + number for number in range(50)]


def test_a_stream_that_is_refused() -> None:
    async def run() -> None:
        stream = MemberStream(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.refuse(AdmissionError("no", "no_slots"))
        with pytest.raises(AdmissionError, match="no"):
            await waiting

    asyncio.run(run())
    gone = asyncio.new_event_loop()
    stream = MemberStream(gone)
    gone.close()
    stream.send({"event": "to nobody"})  # the service has ended: no error, nobody waits
    stream.close()
