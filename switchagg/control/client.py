"""The client of the controller's HTTP API for the command line; workers have `worker_lib.join`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from switchagg import http_client
from switchagg.errors import SwitchError, UsageError

ENVIRONMENT: Final = "SWITCHAGG_CONTROLLER"
_LINE: Final = 1 << 24  # bytes of one snapshot, far more than any has


def controller_url(given: str | None) -> str:
    """Returns `given`, or SWITCHAGG_CONTROLLER. Raises `UsageError` if neither is set."""
    url = given or os.environ.get(ENVIRONMENT)
    if not url:
        raise UsageError(f"no controller named: give --controller http://host:port or set {ENVIRONMENT}")
    return url


class ControllerClient:
    """Calls one controller, with a connection a call.

    Every method raises `SwitchError` if the controller does not answer, `AdmissionError` if it refuses.

    Args:
        url: ``http://host:port`` or ``https://host:port``. Raises `UsageError` for anything else.
        timeout: seconds to wait for an answer.
        token: bearer token of the tenant; None takes SWITCHAGG_TOKEN's.
        ca: PEM file of a private authority; None takes SWITCHAGG_CA's.
    """

    def __init__(
        self, url: str, timeout: float = 10.0, *, token: str | None = None, ca: str | None = None
    ) -> None:
        self._there = http_client.endpoint(url, token, ca)
        self._timeout = timeout
        self.url = self._there.url

    def health(self) -> dict[str, Any]:
        """Returns ``status``, ``version``, ``switch``, ``warnings``."""
        return self._call("GET", "/healthz")

    # Jobs. An administrator who sees several of one name gives the `tenant` too.

    def jobs(self) -> list[dict[str, Any]]:
        """Returns every job that has not ended."""
        return list(self._call("GET", "/v1/jobs")["jobs"])

    def job(self, name: str, job_id: int | None = None, tenant: str | None = None) -> dict[str, Any]:
        """Returns a job."""
        return self._call("GET", _job(name, job_id, tenant))

    def create(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Orders a job; its fields are those of `switchagg.control.jobs.records.JobSpec`."""
        return self._call("POST", "/v1/jobs", dict(spec))

    def drain(self, name: str, job_id: int | None = None, tenant: str | None = None) -> dict[str, Any]:
        """Admits no one else to a job, which ends when its members have left."""
        return self._call("POST", _job(name, job_id, tenant, "/drain"))

    def evict(self, name: str, job_id: int | None = None, tenant: str | None = None) -> dict[str, Any]:
        """Ends a job at once."""
        return self._call("DELETE", _job(name, job_id, tenant))

    def history(self, name: str, job_id: int | None = None, tenant: str | None = None) -> dict[str, Any]:
        """Returns a job's rates over the last ten minutes."""
        return self._call("GET", _job(name, job_id, tenant, "/history"))

    # Switches.

    def switches(self) -> list[dict[str, Any]]:
        """Returns every switch."""
        return list(self._call("GET", "/v1/switches")["switches"])

    def drain_switch(self, name: str) -> dict[str, Any]:
        """Places no new job on a switch, and moves its jobs if others have room."""
        return self._call("POST", f"/v1/switches/{quote(name, safe='')}/drain")

    def undrain_switch(self, name: str) -> dict[str, Any]:
        """Places new jobs on a switch again."""
        return self._call("POST", f"/v1/switches/{quote(name, safe='')}/undrain")

    def slots(self) -> dict[str, Any]:
        """Returns the capacity of the switches and the ranges of jobs."""
        return self._call("GET", "/v1/slots")

    def waiting_slots(self, name: str) -> dict[str, Any]:
        """Returns the slots of a job that wait for a rank."""
        return self._call("GET", f"/v1/slots?{urlencode({'job': name})}")

    def stats(self) -> dict[str, Any]:
        """Returns the counters of the switches and of every job."""
        return self._call("GET", "/v1/stats")

    # Events.

    def events(self, since: int = 0, limit: int = 200, job: str | None = None) -> list[dict[str, Any]]:
        """Returns up to `limit` of the newest events after number `since`, oldest first; `job`: only its."""
        query = {"since": since, "limit": limit, **({} if job is None else {"job": job})}
        return list(self._call("GET", f"/v1/events?{urlencode(query)}")["events"])

    def live(self) -> Iterator[dict[str, Any]]:
        """Yields a snapshot a second without end: ``now``, ``switches``, ``jobs``, new ``events``.

        Raises `SwitchError` if the controller ends the stream, or is silent for `timeout` seconds.
        """
        from http.client import HTTPException

        connection = http_client.connect(self._there, self._timeout)
        try:
            response = http_client.send(connection, self._there, "GET", "/v1/live")
            while line := response.readline(_LINE):
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])
        except TimeoutError as error:
            raise SwitchError(
                f"the controller at {self.url} has been silent for {self._timeout:g} seconds"
            ) from error
        except OSError as error:
            raise SwitchError(f"lost the controller at {self.url}: {error}") from error
        except (http_client.NotHttp, HTTPException, ValueError) as error:
            raise SwitchError(f"what answers at {self.url} is no switchagg controller: {error}") from error
        finally:
            connection.close()
        raise SwitchError(f"the controller at {self.url} has ended")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return http_client.call_once(self._there, method, path, body, timeout=self._timeout)


def _job(name: str, job_id: int | None, tenant: str | None, rest: str = "") -> str:
    query = {key: value for key, value in (("id", job_id), ("tenant", tenant)) if value is not None}
    return f"/v1/jobs/{quote(name, safe='')}{rest}{'?' if query else ''}{urlencode(query)}"
