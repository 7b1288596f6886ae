"""`switchagg jobs`: the jobs that run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, table


def add_parser(subparsers: Any) -> None:
    """Adds `jobs` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "jobs",
        help="list the jobs that run",
        description="Lists the jobs of a controller: who has joined, who is missing, lost or has left.",
    )
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the list. Raises `SwitchError` where no controller answers."""
    from switchagg.control.client import ControllerClient, controller_url

    client = ControllerClient(controller_url(args.controller))
    jobs = client.jobs()
    if args.json:
        print(json.dumps({"jobs": jobs}, indent=1))
    elif not jobs:
        print(f"no jobs at {client.url}")
    else:
        print(
            table(
                ("job", "id", "state", "ranks", "missing", "lost", "left", "slots", "words", "seconds"),
                [
                    (
                        job["name"],
                        "-" if job["id"] is None else job["id"],
                        job["state"],
                        f"{_count(job, 'joined')}/{job['world_size']}",
                        _ranks(job["missing"]),
                        _ranks(job["lost"]),
                        _ranks([each["rank"] for each in job["members"] if each["state"] == "left"]),
                        "-" if job["slots"] is None else job["slots"],
                        "-" if job["words"] is None else job["words"],
                        int(job["age"]),
                    )
                    for job in jobs
                ],
            )
        )
    return 0


def _count(job: dict[str, Any], state: str) -> int:
    return sum(member["state"] == state for member in job["members"])


def _ranks(ranks: list[int]) -> str:
    return ",".join(map(str, ranks)) or "-"
