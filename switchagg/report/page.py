"""A report: a folder with one HTML page that needs nothing else, its pictures, and all figures as JSON."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from switchagg.errors import SwitchAggError, UsageError

PLOTS_HINT = "no plots: matplotlib is not installed; pip install 'switchagg[plots]'"

Pictures = TypeVar("Pictures")


def check_folder(folder: Path) -> None:
    """Fails early where a report could not be written. Creates nothing.

    Raises:
        UsageError: the path is a file, or neither it nor the folder it would be made in can be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder}: this is a file; give a folder")
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"--out {folder}: cannot write to {existing}")


def write(
    folder: Path,
    results: Mapping[str, Any],
    draw: Callable[[Path], Pictures],
    html: Callable[[Pictures | None], str],
) -> tuple[Path, bool]:
    """Writes results.json, the pictures and index.html into `folder`, which is made where it is missing.

    Args:
        results: JSON values.
        draw: draws the pictures into the folder; an ImportError of it means that matplotlib is missing.
        html: makes the page of the pictures, or of None where there are none.

    Returns:
        The path of the HTML file, and whether it has its pictures.

    Raises:
        SwitchAggError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        try:
            pictures = draw(folder)
        except ImportError:
            pictures = None
        index = folder / "index.html"
        index.write_text(html(pictures), encoding="utf-8")
    except OSError as error:
        raise SwitchAggError(f"could not write the report to {folder}: {error}") from None
    return index, pictures is not None


def page(
    title: str, heading: str, lead: str, hints: Iterable[str], cards: Iterable[str], sections: Iterable[str]
) -> str:
    """The page's HTML. `cards` and `sections` are HTML, as `card` and `section` make it; the rest is text."""
    files = resources.files("switchagg.report")
    filled = files.joinpath("page.html").read_text(encoding="utf-8")
    for name, value in {
        "title": escape(title),
        "heading": escape(heading),
        "lead": escape(lead),
        "hints": "".join(f"<p class=hint>{escape(hint)}</p>" for hint in hints),
        "cards": "".join(cards),
        "sections": "\n".join(sections),
        "style": files.joinpath("page.css").read_text(encoding="utf-8"),
    }.items():
        filled = filled.replace("{{" + name + "}}", value)
    return filled


def card(value: str, text: str, *, good: bool = True) -> str:
    """A figure and a few words on it."""
    bad = "" if good else " bad"
    return f"<div class='card{bad}'><b>{escape(value)}</b><span>{escape(text)}</span></div>"


def section(heading: str, body: str, *, name: str = "") -> str:
    """Part of a page, both HTML; links reach it by `name`."""
    return f"<section{f' id={name!r}' if name else ''}><h2>{heading}</h2>{body}</section>"


def image(path: Path, text: str) -> str:
    """A PNG file as an <img> that holds it; `text` is for those who cannot see it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
