"""`switchagg`: the commands. Each is a module of its own, imported only when it is the one that runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import switchagg
from switchagg.errors import SwitchAggError, UsageError

COMMANDS: Final = {
    "demo": "train a language model through the software switch, and write a report",
    "run": "start n local processes with a switch between them",
    "topo": "build a network in Mininet and run a job across it",
    "bench": "measure, beside what you would use instead",
    "experiment": "check claims of the field through the switch, and write a report",
    "switch": "run a software switch",
    "p4": "check, describe and run P4 programs",
    "host": "run a software switch and its controller in one process",
    "controller": "run the controller of one or several switches",
    "tenant": "say who may use a controller",
    "jobs": "list the jobs that run",
    "slots": "show who has which slots, and what they wait for",
    "stats": "show the counters of the switches and of their jobs",
    "switches": "list the switches, and how they are",
    "top": "watch switches and jobs, live",
    "events": "show what has happened",
    "job": "order a job before its ranks come",
    "drain": "let a job or a switch run empty",
    "undrain": "let a drained switch have jobs again",
    "evict": "end a job now",
}

_EPILOG = "`switchagg COMMAND --help` says more of a command."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit status: 0 done, 1 failed, 2 asked for what cannot work."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    # No option of the program itself takes a value, so the first word that is no option is the command.
    chosen = next((word for word in line if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="switchagg", description="In-network gradient aggregation that anyone can run.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"switchagg {switchagg.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for name, meaning in COMMANDS.items():
        if name == chosen:
            module = importlib.import_module(f"switchagg.cli.{name}")
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=meaning)
    if chosen is not None and hasattr(module, "arranged"):
        assert module is not None
        place = line.index(chosen)
        line = line[: place + 1] + module.arranged(line[place + 1 :], subparsers.choices[chosen])
    args = parser.parse_args(line)
    assert module is not None
    try:
        status = int(module.run(args))
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"switchagg {chosen}: {error}", file=sys.stderr)
        return 2
    except SwitchAggError as error:
        print(f"switchagg {chosen}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"switchagg {chosen}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


if __name__ == "__main__":
    sys.exit(main())
