"""The tour of a new user: it stops where a user would, and its look at a page is a strict one.

CI takes the tour itself (`make tour`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub import Hub
from tools.browser import BrowserError, Seen, complaint, find_chromium, open_browser
from tools.tour import Failure, User, look, take, value

GOOD = Seen(room=390, content=390, dark=True, text=1)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path, Hub(url="http://hub"))


def program(path: Path, text: str) -> Path:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_steps_are_taken_in_order(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    def first(user: User) -> str:
        """Does one thing."""
        return "one"

    def second(user: User) -> str:
        """Does another."""
        return "two"

    assert take([first, second], user)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" (")[0] for line in lines] == [
        "Does one thing ... one", "Does another ... two"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Failure("a cat", "a dog\n"), "expected: a cat\nfound: a dog"),
        (AssertionError("no '> ' after 'x'"), "no '> ' after 'x'"),
        (BrowserError("Chromium ended"), "Chromium ended"),
    ],
)
def test_the_first_failure_ends_the_tour(user: User, capsys, error: Exception, shown: str) -> None:
    taken = []

    def fails(user: User) -> str:
        """Looks for a cat."""
        raise error

    assert not take([fails, lambda user: taken.append(user) or ""], user)
    assert (capsys.readouterr().out, taken) == (f"Looks for a cat ... failed\n{shown}\n", [])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo yes; exit 3", "expected: `sh -c 'echo yes; exit 3'` to succeed\nfound: exit code 3"),
        ("echo no >&2", "expected: `sh -c 'echo no >&2'` to print 'yes'\nfound: no"),
    ],
)
def test_a_command_must_succeed_and_say_what_is_expected(
    user: User, script: str, message: str
) -> None:
    assert user.run("sh", "-c", "echo yes", says="yes") == "yes\n"
    with pytest.raises(Failure) as caught:
        user.run("sh", "-c", script, says="yes")
    assert str(caught.value).startswith(message)


def test_the_user_has_set_nothing(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "INGOT_CACHE", "HF_TOKEN", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("INGOT_CXX", "g++")
    environment = user.environment
    assert {name for name, value in environment.items() if value == "x"} == set()
    assert (environment["HOME"], environment["HF_ENDPOINT"]) == (str(user.folder), "http://hub")
    assert environment["INGOT_CXX"] == "g++"


def test_a_value_is_what_stands_beside_its_name() -> None:
    text = "golden    replaying\r\n  size     3 MB, in all\r\n  golden   4 prompts\r\n"
    assert (value("size", text), value("golden", text)) == ("3 MB, in all", "4 prompts")
    with pytest.raises(Failure, match="expected: a line that begins with 'error'"):
        value("error", text)


def test_a_page_that_nobody_looked_at_is_said_to_be_so(user: User) -> None:
    assert look(user).startswith("no Chromium found, so the page was not looked at")


@pytest.mark.parametrize(
    ("seen", "faults"),
    [
        (GOOD, []),
        (Seen(375, 375, True, 1), []),
        (Seen(390, 391, True, 1), ["its content is 391 pixels wide, and there are 390"]),
        (Seen(980, 980, True, 1), ["the page is laid out for 980 pixels"]),
        (Seen(390, 390, False, 1), ["the theme is light"]),
        (Seen(390, 390, True, 0), ["nothing is shown"]),
        (Seen(390, 390, True, 1, ("td x",)), ["its td x is narrower than what it holds"]),
        (Seen(390, 390, True, 1, (), ("no",)), ["an error on its console: no"]),
    ],
)
def test_a_fault_is_told(seen: Seen, faults: list[str]) -> None:
    assert seen.faults(width=390, dark=True) == faults


def event(method: str, **parameters: object) -> dict[str, object]:
    return {"method": method, "params": parameters}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (event("Page.loadEventFired"), ""),
        (event("Runtime.consoleAPICalled", type="log", args=[{"value": "hello"}]), ""),
        (event("Runtime.consoleAPICalled", type="error", args=[{"value": "no"}]), "no"),
        (event("Log.entryAdded", entry={"level": "error", "text": "not found"}), "not found"),
        (event("Runtime.exceptionThrown", exceptionDetails={"text": "Uncaught"}), "Uncaught"),
    ],
)
def test_errors_on_the_console_are_complaints(event: dict[str, object], text: str) -> None:
    assert complaint(event) == text


def test_a_browser_is_found_where_users_have_it(tmp_path: Path) -> None:
    home, on_path = tmp_path / "home", tmp_path / "bin"
    environment = {"PATH": str(on_path), "HOME": str(home)}
    assert find_chromium(environment) is None
    cache = home / ".cache" / "ms-playwright"
    downloaded = program(cache / "chromium-1" / "chrome-linux" / "chrome", "")
    assert find_chromium(environment) == str(downloaded)
    installed = program(on_path / "google-chrome", "")
    assert find_chromium(environment) == str(installed)
    assert find_chromium({**environment, "CHROMIUM": "named"}) == "named"


def test_a_browser_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = program(tmp_path / "chromium", "echo no libnss3.so; exit 127")
    with (
        pytest.raises(BrowserError, match=r"ended before it answered\nno libnss3\.so"),
        open_browser(str(broken)),
    ):
        pass


if CHROMIUM := find_chromium():
    PHONE = '<meta name="viewport" content="width=device-width"><body style="margin:0">'
    PAGES = {
        "good": (f"{PHONE}fits", ""),
        "wide": (f'{PHONE}<div style="width:391px">wide</div>', "its content is 391 pixels wide"),
        "desktop": ("<body>no viewport", "the page is laid out for 980 pixels"),
        "broken": (f"{PHONE}<script>none()</script>text", "none is not defined"),
        "lacking": (f'{PHONE}<img src="none.png">text', "ERR_FILE_NOT_FOUND"),
        "empty": (PHONE, "nothing is shown"),
        "hidden": (
            f'{PHONE}<div id=box style="overflow:auto"><p style="width:500px">text</div>',
            "its div box is narrower than what it holds",
        ),
        "spilled": (
            f'{PHONE}<p class=narrow style="width:40px">incomprehensibilities</p>',
            "its p narrow is narrower than what it holds",
        ),
        "breaks": (f'{PHONE}<button onclick="none()">a</button>', "none is not defined"),
        "grows": (
            f'{PHONE}<input type=range max=900 oninput="this.nextSibling.style.width='
            "this.value+'px'\"><p>text</p>",
            "its content is 900 pixels wide",
        ),
    }

    def test_chromium_sees_what_is_wrong_on_a_phone(tmp_path: Path) -> None:
        found = {}
        with open_browser(CHROMIUM) as browser:
            for name, (text, _) in PAGES.items():
                page = tmp_path / f"{name}.html"
                page.write_text(text)
                found[name] = "\n".join(browser.look(page, 390, dark=True).faults(390, dark=True))
        assert found.pop("good") == ""
        assert {name for name in found if PAGES[name][1] in found[name]} == found.keys()
