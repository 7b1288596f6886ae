"""Progress of the demo: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from switchagg.demo import model
from switchagg.demo.outcome import WORD_BYTES, StepRecord, ring_bytes
from switchagg.demo.settings import Settings
from switchagg.report.format import size

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 60
_PLAIN_LINES = 10


def sparkline(values: list[float], width: int = _SPARK_WIDTH) -> str:
    """Values as a row of bars, at most `width` of them, each the mean of its part."""
    if not values:
        return ""
    columns = min(width, len(values))
    bounds = [len(values) * column // columns for column in range(columns + 1)]
    parts = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(parts), max(parts)
    span = (high - low) or 1.0
    return "".join(_BARS[round((part - low) / span * (len(_BARS) - 1))] for part in parts)


class Rate:
    """Steps a second over the last few seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=50)

    def tick(self, now: float) -> float:
        """Counts a step at `now` (seconds); returns steps a second, 0 before two steps."""
        self._times.append(now)
        span = self._times[-1] - self._times[0]
        return (len(self._times) - 1) / span if span > 0 else 0.0


def _ring(settings: Settings) -> float:
    return ring_bytes(WORD_BYTES * model.parameter_count(settings), settings.workers)


def step_text(record: StepRecord, settings: Settings, rate: float) -> str:
    """One plain line about a step."""
    ring = _ring(settings)
    less = f" ({ring / record.bytes_sent:.0f}x less than a ring)" if ring and record.bytes_sent else ""
    return (
        f"step {record.step}/{settings.steps}  loss {record.loss:.4f}  "
        f"gradient {record.touched:.1%} non-zero at a worker, {record.union:.1%} at any  "
        f"sent {size(record.bytes_sent)}{less}  {rate:.1f} steps/s"
    )


class PlainProgress:
    """Lines, for logs and pipes. A context manager, like LiveProgress."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._settings: Settings | None = None
        self._rate = Rate()

    def phase(self, text: str) -> None:
        """A new part of the run begins."""
        self.note(f"{text} …")

    def note(self, text: str) -> None:
        """Prints a line."""
        print(text, file=self._stream, flush=True)

    def training(self, bits: int, settings: Settings) -> None:
        """A training through the switch begins."""
        self._settings, self._rate = settings, Rate()
        self.note(f"{settings.workers} workers train through the switch, {bits}-bit lanes …")

    def step(self, record: StepRecord) -> None:
        """Prints every tenth part of the run."""
        assert self._settings is not None
        rate = self._rate.tick(time.monotonic())
        every = max(1, self._settings.steps // _PLAIN_LINES)
        if record.step == 1 or record.step % every == 0 or record.step == self._settings.steps:
            self.note(step_text(record, self._settings, rate))

    def reference(self, done: int, of: int) -> None:
        """Prints a line at the end only: references take seconds."""
        if done == of:
            self.note(f"reference: {of} of {of} steps")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LiveProgress:
    """A panel that is redrawn in place; notes scroll above it. Leaving the context takes the panel away."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = "starting"
        self._settings: Settings | None = None
        self._record: StepRecord | None = None
        self._losses: list[float] = []
        self._sent = 0.0
        self._speed = 0.0
        self._rate = Rate()
        self._bar: tuple[int, int] = (0, 1)
        self._spinner = Spinner("dots")
        # Last: it renders once at birth.
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def phase(self, text: str) -> None:
        """A new part of the run begins."""
        self._phase, self._record = text, None
        self._bar = (0, 1)

    def note(self, text: str) -> None:
        """Prints a line above the panel."""
        style = "bold red" if "DIFFER" in text else "dim"
        self._console.print(Text(text, style=style))

    def training(self, bits: int, settings: Settings) -> None:
        """A training through the switch begins."""
        self.phase(f"{settings.workers} workers train through the switch, {bits}-bit lanes")
        self._settings, self._losses, self._sent = settings, [], 0.0
        self._rate, self._bar = Rate(), (0, settings.steps)

    def step(self, record: StepRecord) -> None:
        """Shows a step in the panel."""
        assert self._settings is not None
        self._speed = self._rate.tick(time.monotonic())
        self._record = record
        self._losses.append(record.loss)
        self._sent += record.bytes_sent
        self._bar = (record.step, self._settings.steps)

    def reference(self, done: int, of: int) -> None:
        """Moves the bar."""
        self._bar = (done, of)

    def _render(self) -> RenderableType:
        done, of = self._bar
        self._spinner.update(text=Text(" " + self._phase, style="bold"))
        parts: list[RenderableType] = [self._spinner]
        if of > 1:
            bar = Table.grid(padding=(0, 2))
            bar.add_row(
                ProgressBar(total=of, completed=done, width=_SPARK_WIDTH), Text(f"{done}/{of}", style="cyan")
            )
            parts.append(bar)
        if self._record is not None and self._settings is not None:
            parts += [Text(), self._figures(self._record, self._settings)]
        return Panel(Group(*parts), title="switchagg demo", border_style="blue", expand=False, padding=(1, 2))

    def _figures(self, record: StepRecord, settings: Settings) -> Table:
        ring = _ring(settings)
        less = f"   {ring / record.bytes_sent:.1f}x less" if ring and record.bytes_sent else ""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column()
        table.add_row("loss", Text(f"{record.loss:.4f} nats/word", style="bold green"))
        table.add_row("", Text(sparkline(self._losses), style="green"))
        table.add_row(
            "gradient",
            f"{record.touched:.1%} non-zero at a worker, {record.union:.1%} of blocks at any worker",
        )
        table.add_row("bytes", f"{size(record.bytes_sent)} a worker and step; a ring {size(ring)}{less}")
        table.add_row("so far", f"{size(self._sent)} sent by each worker")
        table.add_row("speed", f"{self._speed:.1f} steps/s")
        return table

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


Progress = PlainProgress | LiveProgress
