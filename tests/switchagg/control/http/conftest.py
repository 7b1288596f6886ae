"""A browser for the tests of the page, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, Page, browser, find_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("there is no Chromium here: install it, or name one in SWITCHAGG_CHROMIUM")
    with browser(executable) as running:
        yield running


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A tab with storage of its own."""
    tab = chromium.page()
    tab.resize(1440, 900)
    yield tab
    tab.close()
