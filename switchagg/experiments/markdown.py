"""Results as Markdown, for docs/experiments.md; made from a results.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchagg.experiments.text import figure


def claims(told: Mapping[str, Any]) -> str:
    """A table of all claims with their verdicts, then a section for each.

    Args:
        told: what results.json holds.
    """
    experiments: Mapping[str, Any] = told["experiments"]
    machine = told["machine"]
    others = max((each["others"] for each in experiments.values()), default=0.0)
    command = f"switchagg experiment all{' --quick' if told['quick'] else ''} --seed {told['seed']}"
    lines = [
        f"As `{command}` found them on {machine['cores']} cores "
        f"({_cell(str(machine['cpu']))}), in {told['seconds'] / 60:.1f} minutes"
        + (f", while other programs had up to {others:.0%} of the cores" if others >= 0.1 else "")
        + ":",
        "",
        *_table(
            ("claim", "here", "seconds"),
            [
                (f"[{each['title']}](#{name})", each["verdict"], round(each["seconds"]))
                for name, each in experiments.items()
            ],
        ),
    ]
    for name, each in experiments.items():
        lines += ["", f"### {name}", "", f"{each['claim']} *{each['source']}*", ""]
        lines += [f"`switchagg experiment {name}`: **{each['verdict']}**", ""]
        if "checks" not in each:
            lines.append(each["reason"])
            continue
        rows = [
            ("held" if check["held"] else "**not held**", check["statement"], check["measured"])
            for check in each["checks"]
        ]
        lines += _table(("", "statement", "measured"), rows)
        for table in each["tables"][:1]:
            lines += ["", table["title"] + ":", "", *_table(table["headings"], table["rows"])]
            if table["note"]:
                lines += ["", table["note"]]
        if each["notes"]:
            lines += ["", *(f"* {note}" for note in each["notes"])]
    return "\n".join(lines) + "\n"


def _table(headings: Any, rows: Any) -> list[str]:
    return [
        "| " + " | ".join(map(_cell, headings)) + " |",
        "|" + " --- |" * len(headings),
        *("| " + " | ".join(_cell(figure(cell)) for cell in row) + " |" for row in rows),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
