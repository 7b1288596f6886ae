"""What Prometheus reads at ``/metrics``. Labels are from bounded sets: switches, tenants, states, routes.

Jobs have no label of their own: their names are strangers', and come and go without end.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest


class Metrics:
    """The metrics of one controller, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "switchagg_http_requests",
            "HTTP requests, by method, route and status; status 0: the client was gone before its answer.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "switchagg_http_request_seconds",
            "Time to answer an HTTP request; streams and calls that wait for other ranks are left out.",
            ("route",),
            registry=self.registry,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request that has been answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)
