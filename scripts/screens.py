"""Draws docs/images/screens-*.png and page.png: the controller's page, a report and the site, in a browser.

    make docs                                              the site, in build/site
    .venv/bin/switchagg demo --out demo-report  a report
    .venv/bin/python -m scripts.screens --report demo-report/index.html

Each picture has three widths beside each other, light above and dark below, at half of their size.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from PIL import Image

from tests.browser import Browser, Page, browser, find_chromium
from tests.switchagg.control.http.fake_controller import FakeController, fake_controller, fill

REPOSITORY: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = REPOSITORY / "docs" / "images"
WIDTHS: Final = (1440, 820, 390)
HEIGHT: Final = 1400
GAP: Final = 12
THEMES: Final = ("light", "dark")
LARGE: Final = ("light", 1440)
"""The look of page.png."""


def busy(fake: FakeController) -> str:
    """Fills a controller with five jobs, and the first with a past; returns its name."""
    fill(fake, 5, 4, seed=11)
    now = fake.now = time.time()  # it stands still
    first = next(job for job in fake.jobs if job["state"] == "running")
    name, world = first["name"], range(first["world_size"])
    first.update(age=1500.0, on_loss="shrink", switch="rack-1", lost=[])
    for member in first["members"]:
        member.update(state="joined", silent=0.4)
    first["rates"]["collectives"] = 12.0
    for each in fake.history[name]:
        each["collectives"] = 0 if 108 < each["t"] - now + 600 < 111 else 10 + each["GBps"]
    fake.events = [event for event in fake.events if event["job"] != name]
    ranks = [", ".join(str(rank) for rank in world if rank != gone) for gone in (1, None)]

    def add(ago: float, kind: str, text: str, switch: str | None = "rack-1") -> None:
        event = {"job": name, "tenant": first["tenant"], "switch": switch, "time": now - ago}
        fake.add_event(kind, f"job '{name}' {text}", **event)

    add(1500, "job_created", f"of {len(world)} workers", None)
    add(1462, "opened", f"runs with {len(world)} workers", "rack-2")
    add(1300, "policy", "skips zeros, blocks of 256", "rack-2")
    add(910, "moving", "goes over to rack-1: switch 'rack-2' is down: connection refused", "rack-2")
    add(909.7, "moved", "runs on rack-1")
    add(492, "lost", "has lost rank 1: silent for 10 s")
    add(490, "shrunk", f"goes on with ranks {ranks[0]}: silent for 10 s")
    add(240, "paused", "pauses: rank 1 is back")
    add(239.4, "joined", f"goes on with ranks {ranks[1]}: rank 1 is back")
    fake.events.sort(key=lambda event: float(event["time"]))
    for number, event in enumerate(fake.events):
        event["n"] = number + 1
    return str(name)


def save(image: Image.Image, name: str) -> None:
    """Writes a picture with 255 colours, those that it has most of."""
    target = IMAGES / name
    few = image.quantize(255, Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE)
    few.save(target, optimize=True)
    print(f"{target.relative_to(REPOSITORY)}: {target.stat().st_size} bytes")


def screens(running: Browser, name: str, show: Callable[[Page], None]) -> None:
    """Writes one picture of what `show` opens."""
    sizes = [(width // 2, HEIGHT // 2) for width in WIDTHS]
    whole = Image.new(
        "RGB", (sum(w for w, _ in sizes) + GAP * (len(sizes) - 1), HEIGHT + GAP), (128, 128, 128)
    )
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        for row, theme in enumerate(THEMES):
            left, page = 0, running.page()
            page.prefer(prefers_color_scheme=theme)
            for width, size in zip(WIDTHS, sizes, strict=True):
                page.resize(width, HEIGHT)
                show(page)
                time.sleep(1)  # until what is drawn on resizing is drawn
                page.screenshot(shot)
                with Image.open(shot) as image:
                    small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
                    if (name, theme, width) == ("job", *LARGE):
                        save(image.convert("RGB"), "page.png")
                whole.paste(small, (left, row * (size[1] + GAP)))
                left += size[0] + GAP
    save(whole, f"screens-{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, help="the report's index.html; without it, its picture stays")
    parser.add_argument("--site", type=Path, default=REPOSITORY / "build" / "site", help="folder of the site")
    args = parser.parse_args()
    executable = find_chromium()
    if executable is None:
        parser.error("there is no Chromium here: install it, or name one in SWITCHAGG_CHROMIUM")
    for file in (args.report, args.site / "index.html"):
        if file is not None and not file.is_file():
            parser.error(f"there is no {file}")
    with browser(executable) as running, fake_controller(interval=0.5) as fake:
        name = busy(fake)

        def job(page: Page) -> None:
            page.open(fake.url)
            page.wait(f"document.querySelectorAll('tr.job').length === {len(fake.jobs)}")
            chosen = f"[...document.querySelectorAll('.disclose')].find(e => e.innerText.includes('{name}'))"
            page.evaluate(f"{chosen}.click()")
            page.wait("document.querySelectorAll('.timeline .switch-bar').length === 2")
            page.wait("document.querySelector('.rate-area').getAttribute('d').length > 500")
            page.evaluate("document.querySelector('#jobs').scrollIntoView()")

        def file(path: Path) -> Callable[[Page], None]:
            def show(page: Page) -> None:
                page.open(path.resolve().as_uri())
                page.wait("document.readyState === 'complete' && document.querySelector('main')")

            return show

        def top(page: Page) -> None:
            page.open(fake.url)
            page.wait(f"document.querySelectorAll('tr.job').length === {len(fake.jobs)}")

        screens(running, "page", top)
        screens(running, "job", job)
        if args.report is not None:
            screens(running, "report", file(args.report))
        screens(running, "site", file(args.site / "tutorials" / "first-hour.html"))


if __name__ == "__main__":
    main()
