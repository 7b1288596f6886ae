"""Links between the pages of the repository lead to files, and their anchors to headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(REPOSITORY)
    for folder in (".", "p4", "docs", "docs/*", ".github/*")
    for path in REPOSITORY.glob(f"{folder}/*.md")
)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and MkDocs make them."""
    text = _FENCE.sub("", page.read_text())
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links(page: Path) -> None:
    text = _FENCE.sub("", (REPOSITORY / page).read_text())
    for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in _anchors(there), target
