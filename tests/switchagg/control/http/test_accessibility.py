"""axe-core finds nothing on the page and on a report, and nothing serious on the site.

All are tried light and dark, at three widths. SWITCHAGG_AXE is the path of axe.min.js, which `npm install
axe-core` has in node_modules/axe-core. The site is in build/site after `make docs`, or at SWITCHAGG_SITE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchagg.report import page as report
from switchagg.report.table import html_table
from tests.browser import Page
from tests.switchagg.control.http.fake_controller import FakeController, fake_controller, job, switch

AXE = os.environ.get("SWITCHAGG_AXE", "")
pytestmark = pytest.mark.skipif(not Path(AXE).is_file(), reason="SWITCHAGG_AXE names no axe.min.js")
SITE = Path(os.environ.get("SWITCHAGG_SITE", "build/site"))
LIVE = "document.querySelector('#connection')?.dataset.state === 'live'"
LOOKS = [(width, theme) for width in (1440, 820, 390) for theme in ("light", "dark")]


@pytest.fixture
def fake() -> Iterator[FakeController]:
    with fake_controller() as running:
        running.jobs = [job("train"), job("other", state="queued")]
        running.switches = [switch(jobs=running.jobs[:1])]
        running.add_event("opened", "Job train opened.", job="train", tenant="default", switch="native")
        running.add_event("lost", "Rank 3 was lost.", job="train", tenant="default", rank=3)
        yield running


def _findings(page: Page, *, minor: bool = True) -> list[str]:
    page.evaluate(Path(AXE).read_text() + "; 0")
    found = page.evaluate("axe.run().then((r) => JSON.stringify(r.violations))")
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in json.loads(found)
        if minor or each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_the_page(page: Page, fake: FakeController, width: int, theme: str) -> None:
    page.resize(width, 900)
    page.prefer(prefers_color_scheme=theme)
    page.call("Page.setBypassCSP", enabled=True)
    page.open(fake.url)
    page.wait(LIVE)
    page.wait("document.querySelectorAll('#events li').length === 2")
    page.click("tr.job button")
    page.wait("document.querySelectorAll('.timeline .mark').length >= 3")
    page.evaluate("document.querySelector('.timeline details').open = true")
    page.wait("document.querySelectorAll('.timeline tbody tr').length === 2")
    assert _findings(page) == []
    page.open(f"{fake.url}/page/help.html")
    page.wait("document.readyState === 'complete' && document.querySelector('.help')")
    assert _findings(page) == []


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_a_report(page: Page, tmp_path: Path, width: int, theme: str) -> None:
    file = tmp_path / "index.html"
    headings = [f"activity {number}" for number in range(9)]
    table = html_table(headings, [["26.4 MB"] * 9], [True] * 9)
    sections = [report.section("Fewer bytes", table + "<pre>switchagg demo</pre>")]
    file.write_text(
        report.page(
            "t", "Training", "Four processes.", ["a hint"], [report.card("6.93 → 4.34", "x")] * 5, sections
        )
    )
    page.resize(width, 900)
    page.prefer(prefers_color_scheme=theme)
    page.open(file.as_uri())
    page.wait("document.querySelector('section')")
    assert _findings(page) == []
    rows = page.evaluate(
        "Object.values(Object.groupBy(document.querySelectorAll('.card'), e => e.offsetTop))"
        ".map(row => row.length)"
    )
    assert rows == {1440: [5], 820: [3, 2], 390: [2, 2, 1]}[width]
    assert page.evaluate(
        "[...document.querySelectorAll('.card b')].every(e => e.scrollWidth <= e.clientWidth)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not SITE.is_dir(), reason=f"there is no {SITE}: make docs")
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_the_site(page: Page, width: int, theme: str) -> None:
    page.resize(width, 900)
    page.prefer(prefers_color_scheme=theme)
    for name in ("index", "tutorials/first-hour", "operating"):
        page.open((SITE / f"{name}.html").resolve().as_uri())
        page.wait(f"document.readyState === 'complete' && location.pathname.endsWith('/{name}.html')")
        scheme = "slate" if theme == "dark" else "default"
        page.wait(f"document.body.dataset.mdColorScheme === '{scheme}'")
        assert _findings(page, minor=False) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
