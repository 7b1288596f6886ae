"""`switchagg`: finds the module of the command that is asked for, and imports no other."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import switchagg
from switchagg.errors import SwitchAggError, UsageError

GROUPS: Final = {
    "begin": {
        "doctor": ("doctor", "say what this computer can do, and what is in the way"),
        "predict": ("predict", "expect time and bytes of an all-reduce, beside ring and tree"),
    },
    "train": {
        "demo": ("demo", "train a language model through the software switch, and write a report"),
        "run": ("run", "start n processes, here or on several hosts, with a switch between them"),
        "trace": ("trace", "make a timeline of a job for Perfetto, and say which rank was late"),
        "bench": ("bench", "measure this project's all-reduce beside gloo's and MPI's"),
        "experiment": ("experiment", "check claims of papers through the switch, and write a report"),
    },
    "build networks and switches": {
        "topo": ("topo", "build a network in Mininet and run a job across it"),
        "switch": ("switch", "run a software switch (`switches` lists a controller's)"),
        "shell": ("shell", "open p4runtime-shell on a switch"),
        "p4": ("p4", "check, describe and run P4 programs"),
        "chaos": ("chaos", "run jobs under faults at random moments, and check every sum"),
    },
    "serve": {
        "host": ("host", "run a software switch and its controller in one process"),
        "controller": ("controller", "run the controller of one or several switches"),
        "tenant": ("tenant", "manage the tenants of a controller, and their tokens"),
    },
    "look at a controller": {
        "top": ("top", "watch switches and jobs, live"),
        "jobs": ("listings", "list the jobs that run, or show one"),
        "slots": ("listings", "show the slots of each job, and the ranks that they wait for"),
        "stats": ("listings", "show the counters of the switches and of their jobs"),
        "switches": ("listings", "list the switches and their state"),
        "events": ("listings", "show the controller's event log"),
    },
    "change what it runs": {
        "job": ("operations", "create, list, show, drain or evict jobs"),
        "drain": ("operations", "let a job or a switch run empty"),
        "undrain": ("operations", "let a drained switch take jobs again"),
        "evict": ("operations", "end a job now"),
    },
    "your shell": {
        "completion": ("completion", "print a script that completes commands and options"),
    },
}
"""Commands by what they are for: the module and the help text of each.

A module has ``add_parser(subparsers)``, which adds all its commands. The default of ``run`` is a command's
function (no option may store to ``run``); without one it is ``run(args)`` of the module. It may have
``arranged(line, parser)``, which returns a command's line as argparse shall read it.
"""

COMMANDS: Final = {name: about for group in GROUPS.values() for name, about in group.items()}


class _Parser(argparse.ArgumentParser):
    """A parser, of the program or of a command, whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


class _Commands:
    """The subparsers of `switchagg`, which know the help text of each command."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        # The list of `_overview` stands for argparse's own, which has no groups.
        self.added = parser.add_subparsers(
            dest="command", metavar="COMMAND", required=True, prog="switchagg", help=argparse.SUPPRESS
        )

    def add_parser(self, name: str, **settings: Any) -> argparse.ArgumentParser:
        if "epilog" in settings:  # it has lines of its own
            settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
        return self.added.add_parser(name, **settings)


def _overview() -> str:
    """Returns the commands by groups, a line each."""
    lines = ["commands:"]
    for title, group in GROUPS.items():
        lines += ["", f"  {title}", *(f"    {name:<12}{text}" for name, (_, text) in group.items())]
    return "\n".join([*lines, "", "`switchagg COMMAND --help` describes a command."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status: 0 success, 1 failure, 2 unusable arguments."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    # No option of the program itself takes a value, so the first word that is no option is the command.
    chosen = next((word for word in line if not word.startswith("-")), None)
    parser = _Parser(
        prog="switchagg",
        usage="switchagg [-h] [--version] COMMAND ...",
        description="In-network gradient aggregation that anyone can run.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"switchagg {switchagg.__version__}")
    commands = _Commands(parser)
    if chosen is not None and chosen not in COMMANDS:
        close = difflib.get_close_matches(chosen, COMMANDS)
        parser.error(f"there is no command {chosen!r}{f', but {close[0]!r}' if close else ''}")
    wanted = COMMANDS[chosen][0] if chosen in COMMANDS else None
    module: Any = None
    for name, (its_module, _) in COMMANDS.items():
        if its_module != wanted:
            commands.add_parser(name)
        elif module is None:
            module = importlib.import_module(f"switchagg.cli.{wanted}")
            module.add_parser(commands)
    if chosen is not None and hasattr(module, "arranged"):
        place = line.index(chosen) + 1
        line = line[:place] + module.arranged(line[place:], commands.added.choices[chosen])
    args, unknown = parser.parse_known_args(line)
    if unknown:  # an error of the command, whose help says what is known
        commands.added.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status = int((args.run if "run" in args else module.run)(args))
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
        # The reader of our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        print(f"switchagg {chosen}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
