"""The web page in a real browser, against a controller of which a test can ask anything."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Page
from tests.switchagg.control.http.fake_controller import FakeController, fake_controller, fill, job, switch
from tests.waiting import eventually

LIVE = "document.querySelector('#connection')?.dataset.state === 'live'"


@pytest.fixture
def fake() -> Iterator[FakeController]:
    with fake_controller() as running:
        running.jobs = [job("train")]
        running.switches = [switch(jobs=running.jobs)]
        yield running


def opened(page: Page, fake: FakeController) -> Page:
    page.open(fake.url)
    page.wait(LIVE)
    return page


def test_a_job_and_its_switch(page: Page, fake: FakeController) -> None:
    fake.jobs[0]["members"][2].update(state="lost")
    fake.jobs[0]["members"][3].update(silent=6.4)
    opened(page, fake)
    row = page.wait("document.querySelector('tr.job')?.innerText")
    for words in (
        "train",
        "running",
        "3/4, 1 late, 1 lost",
        "860 MB/s",
        "0.040 %",
        "91.0 %",
        "1.20 %",
        "native",
    ):
        assert words in row
    assert "skips zeros, blocks of 256, 32-bit lanes" in row
    health = "[...document.querySelectorAll('tr.job .ranks i')].map(e => e.dataset.health)"
    assert page.evaluate(health) == ["ok", "ok", "lost", "late"]
    assert "65,280 of 65,536 slots free, 32,768 in one range" in page.text(".switch")
    assert page.evaluate("document.querySelector('.slot-range title').textContent") == (
        "job train of default: slots 0 to 255 (256)"
    )
    assert page.errors == []


def test_details_of_a_job(page: Page, fake: FakeController) -> None:
    now = time.time()
    fake.history["train"] = [
        {"t": now - 300 + second, "GBps": 0.5, "loss": 0.01, "skip_ratio": 0.25, "density": 0.75}
        for second in range(300)
    ]
    fake.jobs[0].update(why="rank 3 is lost: its process ended")
    fake.jobs[0]["members"][3].update(state="lost", why="its process ended")
    opened(page, fake)
    assert page.count(".detail") == 0
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.detail')")
    detail = page.text(".detail")
    assert "1.2 % of blocks are non-zero at any rank" in detail
    assert "256 (0 to 255), 364 words a packet" in detail
    assert re.search(r"skips zeros, blocks of 256, 32-bit lanes, for \d+ (s|min)", detail)
    assert "rank 3 is lost: its process ended" in detail
    assert "lost: its process ended" in page.text(".detail .members")
    assert page.count(".detail .members tbody tr") == 4
    assert "120,003" in page.text(".detail .members tbody tr:last-child")
    assert page.evaluate("[...document.querySelectorAll('.chart-title')].map(e => e.textContent)") == [
        "Throughput, MB/s",
        "Packets resent (loss), %",
        "Blocks skipped, %",
        "Density of a rank's blocks, %",
    ]
    # Points from before the page was opened come from the controller's history, and show under the pointer.
    page.wait("document.querySelector('.chart .line').getAttribute('d').length > 2000")
    page.hover(".chart svg", 0.5)
    page.wait("document.querySelector('.chart-value').textContent.startsWith('500 MB/s at ')")
    others = page.evaluate("[...document.querySelectorAll('.chart-value')].map(e => e.textContent)")
    assert [words.split(" at ")[0] for words in others] == ["500 MB/s", "1.00 %", "25.0 %", "75.0 %"]
    page.click("tr.job .disclose")
    page.wait("!document.querySelector('.detail')")
    assert page.errors == []


def test_charts_by_keyboard(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.evaluate("document.querySelector('tr.job .disclose').focus()")
    page.press("Enter")
    page.wait("document.querySelector('.chart .line')?.getAttribute('d')")
    page.evaluate("document.querySelector('.chart svg').focus()")
    page.press("ArrowLeft")
    label = page.wait("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert label.startswith("Throughput: 860 MB/s at ")
    page.press("Escape")
    page.wait(
        "document.querySelector('.chart svg').getAttribute('aria-label') === 'Throughput: 860 MB/s now'"
    )


def test_it_is_live(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.evaluate("window.untouched = true; document.querySelector('tr.job').dataset.mark = 'same'")
    fake.jobs = [{**fake.jobs[0], "state": "draining"}, job("second", base=256, id=2)]
    fake.switches = [switch(jobs=fake.jobs)]
    fake.add_event("opened", "Job second opened.", job="second")
    page.wait("document.querySelectorAll('tr.job').length === 2")
    page.wait("document.querySelector('#events')?.innerText.includes('Job second opened.')")
    page.wait("document.querySelectorAll('.slot-range').length === 2")
    assert page.text("tr.job .badge") == "draining"
    # The row has changed, it was not built again; nor was the page.
    assert page.evaluate("document.querySelector('tr.job').dataset.mark") == "same"
    fake.jobs = []
    page.wait("document.querySelectorAll('tr.job').length === 0")
    assert "No jobs." in page.text("#jobs-empty")
    assert page.evaluate("window.untouched") is True
    assert page.errors == []


HOSTILE = (
    "<img src=x onerror=window.owned=1>",
    '"><script>window.owned=1</script>',
    "javascript:window.owned=1",
    "${window.owned=1}{{7*7}}",
    "'); window.owned=1; ('",
    "a/../../b?c#d%2e",
    "\u202eetisoppo",
    "W" * 128,
)


def test_strangers_words_are_text(page: Page, fake: FakeController) -> None:
    fake.jobs = [
        job(
            name, tenant=name, id=number + 1, base=4096 * number, slots=4096, policy={"block": 1, "why": name}
        )
        for number, name in enumerate(HOSTILE)
    ]
    fake.switches = [switch(HOSTILE[0], fake.jobs, why=HOSTILE[1], state="down")]
    for each in fake.jobs:
        each["switch"] = HOSTILE[0]
        each["members"][0]["address"] = HOSTILE[1]
    fake.switches = [switch(HOSTILE[0], fake.jobs, why=HOSTILE[1], state="down")]
    for name in HOSTILE:
        fake.add_event(HOSTILE[0], name, job=name, tenant=name)
    opened(page, fake)
    page.wait(f"document.querySelectorAll('tr.job').length === {len(HOSTILE)}")
    names = page.evaluate("[...document.querySelectorAll('.job-name')].map(e => e.textContent)")
    assert sorted(names) == sorted(HOSTILE)
    for number in range(len(HOSTILE)):
        page.evaluate(f"document.querySelectorAll('tr.job .disclose')[{number}].click()")
    page.wait(f"document.querySelectorAll('.detail').length === {len(HOSTILE)}")
    page.evaluate("document.querySelector('details').open = true")
    page.wait("document.querySelectorAll('details tbody tr').length > 1")
    page.evaluate("document.querySelector('.detail .danger').click()")
    page.wait("document.querySelector('#confirm').open")
    assert page.evaluate("window.owned") is None
    assert page.count("img[src=x]") == 0
    assert page.count("main script") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.errors == []


def test_scripts_that_are_not_ours_do_not_run(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.evaluate(
        "(() => { const e = document.createElement('script'); e.textContent = 'window.owned = 1'; "
        "document.body.append(e); })()"
    )
    assert page.evaluate("window.owned") is None
    eventually(lambda: any("Content Security Policy" in said for said in page.errors))


def test_buttons_ask_first(page: Page, fake: FakeController) -> None:
    name = "a/b c"
    fake.jobs = [job(name, id=7)]
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.detail .danger')")
    page.click(".detail .danger")
    page.wait("document.querySelector('#confirm').open")
    assert page.text("#confirm-title") == "Evict job a/b c?"
    assert page.evaluate("document.activeElement.id") == "confirm-no"
    page.press("Escape")
    page.wait("!document.querySelector('#confirm').open")
    assert fake.calls == []
    page.click(".detail .danger")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    eventually(lambda: fake.calls == ["DELETE /v1/jobs/a%2Fb%20c?id=7&tenant=default"])
    page.wait("document.querySelector('#toast').innerText === 'Job a/b c was evicted.'")
    page.click(".detail-buttons button:first-child")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    eventually(lambda: fake.calls[1:] == ["POST /v1/jobs/a%2Fb%20c/drain?id=7&tenant=default"])
    page.click(".switch .panel-head button")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    eventually(lambda: fake.calls[2:] == ["POST /v1/switches/native/drain"])
    assert page.errors == []


def test_a_refusal_is_told(page: Page, fake: FakeController) -> None:
    fake.refuse = "only an administrator drains switches"
    opened(page, fake)
    page.wait("document.querySelector('.switch .panel-head button')")
    page.click(".switch .panel-head button")
    page.wait("document.querySelector('#confirm').open")
    page.click("#confirm-yes")
    page.wait(
        "document.querySelector('#toast').innerText === 'Refused: only an administrator drains switches'"
    )


def test_it_says_when_the_controller_is_lost_and_comes_back(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    fake.stop()
    page.wait("document.querySelector('#connection').dataset.state === 'lost'")
    assert page.text("#banner").startswith("Lost the controller: ")
    assert "What you see is of " in page.text("#banner")
    assert page.count("tr.job") == 1
    fake.events = []
    fake.add_event("switch_up", "Switch native is up again.")
    fake.start()
    page.wait(LIVE)
    page.wait("document.querySelector('#events').innerText.includes('Switch native is up again.')")
    assert page.evaluate("document.querySelector('#banner').hidden")


def test_a_silent_stream_is_a_lost_controller(page: Page, fake: FakeController) -> None:
    fake.interval = 3600.0  # one snapshot, and nothing after it: a machine that is gone says no more
    opened(page, fake)
    page.wait("document.querySelector('#connection').dataset.state === 'lost'")
    assert "silent for 6 s" in page.text("#banner")


def test_token(page: Page) -> None:
    with fake_controller(token="right") as fake:
        fake.jobs = [job("train")]
        page.open(fake.url)
        page.wait("document.querySelector('#token')?.open")
        assert page.count("tr.job") == 0
        page.type("wrong")
        page.press("Enter")
        page.wait("document.querySelector('#token-text').innerText.includes('is not accepted')")
        page.press("Escape")
        assert page.evaluate("document.querySelector('#token').open")
        page.evaluate("document.querySelector('#token-input').focus()")
        page.type("right")
        page.click("#token-ok")
        page.wait(LIVE)
        page.wait("document.querySelectorAll('tr.job').length === 1")
        # It stays for this tab, outlives a reload, and is nowhere to be read.
        page.open(fake.url)
        page.wait("document.querySelectorAll('tr.job').length === 1")
        assert "right" not in page.evaluate("document.documentElement.outerHTML + document.cookie + location")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        page.click("#token-button")
        page.wait("document.querySelector('#token')?.open")


def test_filters(page: Page, fake: FakeController) -> None:
    fake.jobs = [job("alpha"), job("beta", id=2, base=256, state="draining", tenant="ads")]
    fake.add_event("opened", "Job alpha opened.", job="alpha")
    fake.add_event("lost", "Rank 3 of job beta is lost.", job="beta", rank=3)
    opened(page, fake)
    page.wait("document.querySelectorAll('tr.job').length === 2")
    page.evaluate("document.querySelector('#job-filter').focus()")
    page.type("ADS")
    page.wait("document.querySelectorAll('tr.job').length === 1")
    assert page.text(".job-name") == "beta"
    page.type("zzz")
    page.wait("document.querySelector('#jobs-empty').innerText === 'None of the 2 jobs is like that.'")
    page.wait("document.querySelectorAll('#events li').length === 2")
    assert page.text("#events li .event-text").startswith("Rank 3")  # the newest first
    page.evaluate(
        "(() => { const e = document.querySelector('#event-kind'); e.value = 'opened'; "
        "e.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.querySelectorAll('#events li').length === 1")
    fake.add_event("lost", "Rank 2 of job beta is lost.", job="beta", rank=2)
    fake.add_event("opened", "Job gamma opened.", job="gamma")
    page.wait("document.querySelectorAll('#events li').length === 2")
    assert "Rank" not in page.text("#events")


def test_a_range_leads_to_its_job(page: Page, fake: FakeController) -> None:
    fake.jobs = [job(f"job-{number}", id=number + 1, base=8192 * number, slots=8192) for number in range(8)]
    fake.switches = [switch(jobs=fake.jobs)]
    opened(page, fake)
    page.wait("document.querySelectorAll('.slot-range').length === 8")
    page.click(".slot-range:nth-of-type(6) rect")
    page.wait("document.querySelectorAll('.detail').length === 1")
    assert page.evaluate("document.querySelector('[aria-expanded=true] .job-name').textContent") == "job-5"


def test_strangers_jobs_have_no_name(page: Page, fake: FakeController) -> None:
    fake.switches[0]["ranges"][0].update(name=None, tenant=None)
    opened(page, fake)
    page.wait("document.querySelector('.slot-range.c-other')")
    assert "a job of another tenant" in page.evaluate(
        "document.querySelector('.slot-range title').textContent"
    )


def test_fifty_jobs_fit(page: Page, fake: FakeController, tmp_path: Path) -> None:
    fake.jobs = []
    fake.events = []
    fake.interval = 0.5
    fill(fake, 50, 32, seed=5)
    opened(page, fake)
    page.wait("document.querySelectorAll('tr.job').length === 50")
    assert page.count("tr.job .ranks i") == 50 * 32
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.detail .members tbody tr')")
    for width, scheme in ((1440, "dark"), (1260, "light"), (820, "light"), (390, "light")):
        page.resize(width, 900)
        page.prefer(prefers_color_scheme=scheme)
        # Nothing wider than the window or its frame, no text too faint to read.
        page.wait(f"innerWidth === {width} && document.documentElement.scrollWidth === {width}")
        frame = page.evaluate(
            "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])"
            "(document.querySelector('#jobs-frame'))"
        )
        assert frame[0] == frame[1], width
        assert page.evaluate(CONTRAST) == [], width
    assert page.errors == []
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


# Every visible text against what lies behind it: 4.5 to 1, as WCAG 2 AA asks.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, under) => {
    const a = top[3] / 255;
    return [0, 1, 2].map((i) => top[i] * a + under[i] * (1 - a)).concat(255);
  };
  const behind = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.push(rgba(getComputedStyle(e).backgroundColor));
    return chain.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 255]);
  };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = c[i] / 255;
    return sum + weight * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const faint = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
    if (e instanceof SVGElement || e.closest(":disabled")) continue;
    const under = behind(e);
    const [a, b] = [light(over(rgba(getComputedStyle(e).color), under)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const which = `${e.tagName}.${e.className} ${ratio.toFixed(2)}`;
    if (ratio < 4.5) faint.add(`${which}: ${e.textContent.slice(0, 30)}`);
  }
  return [...faint];
})()"""


