"""Headless Chromium for tests, driven by the DevTools protocol over a pair of pipes: no driver, no websocket.

Chromium reads commands on its file descriptor 3 and answers on 4, JSON texts that end in a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER: Final = 120.0  # seconds; a busy machine takes a while to start a browser


def find_chromium() -> str | None:
    """Returns the path of a Chromium, SWITCHAGG_CHROMIUM's if that is set; None where there is none."""
    if given := os.environ.get("SWITCHAGG_CHROMIUM"):
        return shutil.which(given)
    return next(filter(None, map(shutil.which, NAMES)), None)


# Puts the pipes where Chromium looks for them, whatever their numbers are here.
_LAUNCH: Final = """
import os, sys
pipes = [os.dup(int(number)) for number in sys.argv[1:3]]
while min(pipes) < 5:
    pipes = [os.dup(number) for number in pipes]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab.

    Attributes:
        errors: what the page has complained of: exceptions, console errors, refused scripts, failed requests.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        self.errors: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command of the protocol and returns its result."""
        return self._browser.call(method, parameters, self._session)

    def close(self) -> None:
        """Ends the tab: a page that is open goes on to draw, and to ask for a controller that is gone."""
        self._browser.call("Target.disposeBrowserContext", {"browserContextId": self._context})

    def resize(self, width: int, height: int) -> None:
        """Makes the window this large, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, **features: str) -> None:
        """Sets media features: ``prefer(prefers_color_scheme="dark")``."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()],
        )

    def open(self, url: str) -> None:
        """Begins to load `url`."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            said = details.get("exception", {}).get("description") or details.get("text")
            raise AssertionError(f"{expression}: {said}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 150.0) -> Any:
        """Returns the value of `expression` once it is true."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                # An element comes back as an empty object, which says nothing.
                if value := self.evaluate(f"((found) => found instanceof Node || found)({expression})"):
                    return value
            if time.monotonic() > deadline:
                body = self.evaluate("document.body?.innerText")
                raise AssertionError(f"{expression} never came true; errors {self.errors}; the page:\n{body}")
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """Returns the text that a person sees of an element; an empty string where there is none."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def count(self, selector: str) -> int:
        """Returns how many elements there are."""
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        """Clicks the middle of an element, as a mouse would."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: "
            "'center', behavior: 'instant'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def hover(self, selector: str, share: float = 0.5) -> None:
        """Moves the mouse onto an element, `share` of its width from the left."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: "
            "'center', behavior: 'instant'}); const r = e.getBoundingClientRect(); "
            f"return [r.x + r.width * {share}, r.y + r.height / 2]; }})()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def type(self, text: str) -> None:
        """Types into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses one key, named as in KeyboardEvent.key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes.get(key, 0),
                **(extra if kind == "keyDown" else {}),
            )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Writes a PNG of what is seen, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _heard(self, method: str, said: Mapping[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if said["type"] in {"error", "warning", "assert"}:
                self.errors.append(" ".join(str(each.get("value", each)) for each in said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] in {"error", "warning"}:
                self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}".strip())


class Browser:
    """A Chromium that runs until `close()`."""

    def __init__(self, executable: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="switchagg-chromium-", ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-ISc",
                _LAUNCH,
                str(commands),
                str(answers),
                executable,
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-default-apps",
                "--disable-sync",
                "--no-first-run",
                "--no-proxy-server",
                "--hide-scrollbars",
                f"--user-data-dir={self._folder.name}",
            ],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._listen, name="chromium", daemon=True)
        self._reader.start()

    def page(self) -> Page:
        """Opens a tab with cookies and storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})
        session = self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = Page(self, session["sessionId"], context)
        self._pages[session["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(
        self, method: str, parameters: Mapping[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Sends one command and returns its result. Fails on an error, or where no answer comes."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
            message: dict[str, Any] = {"id": number, "method": method, "params": dict(parameters or {})}
            if session is not None:
                message["sessionId"] = session
            os.write(self._write, json.dumps(message).encode() + b"\0")
        try:
            said = answer.get(timeout=ANSWER)
        except queue.Empty:
            raise AssertionError(f"chromium did not answer {method} within {ANSWER:g} s") from None
        assert "error" not in said, f"{method}: {said['error']}"
        return dict(said["result"])

    def close(self) -> None:
        """Ends the browser and all its processes."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._write)
        self._reader.join(10)
        os.close(self._read)
        self._folder.cleanup()

    def _listen(self) -> None:
        buffer = b""
        while piece := os.read(self._read, 65536):
            buffer += piece
            *messages, buffer = buffer.split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        for answer in list(self._waiting.values()):
            answer.put({"error": "chromium has ended"})

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._waiting.pop(message["id"]).put(message)
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page._heard(message["method"], message["params"])


@contextlib.contextmanager
def browser(executable: str) -> Iterator[Browser]:
    """A browser for the length of a block."""
    running = Browser(executable)
    try:
        yield running
    finally:
        running.close()
