"""`switchagg shell`: p4runtime-shell on a running switch, with helpers for jobs and slots.

Reads only, unless --election names an election id: the switch's controller stays primary. Beside
p4runtime-shell's commands there are jobs(), slots(), admissions(JOB) and counters(JOB).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from switchagg.errors import UsageError, require

_EPILOG = """\
p4runtime-shell is installed at first use, in an environment of its own below XDG_CACHE_HOME (~/.cache).
Exit status: that of the shell or of CODE, 1 where no session can be opened, 2 a value that cannot work.
"""


def add_parser(subparsers: Any) -> None:
    option = subparsers.add_parser("shell", description=__doc__, epilog=_EPILOG).add_argument
    option("server", metavar="HOST:PORT", help="P4Runtime server of the switch")
    option("-c", dest="code", help="run this Python code instead of a prompt")
    option("--device", type=int, default=0, help="P4Runtime device id (%(default)s)")
    option(
        "--election",
        type=int,
        metavar="N",
        help="claim this election id, to write; the highest has the switch (none: only read)",
    )
    option("--tls", action="store_true", help="encrypt; --ca, --cert and --key imply it")
    option("--ca", type=Path, metavar="FILE", help="authority to believe, instead of the system's")
    option("--cert", type=Path, metavar="FILE", help="certificate of this client")
    option("--key", type=Path, metavar="FILE", help="its key")


def run(args: argparse.Namespace) -> int:
    """Runs the shell; returns its exit status. Raises `UsageError`, or as `Environment.make`."""
    from switchagg.p4runtime import shell

    host, _, port = args.server.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"the server is {args.server!r}; accepted: HOST:PORT, such as 127.0.0.1:9559")
    require(0 <= args.device < 1 << 64, "device", args.device, "0 to 2**64 - 1")
    if args.election is not None and not 0 < args.election < 1 << 128:
        raise UsageError(f"election is {args.election}; accepted: 1 to 2**128 - 1, or none to read only")
    if (args.cert is None) != (args.key is None):
        raise UsageError("one of --cert and --key is missing; accepted: both, or neither")
    files = {name: getattr(args, name) for name in ("ca", "cert", "key")}
    for path in filter(None, files.values()):
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path} cannot be read")
    settings = {
        "server": args.server,
        "device": args.device,
        "election": args.election,
        "tls": args.tls or any(files.values()),
        "code": args.code,
        "facts": _facts(),
        **{name: path and str(path) for name, path in files.items()},
    }
    python = shell.ENVIRONMENT.make("switchagg shell")
    process = subprocess.Popen(
        [python, "-I", str(Path(shell.__file__).with_name("session.py")), json.dumps(settings)],
        env={**os.environ, "IPYTHONDIR": str(shell.ENVIRONMENT.folder / "ipython")},
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the shell has had it too, and knows what to do
            continue


def _facts() -> dict[str, Any]:
    """Names and numbers of our P4 programs, as `session.Helpers` wants them."""
    from switchagg.p4program import counters, entries, program
    from switchagg.wire.header import COUNTERS, Event

    return {
        "admission": program.ADMISSION,
        "deliveries": program.DELIVERIES,
        "outcomes": program.OUTCOMES,
        "worker_packets": program.WORKER_PACKETS,
        "worker_repeats": program.WORKER_REPEATS,
        "outcomes_per_job": program.OUTCOMES_PER_JOB,
        "workers_per_job": program.WORKERS_PER_JOB,
        "job": entries.JOB_KEY,
        "slot": entries.SLOT_KEY,
        "source": entries.SOURCE_KEY,
        "source_port": entries.SOURCE_PORT_KEY,
        "ingress_port": entries.INGRESS_PORT_KEY,
        "refusals": entries.JOB_REFUSALS,
        "counted": counters.COUNTED_CELLS,
        "received": counters.RECEIVED,
        "names": COUNTERS,
        "retransmissions": Event.retransmissions,
        "delivered": Event.delivered,
    }
