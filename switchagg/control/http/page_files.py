"""The files of the web page, and the headers that they are served with.

The set of files is fixed when this module is first asked: they are read once, from the package, and looked
up by name. No path that a client sends ever reaches the file system.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import PurePath
from typing import Final, NamedTuple

_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing inline, nothing from elsewhere, nowhere else to talk to, and no frame to be tricked through.
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFile(NamedTuple):
    """One file as it is sent."""

    content: bytes
    media_type: str


def page_file(name: str) -> PageFile | None:
    """Returns a file of the page by its name, the page itself for an empty one; None where there is none."""
    return _files().get(name or "index.html")


@functools.cache
def _files() -> Mapping[str, PageFile]:
    folder = resources.files("switchagg.control") / "page"
    return {
        entry.name: PageFile(entry.read_bytes(), _MEDIA_TYPES[suffix])
        for entry in folder.iterdir()
        if (suffix := PurePath(entry.name).suffix) in _MEDIA_TYPES
    }
