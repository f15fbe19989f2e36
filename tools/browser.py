"""Looks at a page in headless Chromium, which it speaks to through a pipe. No package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLAYWRIGHT = ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/chrome-*/*shell")
PATIENCE = 120  # seconds until a browser that says nothing has failed
HEIGHT = 900
PHONE = 600  # pixels; narrower windows are those of phones
SCROLL_BAR = 20
# Commands come on descriptor 3 and answers go to 4. Root has no sandbox, and a container little
# shared memory; what is shown is our own page.
START = 'exec "$@" 3<&0 4>&1 </dev/null >&2'
OPTIONS = ("--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
PIPE = "--remote-debugging-pipe"
TALLEST = 12_000  # pixels of a picture
# Works every control of the page, looks after each, and leaves them as they were.
MEASURE = """(() => {
  const page = document.documentElement, cut = new Set();
  let content = 0;
  const look = () => {
    content = Math.max(content, page.scrollWidth);
    for (const each of document.body.querySelectorAll("*:not(svg, svg *, input)")) {
      if (each.clientWidth && each.scrollWidth > each.clientWidth + 1) {
        cut.add(`${each.tagName.toLowerCase()} ${each.id || each.className}`.trim());
      }
    }
  };
  look();
  for (const control of document.querySelectorAll("input")) {
    const words = ["text", "search"].includes(control.type);
    const values = words ? ["no such words"] : [control.max, control.min];
    for (const value of [...values, control.defaultValue]) {
      control.value = value;
      control.dispatchEvent(new Event("input", { bubbles: true }));
      control.dispatchEvent(new Event("change", { bubbles: true }));
      look();
    }
  }
  for (const button of document.querySelectorAll("button")) {
    button.click();
    look();
  }
  return {
    room: page.clientWidth,
    content,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    text: document.body.innerText.trim().length,
    cut: [...cut],
  };
})()"""


class BrowserError(Exception):
    """The browser ended, or refused what it was asked for."""


@dataclass(frozen=True)
class Seen:
    """What a page looked like in a window.

    Attributes:
        room: pixels from side to side, without those of a scroll bar.
        content: pixels that the page takes of them; the rest lies outside.
        dark: whether the page was told that dark is wanted.
        text: the number of letters that are shown.
        cut: elements that are narrower than what they hold: it is cut off, hidden until one
            scrolls, or lies over others.
        errors: what the page complained about.
        picture: the page, as a PNG.
    """

    room: int
    content: int
    dark: bool
    text: int
    cut: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    picture: bytes = b""

    def faults(self, width: int, dark: bool) -> list[str]:
        """What is wrong with it in a window that was to be so wide, and dark or not."""
        found = [f"an error on its console: {error}" for error in self.errors]
        if not width - SCROLL_BAR <= self.room <= width:
            found.append(f"the page is laid out for {self.room} pixels")
        if self.content > self.room:
            found.append(f"its content is {self.content} pixels wide, and there are {self.room}")
        found += (f"its {name} is narrower than what it holds" for name in self.cut)
        if self.dark != dark:
            found.append(f"the theme is {'dark' if self.dark else 'light'}")
        if not self.text:
            found.append("nothing is shown")
        return found


def find_chromium(environment: Mapping[str, str] = os.environ) -> str | None:
    """The program: $CHROMIUM, one on the PATH, or one that Playwright has downloaded."""
    if named := environment.get("CHROMIUM"):
        return named
    found = (shutil.which(name, path=environment.get("PATH")) for name in NAMES)
    home = Path(environment.get("HOME", "/"), ".cache", "ms-playwright")
    cache = Path(environment.get("PLAYWRIGHT_BROWSERS_PATH", home))
    downloaded = (str(path) for pattern in PLAYWRIGHT for path in sorted(cache.glob(pattern)))
    return next((path for path in (*found, *downloaded) if path), None)


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """A Chromium that ends, with all its files, at the end of the block. Raises BrowserError.

    Its folder is one of short name: Chromium puts a socket there.
    """
    # Processes of Chromium outlive it by a moment, and write there.
    with tempfile.TemporaryDirectory(prefix="ingot-", ignore_cleanup_errors=True) as name:
        browser = Browser(program, Path(name))
        try:
            browser.begin()
            yield browser
        finally:
            browser.end()


class Browser:
    """A running Chromium, whose files lie in a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        command = [program, *OPTIONS, PIPE, f"--user-data-dir={folder}", "about:blank"]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", START, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
            )
        self._watch = Timer(PATIENCE, self._process.kill)
        self._watch.start()
        self._count = 0
        self._events: list[dict[str, Any]] = []
        self._session = ""

    def begin(self) -> None:
        """Opens a page. Raises BrowserError."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def end(self) -> None:
        """Ends it and waits until it has ended."""
        self._process.terminate()
        self._process.communicate()
        self._watch.cancel()

    def look(self, page: Path | str, width: int, dark: bool) -> Seen:
        """Opens a page in a window of this width, and works its controls. Raises BrowserError."""
        self.open(page, width, dark)
        measured = self.value_of(MEASURE)
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": min(size["height"], TALLEST), "scale": 1}
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        errors = tuple(filter(None, map(complaint, self._events)))
        measured["cut"] = tuple(measured["cut"])
        return Seen(**measured, errors=errors, picture=base64.b64decode(shot["data"]))

    def value_of(self, expression: str) -> Any:
        """What an expression of JavaScript gives in the page, once a promise is kept. Raises
        BrowserError if it fails."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._ask("Runtime.evaluate", **asked)
        if "exceptionDetails" in answer:
            raise BrowserError(complaint({"method": "Runtime.exceptionThrown", "params": answer}))
        return answer["result"].get("value")

    def open(self, page: Path | str, width: int, dark: bool) -> None:
        """Opens a page, a file or an address, in a window of this width, and waits until it is
        there."""
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < PHONE}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self._ask("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Sends a command and returns its result; events that come before it are kept."""
        self._count += 1
        message: dict[str, object] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        while (answer := self._receive()).get("id") != self._count:
            pass
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        """The next message; an event is kept as well."""
        assert self._process.stdout is not None
        text = bytearray()
        while (byte := self._process.stdout.read(1)) != b"\0":
            if not byte:
                raise self._ended()
            text += byte
        message = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message

    def _ended(self) -> BrowserError:
        """An error with the last that the browser said."""
        said = self._log.read_text(errors="replace").splitlines()[-10:]
        return BrowserError("\n".join(["Chromium ended before it answered", *said]))


def complaint(event: Mapping[str, Any]) -> str:
    """What an event says is wrong with the page; empty if it says nothing of the kind."""
    parameters = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            return str(details.get("exception", {}).get("description", details["text"]))
        case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert", "warning"):
            values = (arg.get("value", arg.get("description")) for arg in parameters["args"])
            return " ".join(map(str, values))
        case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
            return str(parameters["entry"]["text"])
    return ""
