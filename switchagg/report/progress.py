"""A line on a terminal while something takes long; nothing elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

AFTER: Final = 1.0  # seconds without an end, before anything is shown


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Shows on standard error, if it is a terminal, what the body does, once that takes more than a second.

    The line is gone afterwards. The body must not print: print between two of these.

    Yields:
        A function that changes the text.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    spinner = Spinner("dots", text)
    ended = threading.Event()

    def show() -> None:
        # Redirected, what others write to standard output would come out on standard error.
        live = Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        if not ended.wait(AFTER):
            with live:
                ended.wait()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield lambda now: spinner.update(text=now)
    finally:
        ended.set()
        thread.join()
