"""Asks a controller what runs. For the command line; workers have `worker_lib.join`."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, Final
from urllib.parse import quote, urlsplit

from switchagg.errors import SwitchError, UsageError

ENVIRONMENT: Final = "SWITCHAGG_CONTROLLER"


def controller_url(given: str | None) -> str:
    """Returns `given`, or what SWITCHAGG_CONTROLLER says. Raises `UsageError` where neither is there."""
    url = given or os.environ.get(ENVIRONMENT)
    if not url:
        raise UsageError(f"no controller named: give --controller http://host:port or set {ENVIRONMENT}")
    return url


class ControllerClient:
    """Reads from one controller, a connection a call.

    Args:
        url: ``http://host:port``. Raises `UsageError` for anything else.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or port is None or parts.scheme != "http" or parts.path.strip("/"):
            raise UsageError(f"controller is {url!r}; accepted: http://host:port")
        self._host, self._port, self._timeout = host, port, timeout
        self.url = f"http://{host}:{port}"

    def health(self) -> dict[str, Any]:
        """What runs there: ``status``, ``version``, ``switch``, ``warnings``."""
        return self._get("/healthz")

    def jobs(self) -> list[dict[str, Any]]:
        """Every job that has not ended."""
        return list(self._get("/v1/jobs")["jobs"])

    def job(self, name: str) -> dict[str, Any]:
        """One job. Raises `SwitchError` where there is none of that name."""
        return self._get(f"/v1/jobs/{quote(name, safe='')}")

    def slots(self) -> dict[str, Any]:
        """Capacity and the ranges that jobs have."""
        return self._get("/v1/slots")

    def waiting_slots(self, name: str) -> dict[str, Any]:
        """The slots of a job that wait for a rank. Raises `SwitchError` where there is none of that name."""
        return self._get(f"/v1/slots?job={quote(name, safe='')}")

    def stats(self) -> dict[str, Any]:
        """Counters of the switch and of every job."""
        return self._get("/v1/stats")

    def _get(self, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            value = json.loads(response.read())
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise SwitchError(
                f"no controller at {self.url}: {reason.lower()}; "
                "start one with `switchagg run` or `switchagg host`"
            ) from error
        except (http.client.HTTPException, ValueError) as error:
            raise SwitchError(f"what answers at {self.url} is no switchagg controller: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200 or not isinstance(value, dict):
            raise SwitchError(f"the controller at {self.url} says: {_message(value)}")
        return value


def _message(value: Any) -> str:
    try:
        return str(value["error"]["message"])
    except (TypeError, KeyError):
        return str(value)[:200]
