"""Progress on a terminal: the live panel; plain lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from switchagg.demo.outcome import StepRecord
from switchagg.demo.progress import LiveProgress, PlainProgress, Rate
from switchagg.demo.settings import Settings

SETTINGS = Settings(steps=20)
SECONDS = dict.fromkeys(("compute", "scan", "quantize", "wire", "wait", "decode", "other", "update"), 0.001)


def record(step: int) -> StepRecord:
    return StepRecord(step, 7.0 - step / 10, 0.055, 0.072, 1_250_000.0, 1_300_000.0, 0.0, SECONDS)


def show(progress: LiveProgress | PlainProgress) -> None:
    with progress:
        progress.phase("reading")
        progress.training(32, SETTINGS)
        for step in range(1, 21):
            progress.step(record(step))
        progress.note("step 20: THE WEIGHTS DIFFER: ...")
        progress.reference(40, 40)


def test_live_panel_has_the_figures() -> None:
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, width=100))
    show(progress)
    text = stream.getvalue()
    for piece in (
        "4 workers train",
        "nats/word",
        "21.1x less",
        "7.2% of blocks",
        "steps/s",
        "DIFFER",
    ):
        assert piece in text


def test_plain_lines_are_few_and_carry_the_figures() -> None:
    stream = io.StringIO()
    show(PlainProgress(stream))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("step ")]
    assert 10 <= len(lines) <= 13
    assert lines[0].startswith(
        "step 1/20  loss 6.9000  gradient 5.5% non-zero at a worker, 7.2% at any  sent 1.25 MB"
    )
    assert "\x1b" not in stream.getvalue()


def test_rate_counts_steps_a_second() -> None:
    rate = Rate()
    assert rate.tick(10.0) == 0.0
    assert [round(rate.tick(10.0 + step / 4), 6) for step in (1, 2, 3)] == [4.0, 4.0, 4.0]
