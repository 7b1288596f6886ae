"""Hooks of MkDocs: pages from outside of docs/, the reference of commands, and links to what the site lacks.

README.md, CHANGELOG.md and p4/README.md become pages, the parsers reference/commands.md. Links between these
and docs/ become those of the site, links to sources their text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from switchagg.cli.completion import parsers_of_commands
from switchagg.cli.main import COMMANDS, GROUPS

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "p4/README.md": "p4.md"}
"""Pages of the site, by their files in the repository; the others are those of docs/."""
_SOURCES = {page: file for file, page in PAGES.items()}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that docs/ does not have."""
    os.environ["COLUMNS"] = "100"  # of the help texts
    made = {page: (REPOSITORY / file).read_text(encoding="utf-8") for file, page in PAGES.items()}
    made["reference/commands.md"] = _commands()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Makes links those of the site; a link to a file that is no page becomes its text."""
    here = page.file.src_uri
    source = _SOURCES.get(here, f"docs/{here}")

    def replaced(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (REPOSITORY / file).exists():
            return match[0]  # MkDocs says so
        there = PAGES.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
        if there is None:
            return text
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{hash_}{anchor})"

    return _LINK.sub(replaced, markdown)


def _commands() -> str:
    parsers = dict(parsers_of_commands())
    lines = [
        "# Commands",
        "",
        "Exit status: 0 when all went well, 1 when something failed, 2 for arguments that cannot work, 130 "
        "after Ctrl-C. This page is made from the parsers.",
    ]
    for title, group in GROUPS.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}"]
        for path in (path for name in group for path in parsers if path.split()[0] == name):
            name = f"switchagg {path}"
            about = "" if " " in path else f"\n{COMMANDS[path][1][0].upper()}{COMMANDS[path][1][1:]}.\n"
            parsers[path].prog = name
            lines += ["", f"### {name}", about, "```text", parsers[path].format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"
