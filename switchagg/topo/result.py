"""The result of a run of `switchagg topo`: a record for --json and the picture, and lines for people."""

from __future__ import annotations

import statistics
from typing import Any

from switchagg.report.format import plain
from switchagg.report.table import listing
from switchagg.topo.network import RunResult


def record(
    topology: str,
    switch: str,
    run: RunResult,
    links: list[dict[str, Any]],
    counters: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """Returns the result as JSON values.

    Keys: topology, switch, status; seconds of the whole run; `exact` (null where another command ran);
    `jobs`, by name, with best and median in seconds, algbw in bytes/s, packets_per_second into the switch;
    `links`, whose `up` is toward the switch (of two, the root) and `down` away from it; `switches`, their
    counters.
    """
    names = sorted({each["job"] for each in run.ranks})
    jobs = {name: _job([each for each in run.ranks if each["job"] == name]) for name in names}
    return {
        "topology": topology,
        "switch": switch,
        "status": run.status,
        "seconds": round(next((each.seconds for each in run.traffic.values()), 0.0), 3),
        "exact": all(job["exact"] for job in jobs.values()) if jobs else None,
        "jobs": jobs,
        "links": [_link(each, run) for each in links],
        "switches": counters,
    }


def lines(result: dict[str, Any]) -> str:
    """Returns a record as text for people."""
    said = []
    for name, job in result["jobs"].items():
        if job["errors"]:
            said += [f"job {plain(name)}, rank {rank}: {plain(text)}" for rank, text in job["errors"].items()]
            continue
        verdict = "every sum exact" if job["exact"] else "WRONG SUMS"
        said.append(f"job {plain(name)}: {job['workers']} workers, {job['sums']} all-reduces, {verdict}")
        if job["best"] is not None:
            said.append(
                f"  of {job['bytes']:,} bytes: best {1e3 * job['best']:.1f} ms, "
                f"median {1e3 * job['median']:.1f} ms; "
                f"{job['algbw'] / 1e6:.2f} MB/s, {job['packets_per_second']:,.0f} packets/s into the switch; "
                f"{job['again_share']:.1%} of packets were repeats"
            )
    rows = [
        (
            f"{link['ends'][0]} - {link['ends'][1]}",
            *(f"{link[way][key]:,}" for way in ("up", "down") for key in ("packets", "bytes")),
            *(f"{8e-6 * link[way]['busiest']:,.2f}" for way in ("up", "down")),
            link["lost"],
        )
        for link in result["links"]
    ]
    headings = ("link", "frames up", "bytes up", "frames down", "bytes down", "Mbit/s up", "down", "lost")
    return "\n".join([*said, "", listing(headings, rows)])


def _job(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    errors = {str(each["rank"]): each["error"] for each in ranks if each["error"]}
    whole = len(ranks) == ranks[0]["world_size"] and not errors
    same = len({each["crc"] for each in ranks}) == 1
    turns = [each["seconds"] or [] for each in ranks] if whole else []
    # An all-reduce takes as long as at its slowest rank.
    rounds = [max(each) for each in zip(*turns, strict=True)] if turns else []
    best = min(rounds) if rounds else None
    elements = ranks[0]["elements"]
    sent = sum(each["sent"] for each in ranks)
    seconds = sum(rounds)
    return {
        "workers": ranks[0]["world_size"],
        "sums": ranks[0]["sums"],
        "exact": whole and same and all(each["exact"] == each["sums"] for each in ranks),
        "errors": errors,
        "bytes": 4 * elements,
        "best": best,
        "median": statistics.median(rounds) if rounds else None,
        "algbw": 4 * elements / best if best else None,
        # Packets into the switch of the timed all-reduces only.
        "packets_per_second": sum(each["timed_packets"] for each in ranks) / seconds if seconds else None,
        "packets": sent,
        "again_share": sum(each["again"] for each in ranks) / sent if sent else 0.0,
    }


def _link(link: dict[str, Any], run: RunResult) -> dict[str, Any]:
    traffic = run.traffic[link["interface"]]
    total = traffic.total
    faults = link["faults"] or {}
    return {
        "ends": link["ends"],
        "interface": link["interface"],
        "up": _direction(total.packets_in, total.bytes_in, traffic.busiest_in, traffic.seconds),
        "down": _direction(total.packets_out, total.bytes_out, traffic.busiest_out, traffic.seconds),
        "lost": sum(way["lost"] + way["overflowed"] for way in faults.values()),
    }


def _direction(packets: int, size: int, busiest: float, seconds: float) -> dict[str, float]:
    return {"packets": packets, "bytes": size, "mean": size / seconds if seconds else 0.0, "busiest": busiest}
