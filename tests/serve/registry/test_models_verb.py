"""`ingot models` against a server, and the page on models."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ingot.cli.main import main
from ingot.serve.http.app import build_app
from ingot.serve.registry.registry import ModelRegistry
from tests.serve.registry.fakes import FakeOpener
from tests.support.live_server import serving
from tests.support.page_blocks import ROOT, blocks_of, commands

PAGE = ROOT / "docs" / "serving_models.md"
assert PAGE.name == "serving_models.md"
BLOCKS = [
    block
    for block in blocks_of(PAGE)
    if block.reason == "tested" and not block.text.startswith("ingot serve")
]


@pytest.fixture
def address() -> Iterator[str]:
    """A server of two models that are made up, one of which cannot be loaded."""

    def make():
        registry = ModelRegistry(FakeOpener())
        registry.register("bard", "one:5000000", aliases=["poet-laureate"])
        registry.register("broken", "bad")
        return build_app(registry)

    with serving(make) as address:
        yield address


def said(capsys, *words):
    code = main(["models", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_models_are_listed_loaded_shown_and_unloaded(capsys, address):
    url = ("--url", address)
    code, out, _ = said(capsys, *url)
    assert code == 0 and "unloaded" in out and "poet-laureate" in out
    assert said(capsys, "ps", *url)[1].strip() == "none"
    assert said(capsys, "load", "bard", *url) == (0, "bard: loaded\n", "")
    code, out, _ = said(capsys, "ps", *url)
    assert code == 0 and "bard" in out and "5.00 MB" in out and "broken" not in out
    assert said(capsys, "reload", "bard", "--source", "two", *url) == (0, "bard: loaded\n", "")
    assert said(capsys, "unload", "bard", "--force", *url) == (0, "bard: unloaded\n", "")
    code, out, _ = said(capsys, "list", "--json", *url)
    assert [each["state"] for each in json.loads(out)] == ["unloaded", "unloaded"]


def test_a_model_is_loaded_with_settings_of_its_own_and_pinned(capsys, address):
    url = ("--url", address)

    def shown(name):
        model = json.loads(said(capsys, "load", name, "--json", *url)[1])
        return model["settings"], model["pinned"]

    settings = "--threads 2 --max-model-len 1k --keep-alive 9 --priority 3 --watchdog 5".split()
    assert said(capsys, "load", "poet", "--source", "two", *settings, "--pin", *url)[0] == 0
    expected = {"threads": 2, "context": 1000, "keep_alive": 9, "priority": 3, "watchdog": 5}
    assert shown("poet") == (expected, True)
    assert "loaded, pinned" in said(capsys, *url)[1]
    assert said(capsys, "load", "poet", "--unpin", *url)[0] == 0
    assert shown("poet") == (expected, False)
    assert said(capsys, "load", "poet", "--source", "two", *settings, *url)[0] == 0  # nothing new
    for changed in (("--source", "three"), ("--threads", "4")):
        code, _, err = said(capsys, "load", "poet", *changed, *url)
        assert code == 2 and "poet has another" in err and "reload" in err
    assert shown("poet") == (expected, False)
    assert said(capsys, "reload", "poet", "--threads", "4", *url)[0] == 0
    assert shown("poet") == ({"threads": 4}, False)


def test_what_cannot_be_done_is_said(capsys, address):
    url = ("--url", address)
    code, _, err = said(capsys, "load", "broken", *url)
    assert code == 1 and "damaged" in err
    assert "failed" in said(capsys, *url)[1]
    code, _, err = said(capsys, "load", "nobody", *url)
    assert code == 2 and "nobody" in err
    assert said(capsys, "list", "--url", "http://127.0.0.1:1")[0] == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("load",), "`ingot models load` needs a name"),
        (("ps", "bard"), "`ingot models ps` takes no name"),
        (("load", "bard", "--force"), "--force is given with load"),
        (("unload", "bard", "--source", "x"), "--source is given with unload"),
        (("unload", "bard", "--threads", "2"), "a setting (threads) is given with unload"),
        (("reload", "bard", "--pin"), "--pin is given with reload"),
        (("eat", "bard"), "ACTION is 'eat'"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(capsys, words, text):
    code, _, err = said(capsys, *words)
    assert code == 2 and text in err


def test_the_key_of_the_environment_is_sent(monkeypatch, capsys):
    seen = []

    async def app(scope, receive, send):
        seen.append(dict(scope["headers"]).get(b"authorization"))
        head = {"type": "http.response.start", "status": 200, "headers": []}
        await send(head)
        await send({"type": "http.response.body", "body": b'{"data": []}'})

    monkeypatch.setenv("INGOT_API_KEY", "mine")
    with serving(lambda: app) as address:
        assert said(capsys, "--url", address)[0] == 0
    assert seen == [b"Bearer mine"]


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "bash"], ids=lambda block: block.place
)
def test_commands_of_the_page_do_what_it_says(capsys, address, block):
    for command in commands(block.text):
        _, verb, *words = shlex.split(command)
        if words[:2] == ["unload", "poet"]:
            said(capsys, "load", "poet", "--source", "x", "--url", address)
        assert main([verb, *words, "--url", address]) == 0, capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.place
)
def test_programs_of_the_page_run(shakespeare_artifact, block):
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=shakespeare_artifact.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
