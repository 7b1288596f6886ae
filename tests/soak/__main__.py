"""Runs the soak test against a switch and a controller of its own.

python -m tests.soak --seconds 600 [--seed 7] [--loss 0.005]
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from typing import Any

from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults

from .plan import LANES, Episode
from .run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument(
        "--seed", default=None, help="of an earlier run: the same episodes, not the same timing"
    )
    parser.add_argument("--loss", type=float, default=0.002)
    parser.add_argument("--lane", action="append", choices=[lane.job for lane in LANES], help="only this one")
    args = parser.parse_args()
    seed = args.seed or str(secrets.randbelow(2**32))
    print(f"seed {seed}", flush=True)
    lanes = [lane for lane in LANES if not args.lane or lane.job in args.lane]
    begin = time.monotonic()

    def tell(episode: Episode, found: list[str]) -> None:
        what = f"{episode.world_size} ranks, {episode.collectives} collectives, {episode.event.value}"
        verdict = found or "fine"
        at = time.monotonic() - begin
        print(
            f"{at:6.1f} s  {episode.lane.job} {episode.number}: {what} {episode.victim}: {verdict}",
            flush=True,
        )

    with EmbeddedController(faults=Faults(loss=args.loss, seed=1)) as host:
        client = ControllerClient(host.url, timeout=60.0)
        before = client.slots()
        report = soak(host.url, lanes, args.seconds, seed, tell)
        left = leftovers(client, before)
    for what, times in sorted(report.episodes.items()):
        print(f"{times:6d}  {what}")
    print(f"{report.collectives} collectives, seed {seed}")
    for error in [*report.errors, *left]:
        print(f"WRONG: {error}")
    return int(bool(report.errors or left))


def leftovers(client: ControllerClient, before: dict[str, Any], patience: float = 60.0) -> list[str]:
    """Returns the jobs and slots that are left at the controller after `patience` seconds at most."""
    end = time.monotonic() + patience
    while (client.jobs() or client.slots() != before) and time.monotonic() < end:
        time.sleep(0.1)
    found = [f"job {job['name']} ({job['state']}) is still there" for job in client.jobs()]
    if client.slots() != before:
        found.append(f"slots before: {json.dumps(before)}; after: {json.dumps(client.slots())}")
    return found


if __name__ == "__main__":
    sys.exit(main())
