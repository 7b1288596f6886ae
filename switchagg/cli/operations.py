"""`switchagg job VERB`, `drain`, `undrain` and `evict`: requests that change jobs or switches."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from switchagg.cli.listings import add_job_list, list_jobs
from switchagg.cli.options import add_controller_options, add_job_options, client_from, print_answer
from switchagg.errors import UsageError
from switchagg.report.format import plain

_EVICT = (
    "Ends a job at once: it is removed from its switch, every rank gets an error that says so, and its slots "
    "are free. `switchagg drain` lets it finish instead."
)
_JOB_FIELDS = ("world_size", "words", "slots", "priority", "deadline", "on_loss", "switch")


def add_parser(subparsers: Any) -> None:
    job = subparsers.add_parser(
        "job",
        description="Creates and ends jobs, and lists them. A job that nobody created is made when its first "
        "rank connects; one that was created has its slots, or its place in the queue, at once.",
    )
    verbs = job.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser(
        "create",
        help="create a job",
        description="Creates a job. Its ranks then connect to it by name, with the same world size.",
    )
    option = create.add_argument
    option("name", help="its name, unique among the tenant's jobs")
    option("--world-size", type=int, required=True, metavar="N", help="number of ranks, 1..32")
    option("--words", type=int, metavar="K", help="32-bit words in a packet (the switch's default)")
    option("--slots", type=int, metavar="P", help="a power of two (the switch's default)")
    option("--priority", type=int, metavar="0..9", help="higher ones leave the queue first (5)")
    option("--deadline", type=float, metavar="S", help="seconds of silence until a rank is lost (10)")
    option("--on-loss", choices=("fail", "shrink"), help="effect on the job (fail)")
    option("--switch", metavar="NAME", help="run on this switch only")
    add_controller_options(create, run=_create)

    add_job_list(
        verbs.add_parser("list", help="list the jobs", description="Lists the jobs of a controller.")
    )
    show = verbs.add_parser("show", help="show a job, rank by rank", description="Shows a job, rank by rank.")
    show.add_argument("name", help="its name")
    add_job_options(show)
    add_controller_options(show, run=list_jobs)
    leave = "no rank may join it any more, and it ends when its ranks have left"
    _add_job_verb(verbs, "drain", "let a job run empty", f"Drains a job: {leave}.", _drain)
    _add_job_verb(verbs, "evict", "end a job now", _EVICT, _evict)

    drain = subparsers.add_parser(
        "drain",
        description=f"Drains a job: {leave}. Or, with --switch, drains a switch: it gets no new jobs. Its "
        "jobs are moved to another switch between two collectives where possible, or stay until they end.",
    )
    drain.add_argument("job", nargs="?", help="the job")
    drain.add_argument("--switch", metavar="NAME", help="drain this switch instead")
    add_job_options(drain)
    add_controller_options(drain, run=_drain)

    undrain = subparsers.add_parser(
        "undrain",
        description="Ends what `switchagg drain --switch NAME` began. Jobs that were moved stay on their new "
        "switch. A draining job cannot be undrained: start another.",
    )
    undrain.add_argument("--switch", metavar="NAME", required=True, help="the switch")
    add_controller_options(undrain, run=_undrain)

    evict = subparsers.add_parser("evict", description=_EVICT)
    evict.add_argument("job", help="the job")
    add_job_options(evict)
    add_controller_options(evict, run=_evict)


def _add_job_verb(
    verbs: Any, name: str, meaning: str, description: str, run: Callable[[argparse.Namespace], int]
) -> None:
    parser = verbs.add_parser(name, help=meaning, description=description)
    parser.add_argument("job", help="the job")
    add_job_options(parser)
    add_controller_options(parser, run=run, switch=None)


def _create(args: argparse.Namespace) -> int:
    spec = {name: getattr(args, name) for name in _JOB_FIELDS if getattr(args, name) is not None}
    job = client_from(args).create({"name": args.name, **spec})
    if job.get("queue_position") is not None:
        place = job.get("why") or f"number {job['queue_position']} in the queue"
        text = f"job {args.name!r} is {place}"
    else:
        where = f" on switch {job['switch']!r}" if job.get("switch") else ""
        text = f"job {args.name!r} is {job['state']}{where}: {job['world_size']} ranks may connect"
    return print_answer(args, job, plain(text))


def _drain(args: argparse.Namespace) -> int:
    if (args.job is None) == (args.switch is None):
        raise UsageError("name a job, or a switch with --switch")
    if args.switch is not None and (args.id is not None or args.tenant is not None):
        raise UsageError("--id and --tenant are of a job, not of a switch")
    client = client_from(args)
    if args.switch is not None:
        answer, text = client.drain_switch(args.switch), f"switch {args.switch!r} is draining"
    else:
        answer, text = client.drain(args.job, args.id, args.tenant), f"job {args.job!r} is draining"
    return print_answer(args, answer, plain(text))


def _undrain(args: argparse.Namespace) -> int:
    answer = client_from(args).undrain_switch(args.switch)
    return print_answer(args, answer, plain(f"switch {args.switch!r} takes jobs again"))


def _evict(args: argparse.Namespace) -> int:
    answer = client_from(args).evict(args.job, args.id, args.tenant)
    return print_answer(args, answer, plain(f"job {args.job!r} was evicted"))
