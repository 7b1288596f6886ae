"""`switchagg completion SHELL`: a script for bash, zsh or fish that completes commands, options and values.

    source <(switchagg completion bash)      in ~/.bashrc; the same with zsh in ~/.zshrc
    switchagg completion fish > ~/.config/fish/completions/switchagg.fish

The words come from the parsers when the script is printed, so that completing starts no Python.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_FILES: Final = "\0files"
"""The values of an option that takes the name of a file or a folder."""


@dataclass(slots=True)
class Command:
    """The words of a command.

    Attributes:
        options: of each option its values: `_FILES`, words, or None for one that takes none; and its help.
        verbs: the commands below, with their help.
        values: of the first positional argument, where its values are known.
    """

    options: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    verbs: dict[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("completion", description=__doc__, epilog="Prints to standard output.")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script")


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    commands = dict(words_of_commands())
    print(_fish(commands) if args.shell == "fish" else _bash(commands, zsh=args.shell == "zsh"), end="")
    return 0


def parsers_of_commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the parser of every command and verb by its path: "job", "job create" and so on."""
    from switchagg.cli.main import COMMANDS

    whole = argparse.ArgumentParser(prog="switchagg", add_help=False)
    added = whole.add_subparsers()
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        importlib.import_module(f"switchagg.cli.{module}").add_parser(added)
    for name in COMMANDS:
        yield from _below(name, added.choices[name])


def _below(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from _below(f"{path} {name}", each)


def words_of_commands() -> Iterator[tuple[str, Command]]:
    """Yields the words of every command by its path, which is empty for `switchagg` itself."""
    from switchagg.cli.main import COMMANDS

    whole = Command(verbs={name: text for name, (_, text) in COMMANDS.items()})
    whole.options = {"--help": (None, "show the commands"), "--version": (None, "show the version")}
    yield "", whole
    for path, parser in parsers_of_commands():
        yield path, _words(parser)


def _words(parser: argparse.ArgumentParser) -> Command:
    found = Command()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            found.verbs = {each.dest: each.help or "" for each in action._choices_actions}
            continue
        help_text = (action.help or "") % {"default": action.default}
        for option in action.option_strings:
            found.options[option] = (_values(action), help_text)
        if not action.option_strings and action.choices is not None:
            found.values = found.values or tuple(map(str, action.choices))
    return found


def _values(action: argparse.Action) -> str | None:
    if action.nargs in {0, "?"}:
        return None
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    named = str(action.metavar or "")
    return _FILES if action.type is Path or "FILE" in named or named in ("DIR", "FOLDER") else ""


def _bash(commands: dict[str, Command], *, zsh: bool) -> str:
    """Returns the script for bash, which zsh runs by its bashcompinit."""
    paths, words, values = [], [], []
    for path, each in commands.items():
        if path:
            paths.append(f"      {shlex.quote(path)}) path=$next ;;")
        listed = " ".join((*each.verbs, *each.values, *each.options))
        words.append(f"    {shlex.quote(path)}) words={shlex.quote(listed)} ;;")
        for option, (accepted, _) in each.options.items():
            if accepted is not None:
                act = "files=1" if accepted == _FILES else f"words={shlex.quote(accepted)}"
                values.append(f"    {shlex.quote(f'{path}:{option}')}) {act}; taken=1 ;;")
    head = "autoload -U +X compinit bashcompinit && compinit -u && bashcompinit\n" if zsh else ""
    return f"""{head}_switchagg() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local path="" next word i words="" files="" taken=""
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    # Behind -- stands a command of its own.
    if [[ $word == -- ]]; then COMPREPLY=($(compgen -f -- "$cur")); return; fi
    next="${{path:+$path }}$word"
    case $next in
{chr(10).join(paths)}
    esac
  done
  case "$path:$prev" in
{chr(10).join(values)}
  esac
  [[ $taken ]] || case $path in
{chr(10).join(words)}
  esac
  if [[ $files ]]; then COMPREPLY=($(compgen -f -- "$cur"))
  else COMPREPLY=($(compgen -W "$words" -- "$cur")); fi
  if [[ ! $taken && $cur != -* && ${{#COMPREPLY[@]}} -eq 0 ]]; then COMPREPLY=($(compgen -f -- "$cur")); fi
}}
complete -o filenames -F _switchagg switchagg
"""


def _fish(commands: dict[str, Command]) -> str:
    known = " ".join(shlex.quote(path) for path in commands if path)
    lines = [
        "function __switchagg_path",
        "  set -l path",
        "  for word in (commandline -opc)[2..]",
        "    test $word = --; and echo :; and return",
        "    set -l next (string join ' ' $path $word)",
        f"    contains -- $next {known}; and set path $path $word",
        "  end",
        "  string join ' ' $path",
        "end",
        'function __switchagg_at; test "$(__switchagg_path)" = "$argv"; end',
        "complete -c switchagg -n '__switchagg_at :' -F",
    ]
    for path, each in commands.items():
        here = f"complete -c switchagg -n {shlex.quote(f'__switchagg_at {path}'.strip())}"
        lines += [f"{here} -f -a {name} -d {shlex.quote(text)}" for name, text in each.verbs.items()]
        lines += [f"{here} -f -a {value}" for value in each.values]
        for option, (accepted, text) in each.options.items():
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            line = f"{here} {name} -d {shlex.quote(text)}"
            if accepted == _FILES:
                line += " -rF"
            elif accepted is not None:
                line += f" -x -a {shlex.quote(accepted)}"
            lines.append(line)
    return "\n".join(lines) + "\n"