def test_theme(page: Page, fake: FakeController) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.prefer(prefers_color_scheme="light")
    opened(page, fake)
    light = page.evaluate(ground)
    page.prefer(prefers_color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.click("#theme-button")
    assert page.text("#theme-button") == "Theme: light"
    assert page.evaluate(ground) == light
    page.open(fake.url)
    page.wait(LIVE)
    assert (page.text("#theme-button"), page.evaluate(ground)) == ("Theme: light", light)
    page.prefer(prefers_color_scheme="light")
    page.click("#theme-button")
    assert page.evaluate(ground) == dark


def test_nothing_there(page: Page) -> None:
    with fake_controller() as fake:
        opened(page, fake)
        page.wait("document.querySelector('#jobs-empty').innerText.includes('No jobs.')")
        assert page.text("#events-empty") == "Nothing has happened yet."
        assert (
            page.evaluate("document.querySelector('#switches').dataset.empty")
            == "This controller has no switch."
        )
        assert page.errors == []


def test_every_control_has_a_name(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.detail')")
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "textbox", "searchbox", "combobox", "table", "img", "log", "region", "link", "image"}
    nameless = [
        json.dumps(node["role"])
        for node in nodes
        if not node.get("ignored")
        and node.get("role", {}).get("value") in wanted
        and not node.get("name", {}).get("value")
        and node["role"]["value"] != "table"
    ]
    assert nameless == []
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert roles.count("button") >= 5
    assert "log" in roles or not fake.events


def test_policy_changes_of_a_job_are_one_line(page: Page, fake: FakeController) -> None:
    fake.add_event("opened", "Job train opened.", job="train")
    for number in range(5):
        fake.add_event("policy", f"Blocks of {16 << number}.", job="train")
        fake.add_event("policy", f"Other blocks of {16 << number}.", job="other")
    opened(page, fake)
    page.wait("document.querySelectorAll('#events li').length === 3")
    assert page.text("#events li .event-text") == "Other blocks of 256. other (and 4 earlier changes)"
    fake.add_event("lost", "Rank 3 was lost.", job="train", rank=3)
    fake.add_event("policy", "Dense.", job="train")
    page.wait("document.querySelectorAll('#events li').length === 5")
    assert page.text("#events li .event-text") == "Dense. train"
    page.evaluate(
        "(() => { const s = document.querySelector('#event-kind'); s.value = 'policy'; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.querySelectorAll('#events li').length === 11")
    assert page.errors == []


def has_a_past(fake: FakeController) -> None:
    """A job of 1,500 s that was moved, lost a rank and took it back, after an earlier job of its name."""
    now = time.time()

    def add(ago: float, kind: str, text: str, place: str | None = "native", **fields: Any) -> None:
        fake.add_event(kind, text, job="train", tenant="default", switch=place, time=now - ago, **fields)

    add(9000, "job_created", "job 'train' of 9 workers", None)
    add(8000, "failed", "an earlier job")
    add(1500, "job_created", "job 'train' of 4 workers", None)
    add(1480, "opened", "job 'train' runs with 4 workers", "rack-1")
    for number in range(3):
        add(1400 - 30 * number, "policy", f"blocks of {16 << number}", "rack-1")
    add(900, "moving", "job 'train' goes over to native: switch 'rack-1' is down", "rack-1")
    add(899.75, "moved", "job 'train' runs on native")
    add(500, "lost", "rank 1 of job 'train' is lost: <b>silent</b> for 10 s", rank=1)
    add(498, "shrunk", "job 'train' goes on with ranks 0, 2, 3")
    add(200, "paused", "job 'train' pauses: rank 1 is back")
    add(199.5, "joined", "job 'train' goes on with ranks 0, 1, 2, 3")
    fake.jobs = [job("train", age=1500.0, on_loss="shrink")]
    fake.history["train"] = [
        {"t": now - 300 + second, "GBps": 0.5, "loss": 0.0, "collectives": 12.0} for second in range(300)
    ]


def bars(page: Page, lane: str) -> list[str]:
    """The names of a timeline's bars, in order of time."""
    found = page.evaluate(
        f"[...document.querySelectorAll('.timeline .{lane}')].map(e => [+e.querySelector('rect')"
        ".getAttribute('x'), e.querySelector('title').textContent.split(':')[0]])"
    )
    return [name for _, name in sorted(found)]


def test_a_timeline(page: Page, fake: FakeController) -> None:
    has_a_past(fake)
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelectorAll('.timeline .switch-bar').length === 2")
    assert bars(page, "switch-bar") == ["rack-1", "native"]
    states = ["joining", "running", "moving", "running", "paused", "running", "paused", "running"]
    assert bars(page, "state-bar") == states
    legend = page.text(".timeline-legend").splitlines()
    assert legend[:3] == ["1 lost", "1 shrunk", "1 moving"]
    assert "3 policy" in legend
    assert "failed" not in page.text(".timeline")  # that was the earlier job
    page.wait("document.querySelector('.rate-area').getAttribute('d').split('L').length > 250")
    # Later events are added, and the job's state with it.
    fake.add_event("drained", "job 'train' is being drained by default", job="train", tenant="default")
    page.wait("document.querySelector('.timeline-legend').innerText.includes('1 drained')")
    assert bars(page, "state-bar") == [*states, "draining"]
    # Of the last ten minutes only what was then.
    page.click(".timeline figcaption button")
    page.wait("document.querySelectorAll('.timeline .switch-bar').length === 1")
    assert bars(page, "state-bar") == ["running", "paused", "running", "paused", "running", "draining"]
    assert page.errors == []


def test_a_timeline_by_keyboard_and_as_a_list(page: Page, fake: FakeController) -> None:
    has_a_past(fake)
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelectorAll('.timeline .switch-bar').length === 2")
    label = "document.querySelector('.timeline svg').getAttribute('aria-label')"
    assert page.evaluate(label).startswith("Timeline of job train: running, since ")
    assert "1 lost, 1 shrunk, 1 moving, 1 moved" in page.evaluate(label)
    page.evaluate("document.querySelector('.timeline svg').focus()")
    page.press("ArrowLeft")
    assert page.wait(label).endswith(
        "joined: job 'train' goes on with ranks 0, 1, 2, 3, after 500 ms without sums"
    )
    for _ in range(3):
        page.press("ArrowLeft")
    assert page.text(".timeline-text").endswith("lost: rank 1 of job 'train' is lost: <b>silent</b> for 10 s")
    assert page.evaluate("document.querySelector('.timeline .cross').getAttribute('visibility')") == "visible"
    page.press("Escape")
    assert page.text(".timeline-text") == ""
    page.evaluate("document.querySelector('.timeline summary').focus()")
    page.press("Enter")
    page.wait("document.querySelectorAll('.timeline tbody tr').length === 9")
    rows = page.evaluate(
        "[...document.querySelectorAll('.timeline tbody tr')]"
        ".map(r => [...r.cells].slice(1).map(c => c.innerText))"
    )
    assert rows[0] == ["0 ms", "job created", "job 'train' of 4 workers"]
    assert rows[2][1:] == ["policy", "blocks of 64 (and 2 earlier changes)"]
    assert rows[4] == ["10 min", "moved", "job 'train' runs on native, after 250 ms without sums"]
    assert page.errors == []


def test_help(page: Page, fake: FakeController) -> None:
    opened(page, fake)
    page.wait("document.querySelector('tr.job')")
    page.click("tr.job .disclose")
    page.wait("document.querySelector('.timeline-finer a')")
    page.click(".timeline-finer a")
    page.wait("document.querySelector('#trace')?.innerText.includes('switchagg trace timeline')")
    page.click(".top-buttons a")
    page.wait(LIVE)
    assert page.errors == []
