"""The metrics at ``/metrics``, for Prometheus. Labels are from bounded sets: switches, tenants, states,
routes.

No job has a label: names of jobs are strangers' text, and come and go without end. For single jobs there are
`switchagg top`, the page and ``/v1/jobs``; here a tenant's jobs are summed, or the worst of them is shown.

Most values are read from the controller when Prometheus asks, and cost nothing in between.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import switchagg
from switchagg.control.jobs.records import OPEN, SwitchState

if TYPE_CHECKING:
    from switchagg.control.answers import JobView, SwitchView
    from switchagg.control.controller import Controller

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_RATES: Final = (
    ("reduced_bytes_per_second", "Bytes of tensors that the tenant's jobs reduce in a second.", "GBps", 1e9),
    ("packets_per_second", "Packets that the workers of the tenant's jobs send.", "packets_per_s", 1.0),
)
"""Gauges of a tenant's jobs together: name, help, key of `RatesView`, factor."""
_NO_EVENTS: Final = 2**53


class Metrics:
    """The metrics of one controller, in a registry of its own.

    Args:
        controller: the source of the values.
        heartbeats: returns the datagrams so far, by outcome.
    """

    def __init__(self, controller: Controller, heartbeats: Callable[[], Mapping[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "switchagg_http_requests",
            "HTTP requests, by method, route and status; status 0: the client was gone before its answer.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "switchagg_http_request_seconds",
            "Time to answer an HTTP request; without streams and calls that wait for other ranks.",
            ("route",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_State(controller, heartbeats))
        ProcessCollector(registry=self._registry)

    def request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Counts a request. `seconds` is None if its answer waited for others."""
        self._requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """Reads the controller."""

    def __init__(self, controller: Controller, heartbeats: Callable[[], Mapping[str, int]]) -> None:
        self._controller = controller
        self._heartbeats = heartbeats

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would collect, to learn the names, before the controller has started

    def collect(self) -> Iterator[Metric]:
        version = {"version": switchagg.__version__}
        yield InfoMetricFamily("switchagg_build", "The version of this controller.", version)
        controller, queries = self._controller, self._controller.queries
        shown = queries.snapshot(OPEN, _NO_EVENTS)
        yield from _switches(shown["switches"])
        yield from _tenants(shown["switches"], shown["jobs"])
        yield _gauges("switchagg_jobs", "Jobs that have not ended.", ("tenant", "state"), queries.census())
        events, heartbeats = queries.event_counts(), self._heartbeats()
        yield _counters("switchagg_joins", "Joins, by outcome.", ("outcome",), dict(controller.outcomes))
        yield _counters("switchagg_events", "Entries of the event log, by kind.", ("kind",), events)
        yield _counters("switchagg_heartbeats", "Heartbeat datagrams, by outcome.", ("outcome",), heartbeats)
        warnings = len(queries.health()["warnings"])
        yield GaugeMetricFamily("switchagg_warnings", "Warnings for a person; /healthz lists them.", warnings)


def _switches(switches: list[SwitchView]) -> Iterator[Metric]:
    def gauge(name: str, help: str, value: Callable[[SwitchView], float]) -> Metric:
        values = {(switch["name"],): value(switch) for switch in switches}
        return _gauges(f"switchagg_switch_{name}", help, ("switch",), values)

    states = {(s["name"], state.value): float(s["state"] == state) for s in switches for state in SwitchState}
    meaning = "1 for the state that the switch is in, 0 for the others."
    yield _gauges("switchagg_switch_state", meaning, ("switch", "state"), states)
    yield gauge("slots", "Slots of the switch.", lambda s: s["capacity"]["slots"])
    yield gauge("free_slots", "Slots that no job has.", lambda s: s["free"])
    yield gauge(
        "largest_free_slots", "Slots of the largest job that still fits.", lambda s: s["largest_free"]
    )
    yield gauge("memory_bytes", "Memory for slots.", lambda s: s["capacity"]["memory"])
    yield gauge("used_memory_bytes", "Memory that jobs have.", lambda s: s["memory_used"])
    packets = {(each["name"], name): value for each in switches for name, value in each["counters"].items()}
    meaning = "Packets since the switch started, by counter (`switchagg stats`)."
    yield _counters("switchagg_switch_packets", meaning, ("switch", "counter"), packets)


def _tenants(switches: list[SwitchView], jobs: list[JobView]) -> Iterator[Metric]:
    slots: Tally[tuple[str, ...]] = Tally()
    for switch in switches:
        for each in switch["ranges"]:
            slots[(each["tenant"] or "",)] += each["slots"]
    yield _gauges("switchagg_tenant_slots", "Slots that the tenant's jobs have.", ("tenant",), slots)
    members: Tally[tuple[str, ...]] = Tally()
    silence: dict[tuple[str, ...], float] = {}
    loss: dict[tuple[str, ...], float] = {}
    for job in jobs:
        owner = (job["tenant"],)
        for member in job["members"]:
            members[(*owner, member["state"])] += 1
            if member["state"] == "joined" and member["silent"] is not None:
                silence[owner] = max(silence.get(owner, 0.0), member["silent"])
        if job["rates"] is not None and (lost := job["rates"]["loss"]) is not None:
            loss[owner] = max(loss.get(owner, 0.0), lost)
    yield _gauges("switchagg_members", "Members of jobs that have not ended.", ("tenant", "state"), members)
    longest = "Since the last heartbeat of the tenant's member that has been silent longest."
    yield _gauges("switchagg_silence_seconds", longest, ("tenant",), silence)
    worst = "Share of packets sent again, in the tenant's job that loses most."
    yield _gauges("switchagg_loss_ratio", worst, ("tenant",), loss)
    for metric, help, key, factor in _RATES:
        rates: dict[tuple[str, ...], float] = {}
        for job in jobs:
            if job["rates"] is not None and (value := cast(Any, job["rates"])[key]) is not None:
                rates[(job["tenant"],)] = rates.get((job["tenant"],), 0.0) + value * factor
        yield _gauges(f"switchagg_{metric}", help, ("tenant",), rates)


def _gauges(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> GaugeMetricFamily:
    """Returns a gauge from its values by their tuples of labels."""
    family = GaugeMetricFamily(name, help, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _counters(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Metric:
    """Returns a counter from its values by their label, or by their tuples of labels."""
    family = CounterMetricFamily(name, help, labels=labels)
    for key, value in values.items():
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family
