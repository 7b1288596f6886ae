"""A controller's face without a controller: what a test puts into it is what the page and the commands see.

The shapes are those of the real service (`test_page_live.py` holds the page against that one); here a test
can have fifty jobs, a lost rank and a switch that is down, all at once.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from switchagg.control.http.page_files import PAGE_HEADERS, page_file


class FakeController:
    """Serves `jobs`, `switches` and `events` as they are at each moment.

    Attributes:
        token: what clients must send; None where the service is open.
        calls: every request that would change something, as ``"POST /v1/jobs/a/drain?id=1"``.
        history: points of a job by its name.
        answer: what such requests are answered with.
        streams: the connections that get snapshots.
        refuse: the message with which changes are refused; None where they are taken.
    """

    def __init__(self, token: str | None = None, interval: float = 0.1) -> None:
        self.token = token
        self.interval = interval
        self.jobs: list[dict[str, Any]] = []
        self.switches: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        self.refuse: str | None = None
        self.answer: dict[str, Any] = {}
        self.now: float | None = None  # a fixed time; None: the clock's
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.streams: set[Any] = set()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``, the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Begins to serve."""
        controller = self

        class Handler(_Handler):
            fake = controller

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Ends the service and every stream."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for stream in list(self.streams):
            with contextlib.suppress(OSError):
                stream.shutdown(2)

    @property
    def running(self) -> bool:
        """Returns whether the server runs."""
        return self._server is not None

    def add_event(self, kind: str, text: str, **fields: Any) -> None:
        """Appends one event."""
        self.events.append(
            {
                "n": len(self.events) + 1,
                "time": self.now or time.time(),
                "kind": kind,
                "job": None,
                "tenant": None,
                "switch": None,
                "rank": None,
                "text": text,
                **fields,
            }
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeController

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        fake, url = self.fake, urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if parts in ([""], ["page", parts[-1]]):
            file = page_file("" if parts == [""] else parts[-1])
            if file is None:
                self._error(404, "not_found", f"there is no {url.path}")
                return
            self._send(200, file.content, {**PAGE_HEADERS, "Content-Type": file.media_type})
            return
        if not self._allowed():
            return
        match parts:
            case ["v1", "live"]:
                self._live()
            case ["v1", "jobs"]:
                self._json({"jobs": fake.jobs})
            case ["v1", "jobs", name]:
                found = [job for job in fake.jobs if job["name"] == name]
                self._json(found[-1]) if found else self._error(404, "not_found", f"there is no job {name!r}")
            case ["v1", "jobs", name, "history"]:
                self._json({"job": name, "interval": 1.0, "points": fake.history.get(name, [])})
            case ["v1", "switches"]:
                self._json({"switches": fake.switches})
            case ["v1", "events"]:
                since, limit = int(query.get("since", "0")), int(query.get("limit", "100"))
                named = [each for each in fake.events if query.get("job") in (None, each["job"])]
                self._json({"events": [each for each in named if each["n"] > since][-limit:]})
            case ["healthz"]:
                self._json({"status": "ok", "version": "0", "warnings": []})
            case _:
                self._error(404, "not_found", f"there is no GET {url.path}")

    def do_POST(self) -> None:
        self._change("POST")

    def do_DELETE(self) -> None:
        self._change("DELETE")

    def _change(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if not self._allowed():
            return
        if self.fake.refuse is not None:
            self._error(403, "forbidden", self.fake.refuse)
            return
        self.fake.calls.append(f"{method} {self.path}")
        self.fake.bodies.append(json.loads(body) if body else None)
        self._json(self.fake.answer)

    def _allowed(self) -> bool:
        token = self.fake.token
        if token is None or self.headers.get("Authorization") == f"Bearer {token}":
            return True
        self._error(401, "unauthorized", "no tenant has this token; send Authorization: Bearer TOKEN")
        return False

    def _live(self) -> None:
        fake = self.fake
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        fake.streams.add(self.connection)
        sent = len(fake.events)
        try:
            while fake.running:
                new = fake.events[sent:]
                sent = len(fake.events)
                snapshot = {
                    "now": fake.now or time.time(),
                    "switches": fake.switches,
                    "jobs": fake.jobs,
                    "events": new,
                }
                self.wfile.write(f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n".encode())
                self.wfile.flush()
                time.sleep(fake.interval)
        except OSError:
            pass
        finally:
            fake.streams.discard(self.connection)
            self.close_connection = True

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str) -> None:
        self._json({"error": {"code": code, "message": message}}, status)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def fake_controller(token: str | None = None, interval: float = 0.1) -> Iterator[FakeController]:
    """A fake for the length of a block."""
    fake = FakeController(token, interval)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()


def member(rank: int, **fields: Any) -> dict[str, Any]:
    """One member as the service describes it."""
    return {
        "rank": rank,
        "state": "joined",
        "address": f"10.0.{rank // 8}.{10 + rank % 8}",
        "port": 41000 + rank,
        "silent": 0.3,
        "packets": 120_000 + rank,
        **fields,
    }


def job(name: str, ranks: int = 4, **fields: Any) -> dict[str, Any]:
    """One job as the service describes it: it runs and all is well."""
    return {
        "name": name,
        "tenant": "default",
        "id": 1,
        "state": "running",
        "world_size": ranks,
        "members": [member(rank) for rank in range(ranks)],
        "missing": [],
        "lost": [],
        "base": 0,
        "slots": 256,
        "words": 364,
        "age": 75.0,
        "switch": "native",
        "priority": 5,
        "queue_position": None,
        "deadline": 10.0,
        "on_loss": "fail",
        "policy": {
            "block": 256,
            "dense": False,
            "bits": 32,
            "since": time.time() - 12.0,
            "why": "1.2 % of blocks are non-zero at any rank: skipping takes 6 ms, dense would take 80 ms",
        },
        "rates": {
            "GBps": 0.86,
            "packets_per_s": 51_000.0,
            "loss": 0.0004,
            "skip_ratio": 0.91,
            "density": 0.012,
            "rtt_us": 310.0,
        },
        **fields,
    }


def switch(name: str = "native", jobs: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """One switch with the ranges of these jobs."""
    ranges = [
        {
            "base": each["base"],
            "slots": each["slots"],
            "job": each["id"],
            "name": each["name"],
            "tenant": each["tenant"],
        }
        for each in jobs or []
        if each["base"] is not None and each["switch"] == name
    ]
    capacity = fields.pop("slots", 65536)
    used = sum(each["slots"] for each in ranges)
    return {
        "name": name,
        "target": "native",
        "address": "127.0.0.1",
        "port": 48879,
        "state": "up",
        "why": None,
        "capacity": {"slots": capacity, "words": 2200, "memory": 512 << 20, "exact_words": None},
        "free": capacity - used,
        "largest_free": (1 << (capacity - used).bit_length()) >> 1,
        "ranges": ranges,
        "counters": {
            "received": 18_234_411,
            "accepted": 18_220_000,
            "results": 4_555_000,
            "retransmissions": 7_300,
            "token": 12,
            "stale": 301,
        },
        **fields,
    }


def fill(fake: FakeController, jobs: int, ranks: int, seed: int) -> None:
    """Fills a fake with a busy cluster: jobs of every state on three switches, ten minutes of history."""
    draw = random.Random(seed)
    now = time.time()
    bases = {"rack-1": 0, "rack-2": 0, "emulator": 0}
    names = [
        "resnet50",
        "gpt-small",
        "bert-large",
        "dlrm",
        "moe-8x",
        "vit-l16",
        "t5-base",
        "whisper",
        "sdxl-unet",
    ]
    for number in range(jobs):
        world = ranks if ranks > 8 else draw.choice([1, 2, 4, ranks])
        state = "running" if draw.random() < 0.8 else draw.choice(["joining", "moving", "draining", "queued"])
        name = f"{draw.choice(names)}-{number}"
        place = draw.choice(list(bases))
        slots = 1 << draw.randint(6, 11)
        base = -(-bases[place] // slots) * slots
        members = [
            member(rank, silent=draw.random() * 1.1, packets=draw.randint(10_000, 9_000_000))
            for rank in range(world)
        ]
        fields: dict[str, Any] = {}
        if state == "queued":
            fields = {
                "base": None,
                "slots": None,
                "id": None,
                "queue_position": number,
                "rates": None,
                "policy": None,
            }
        elif state == "joining":
            gone = draw.randint(0, world - 1)
            members = [each for each in members if each["rank"] != gone]
            for each in members:
                each["silent"] = None
            fields = {
                "missing": [gone],
                "base": None,
                "slots": None,
                "id": None,
                "rates": None,
                "policy": None,
            }
        else:
            bases[place] = base + slots
            fields = {"base": base, "slots": slots, "id": number + 1}
            density = draw.choice([0.01, 0.05, 0.3, 1.0])
            speed = draw.uniform(0.05, 1.2)
            points = []
            for second in range(600):
                speed = max(0.01, speed + draw.gauss(0, 0.02))
                density = min(1.0, max(0.005, density * draw.uniform(0.98, 1.02)))
                loss = max(0.0, draw.gauss(0.001, 0.002)) if number % 7 else draw.uniform(0, 0.08)
                points.append(
                    {
                        "t": now - 600 + second,
                        "GBps": speed,
                        "loss": loss,
                        "skip_ratio": 1 - density,
                        "density": density,
                        "retransmissions": int(loss * 1000),
                        "collectives": 12,
                    }
                )
            fake.history[name] = points
            fields["rates"] = {
                "GBps": speed,
                "packets_per_s": speed * 60_000,
                "loss": points[-1]["loss"],
                "skip_ratio": 1 - density,
                "density": density,
                "rtt_us": draw.uniform(80, 900),
            }
            if draw.random() < 0.15 and world > 2:
                members[1]["state"] = "lost"
                members[2]["silent"] = 7.5
                fields["lost"] = [1]
        fake.jobs.append(
            job(
                name,
                world,
                tenant=draw.choice(["vision", "language", "ads"]),
                state=state,
                switch=None if state == "queued" else place,
                members=members,
                age=draw.uniform(3, 90_000),
                **fields,
            )
        )
    fake.switches = [
        switch("rack-1", fake.jobs, target="tofino", address="10.0.0.1"),
        switch(
            "rack-2",
            fake.jobs,
            target="bmv2",
            address="10.0.0.2",
            state="down",
            why="no answer since 12:31:07: connection refused",
        ),
        switch("emulator", fake.jobs, slots=16384, state="draining"),
    ]
    for each in fake.switches:
        each["capacity"]["exact_words"] = 64 if each["target"] != "native" else None
    kinds = [
        "job_created",
        "joined",
        "opened",
        "policy",
        "left",
        "ended",
        "moved",
        "lost",
        "refused",
        "switch_down",
    ]
    texts = {
        "job_created": "Job {job} was created for 4 ranks.",
        "joined": "Rank {rank} of job {job} joined from 10.0.0.10:41000.",
        "opened": "Job {job} opened with 256 slots from 512.",
        "policy": "Job {job} goes dense: 61 % of blocks are non-zero at some rank.",
        "left": "Rank {rank} of job {job} left in order.",
        "ended": "Job {job} ended: all ranks have left.",
        "moved": "Job {job} moved from rack-2 to rack-1.",
        "lost": "Rank {rank} of job {job} is lost: silent for 10 s.",
        "refused": "Tenant ads asked for 65,536 slots; its quota has 4,096 left.",
        "switch_down": "Switch rack-2 does not answer: connection refused.",
    }
    for number in range(60):
        kind = draw.choice(kinds)
        which = draw.choice(fake.jobs)
        rank = draw.randint(0, 3)
        fake.add_event(
            kind,
            texts[kind].format(job=which["name"], rank=rank),
            job=None if kind in {"refused", "switch_down"} else which["name"],
            tenant=which["tenant"],
            switch="rack-2" if kind == "switch_down" else which["switch"],
            rank=rank if kind in {"joined", "left", "lost"} else None,
            time=now - 600 + number * 10,
        )
