"""The page at `/` in a browser: it fits, shows what the server does, and holds a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.http.app import build_app
from tests.support.fake_engine import FakeEngine, FakeModels, says
from tests.support.live_server import serving
from tools.browser import Browser, find_chromium, open_browser

pytestmark = pytest.mark.slow

LONG = "a-model-with-a-name-that-is-much-longer-than-a-phone-is-wide/and-goes-on-and-on"
SAYS = "To be, or not to be: " + "x" * 300
ASK = """(() => {
  document.getElementById("text").value = "Speak!";
  document.getElementById("ask").requestSubmit();
})()"""


def make_app(*, key_file: Path | None = None) -> Any:
    edge = Edge(EdgeSettings(key_file=key_file))
    models = FakeModels(**{LONG: FakeEngine(says(*SAYS)), "bard": FakeEngine(says("Aye."))})
    return edge.wrap(build_app(models, gate=edge))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(make_app) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    assert program is not None, "these tests need Chromium"
    with open_browser(program) as browser:
        yield browser


def until(browser: Browser, condition: str) -> None:
    """Waits until an expression is true, looking whenever the page changes; the run's own limit
    ends what hangs."""
    browser.value_of(
        """new Promise(done => {
          const look = () => { if (CONDITION) { watch.disconnect(); done(true); } };
          const watch = new MutationObserver(look);
          watch.observe(document, {subtree: true, childList: true, characterData: true});
          look();
        })""".replace("CONDITION", condition)
    )


def text_of(browser: Browser, selector: str) -> str:
    found: str = browser.value_of(f"document.querySelector({selector!r}).innerText")
    return found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_fits(browser: Browser, address: str, width: int, dark: bool) -> None:
    browser.open(address, width, dark)
    until(browser, "document.querySelectorAll('#model option').length === 2")
    seen = browser.look(address, width, dark)
    assert seen.faults(width, dark) == []


def test_a_conversation(browser: Browser, address: str) -> None:
    browser.open(address, 390, False)
    until(browser, "document.querySelectorAll('#model option').length === 2")
    browser.value_of(ASK)
    until(browser, "document.querySelector('.turn.assistant .note') !== null")
    assert SAYS in text_of(browser, ".turn.assistant")
    assert f"{len(SAYS)} tokens" in text_of(browser, ".turn.assistant .note")
    room = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    content, width = browser.value_of(room)
    assert content <= width
    browser.value_of("document.getElementById('model').value = 'bard'")
    browser.value_of(ASK)
    until(browser, "document.querySelectorAll('.turn.assistant .note').length === 2")
    assert "Aye." in text_of(browser, "#said")
    until(browser, "/tokens made\\s*3\\d\\d/.test(document.getElementById('load').innerText)")
    assert "≤" in text_of(browser, "#latency")
    assert text_of(browser, "#state") == "ready"
    browser.value_of("document.getElementById('clear').click()")
    assert text_of(browser, "#said").strip() == ""


def test_models_are_shown(browser: Browser, address: str) -> None:
    browser.open(address, 1280, False)
    until(browser, "document.querySelectorAll('.model').length === 2")
    shown = text_of(browser, "#models")
    assert LONG in shown and "bard" in shown and "1,024 tokens" in shown


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "page.html"
        path.write_text(text)
        return path

    return make


def test_a_page_that_does_not_fit_is_found(browser: Browser, made: Callable[[str], Path]) -> None:
    wide = made("<meta name=viewport content='width=device-width'><p style='width:900px'>wide</p>")
    assert browser.look(wide, 390, False).faults(390, False)
