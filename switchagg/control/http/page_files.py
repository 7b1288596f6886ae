"""The files of the web page, and the headers that they are served with.

The set of files is fixed when this module is first asked: they are read once, from the package, and looked
up by name. No path that a client sends ever reaches the file system.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Final

_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing inline, nothing from elsewhere, nowhere else to talk to, and no frame to be tricked through.
PAGE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    media_type: str


def page_file(name: str) -> PageFile | None:
    """Returns a file of the page by its name, the page itself for an empty one; None where there is none."""
    return _files().get(name or "index.html")


@functools.cache
def _files() -> Mapping[str, PageFile]:
    folder = resources.files("switchagg.control") / "page"
    files = {}
    for entry in folder.iterdir():
        media_type = _MEDIA_TYPES.get(entry.name[entry.name.rfind(".") :])
        if media_type is not None:
            files[entry.name] = PageFile(entry.read_bytes(), media_type)
    return MappingProxyType(files)
