"""`switchagg top`: the jobs and switches of a controller, shown anew each second.

On a terminal a picture replaces the last, and the command waits for a controller that has gone. Elsewhere
each picture is printed below the last, and a controller that goes is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from switchagg.cli.listings import event_line, jobs_table, switches_table
from switchagg.cli.options import add_controller_options, client_from
from switchagg.errors import AdmissionError, SwitchError, UsageError
from switchagg.report import format as figures

if TYPE_CHECKING:
    from rich.console import RenderableType

    from switchagg.control.client import ControllerClient

EVENTS: Final = 8  # of the newest, below the jobs
PAUSE: Final = 1.0  # seconds between attempts to reach a controller that has gone


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "top",
        description="Shows switches, jobs (the fastest first) and the newest events, anew each second. "
        "Ctrl-C ends it. Where the output is no terminal, pictures are printed one below the other.",
    )
    parser.add_argument("-n", dest="count", type=int, metavar="N", help="end after N pictures")
    parser.add_argument("--once", action="store_true", help="the same as -n 1")
    add_controller_options(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the pictures. Raises `SwitchError` where no controller answers."""
    if args.count is not None and args.count < 1:
        raise UsageError(f"-n is {args.count}; accepted: 1 or more")
    count = 1 if args.once else args.count
    client = client_from(args)
    with contextlib.suppress(KeyboardInterrupt):
        if args.json:
            for snapshot in islice(client.live(), count):
                print(json.dumps(snapshot), flush=True)
        elif sys.stdout.isatty():
            _live(client, count)
        else:
            events: deque[dict[str, Any]] = deque(client.events(limit=EVENTS), EVENTS)
            for number, snapshot in enumerate(islice(client.live(), count)):
                _remember(events, snapshot)
                print(("\n" if number else "") + picture(client.url, snapshot, list(events)), flush=True)
    return 0


def picture(url: str, snapshot: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """Returns one picture as text."""
    jobs = sorted(snapshot["jobs"], key=lambda job: -(figures.rate(job, "GBps") or 0.0))
    total = figures.throughput(sum(figures.rate(job, "GBps") or 0.0 for job in jobs))
    ranks = sum(member["state"] == "joined" for job in jobs for member in job["members"])
    when = time.strftime("%H:%M:%S", time.localtime(snapshot["now"]))
    parts = [f"{when}  {url}  {len(jobs)} jobs, {ranks} ranks, {total}", ""]
    if snapshot["switches"]:
        parts += [switches_table(snapshot["switches"]), ""]
    parts.append(jobs_table(jobs) if jobs else "no jobs")
    if events:
        parts += ["", *(event_line(event) for event in events)]
    return "\n".join(parts)


def _remember(events: deque[dict[str, Any]], snapshot: dict[str, Any]) -> None:
    last = max((event["n"] for event in events), default=0)
    events.extend(event for event in snapshot["events"] if event["n"] > last)


def _live(client: ControllerClient, count: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, screen=count is None, auto_refresh=False, vertical_overflow="crop") as live:
        for text in islice(_pictures(client), count):
            live.update(_styled(text), refresh=True)


def _pictures(client: ControllerClient) -> Iterator[str]:
    """Yields pictures for ever; while the controller is away, the last one below the error."""
    last = ""
    while True:
        try:
            events: deque[dict[str, Any]] = deque(client.events(limit=EVENTS), EVENTS)
            for snapshot in client.live():
                _remember(events, snapshot)
                last = picture(client.url, snapshot, list(events))
                yield last
        except AdmissionError:
            raise  # the controller is there, and refuses
        except SwitchError as error:
            if not last:
                raise
            yield f"LOST: {figures.plain(error)}; trying again\n\n{last}"
            time.sleep(PAUSE)


def _styled(text: str) -> RenderableType:
    from rich.text import Text

    styled = Text(text, no_wrap=True, overflow="ellipsis")
    styled.highlight_regex(r"^LOST:.*$", "bold white on red")
    styled.highlight_regex(r"(?m)^(job|switch) .*$", "bold")
    styled.highlight_regex(r"\b(running|up)\b", "green")
    styled.highlight_regex(r"\b(queued|draining|moving|joining|opening)\b", "yellow")
    styled.highlight_regex(r"\b(failed|down|lost)\b", "red")
    return styled
