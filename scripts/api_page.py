"""Writes docs/api.md, the page of the controller's API, from the code. A test says when it is out of date."""

from __future__ import annotations

from pathlib import Path

from switchagg.control.http.app import openapi_document
from switchagg.control.http.reference import markdown

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


def page() -> str:
    """Returns what the page should be."""
    head = "<!-- Made by scripts/api_page.py from the code; do not edit. -->\n\n"
    return head + markdown(openapi_document())


if __name__ == "__main__":
    PAGE.write_text(page())
