"""`switchagg tenant`: manages the tenants of a controller and their tokens, whether it runs or not.

A token is printed once, when it is made; the store keeps its hash. Changes take effect with the next request.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchagg.cli.controller import STATE_VARIABLE
from switchagg.cli.options import print_answer
from switchagg.errors import UsageError
from switchagg.report.table import listing

if TYPE_CHECKING:
    from switchagg.control.jobs.records import Quota, Tenant
    from switchagg.control.tenants import Tenants


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tenant",
        description="Adds, changes and removes tenants of the controller whose state is in a folder, and "
        "makes their tokens. The controller may be running.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = _verb(verbs, "add", "add a tenant and print its first token", named=True)
    add.add_argument("--admin", action="store_true", help="an administrator of all jobs and switches")
    _add_quota(add, "no limit")
    change = _verb(verbs, "change", "change its quota, or make it an administrator or not", named=True)
    change.add_argument("--admin", action=argparse.BooleanOptionalAction, help="an administrator, or not")
    _add_quota(change, "as it is; `none` for no limit")
    _verb(verbs, "list", "list the tenants")
    _verb(verbs, "remove", "remove a tenant and its tokens; its jobs continue", named=True)
    token = _verb(verbs, "token", "make one more token for a tenant and print it", named=True)
    token.add_argument("--revoke", action="store_true", help="revoke all its earlier tokens")


def run(args: argparse.Namespace) -> int:
    """Carries out the verb. Raises `UsageError` for a change that is not possible."""
    with _tenants(args.state) as tenants:
        match args.verb:
            case "add":
                made = tenants.add(args.name, admin=args.admin, quota=_quota(args, None))
                return print_answer(args, {"name": args.name, "token": made}, made)
            case "change":
                if not any(tenant.name == args.name for tenant in tenants.list()):
                    raise UsageError(f"there is no tenant {args.name!r}")
                quota = _quota(args, tenants.get(args.name).quota)
                changed = tenants.change(args.name, admin=args.admin, quota=quota)
                return print_answer(args, _json(changed), _table([changed]))
            case "list":
                found = tenants.list()
                return print_answer(args, {"tenants": [_json(each) for each in found]}, _table(found))
            case "remove":
                tenants.remove(args.name)
                if args.json:
                    return print_answer(args, {"name": args.name, "removed": True}, "")
            case "token":
                made = tenants.issue(args.name, revoke=args.revoke)
                return print_answer(args, {"name": args.name, "token": made}, made)
    return 0


def _verb(verbs: Any, name: str, meaning: str, *, named: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=meaning, description=meaning.capitalize() + "."
    )
    if named:
        parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help=f"the controller's state folder ({STATE_VARIABLE})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_quota(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--jobs", metavar="N", help=f"jobs at once ({default})")
    parser.add_argument("--slots", metavar="N", help=f"slots of all its jobs ({default})")
    parser.add_argument(
        "--memory", metavar="SIZE", help=f"switch memory of all its jobs, such as 64M ({default})"
    )


@contextlib.contextmanager
def _tenants(state: Path | None) -> Iterator[Tenants]:
    from switchagg.control.store import Store
    from switchagg.control.tenants import Tenants

    given = state or os.environ.get(STATE_VARIABLE, "").split(":")[0]
    if not given:
        raise UsageError(f"no state folder named: give --state DIR, or set {STATE_VARIABLE}")
    store = Store(Path(given), serving=False)
    try:
        yield Tenants(store)
    finally:
        store.close()


def _quota(args: argparse.Namespace, before: Quota | None) -> Quota:
    from switchagg.control.jobs.records import Quota
    from switchagg.control.switch_specs import size

    def limit(name: str) -> int | None:
        text = getattr(args, name)
        if text is None:
            return None if before is None else getattr(before, name)
        if before is not None and text == "none":
            return None
        if name == "memory":
            return size(name, text)
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise UsageError(f"{name} is {text!r}; accepted: a number")
        return int(text)

    return Quota(limit("jobs"), limit("slots"), limit("memory"))


def _json(tenant: Tenant) -> dict[str, Any]:
    return {"name": tenant.name, "admin": tenant.admin, **asdict(tenant.quota)}


def _table(tenants: list[Tenant]) -> str:
    if not tenants:
        return "no tenants: everybody on this computer may use the controller, and nobody else"
    rows = [
        [each.name, "yes" if each.admin else "no", *("-" if x is None else x for x in astuple(each.quota))]
        for each in tenants
    ]
    return listing(("tenant", "admin", "jobs", "slots", "memory"), rows)
