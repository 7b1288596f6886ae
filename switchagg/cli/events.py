"""`switchagg events`: what has happened, and with --follow what happens."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.errors import UsageError
from switchagg.report import format as figures

MAX_LIMIT = 1000


def add_parser(subparsers: Any) -> None:
    """Adds `events` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "events",
        help="show what has happened",
        description="Shows the controller's event log, oldest first: jobs made, ranks that joined, were "
        "lost or left, policies changed, switches that went down and came back, requests refused.",
    )
    parser.add_argument(
        "--since", type=int, default=0, metavar="N", help="only events numbered more than this"
    )
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="the newest N of them (50)")
    parser.add_argument("--job", metavar="NAME", help="only of this job")
    parser.add_argument("--kind", metavar="KIND", help="only of this kind, such as lost or policy")
    parser.add_argument("--follow", "-f", action="store_true", help="go on as they happen, until Ctrl-C")
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints events: lines, or JSON; with --follow a JSON object a line.

    Raises `SwitchError` where no controller answers, or it ends while it is followed.
    """
    if not 1 <= args.limit <= MAX_LIMIT:
        raise UsageError(f"limit is {args.limit}; accepted: 1..{MAX_LIMIT}")
    if args.since < 0:
        raise UsageError(f"since is {args.since}; accepted: 0 or more")
    client = client_from(args)

    def wanted(event: dict[str, Any]) -> bool:
        return args.job in (None, event.get("job")) and args.kind in (None, event["kind"])

    # Of all that there are, since a filter leaves few.
    narrow = args.job is not None or args.kind is not None
    found = client.events(args.since, MAX_LIMIT if narrow else args.limit)
    events = [event for event in found if wanted(event)][-args.limit :]
    if not args.follow:
        if args.json:
            print(json.dumps({"events": events}, indent=1))
        elif not events:
            print("nothing has happened yet" if not args.since and not narrow else "no such event")
        else:
            for event in events:
                print(line(event))
        return 0
    for event in events:
        print(json.dumps(event) if args.json else line(event), flush=True)
    last = max((event["n"] for event in found), default=args.since)
    try:
        for snapshot in client.live():
            for event in snapshot["events"]:
                if event["n"] > last:
                    last = event["n"]
                    if wanted(event):
                        print(json.dumps(event) if args.json else line(event), flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def line(event: dict[str, Any]) -> str:
    """One event as a line of text."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    who = " ".join(
        f"{name}={event[name]}" for name in ("tenant", "job", "switch", "rank") if event.get(name) is not None
    )
    return figures.plain(f"{when}  {event['kind']:<12} {event['text']}" + (f"  [{who}]" if who else ""))
