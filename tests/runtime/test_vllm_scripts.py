"""vLLM's basic offline examples, in our words, run after a change of their imports and no other."""

from __future__ import annotations

import json
import sys

import pytest

from ingot.runtime.generation_config import FILE
from tests.runtime.fake_model import greedy, logprobs, write_fake
from tests.support.vllm_script import SCRIPTS, ported

DEFAULTS = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    files = {FILE: json.dumps(DEFAULTS).encode()}
    return write_fake(tmp_path_factory.mktemp("scripts") / "fake.ingot", files=files)


@pytest.fixture
def run(artifact, monkeypatch, capsys):
    """Runs a script; the lines that it prints."""

    def run(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, str(artifact)])
        exec(compile(ported(name), name, "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out.splitlines()

    return run


def test_basic(run):
    lines = run("basic")
    assert [line.partition(" -> ")[0] for line in lines] == [
        "'The dog is'", "'A lazy fox'", "'the the'", "'héllo'"
    ]  # fmt: skip


def test_defaults(run):
    assert run("defaults") == ["0.6 0.9 16", "3"]


def test_chat(run):
    lines = run("chat")
    assert lines[0].startswith("<s>[system]Be brief.[user]Hello[assistant]Hello!")
    assert "[user]Write about dogs.[assistant] -> " in lines[0]
    assert len(set(lines[1:4])) == 1 and lines[1].startswith("<s>[system]Be brief.[user]Hello")
    assert lines[4].startswith("(system)(user)(assistant)(user) -> ")


def test_logprobs(run):
    prompt, new = [5, 6, 7], greedy([5, 6, 7], 2)
    rows = logprobs(prompt + new)
    lines = [line.split(" ", 1) for line in run("logprobs")]
    assert lines[0] == ["5", "None"]
    shown = [(int(token), float(logprob)) for token, logprob in lines[1:3]]
    assert shown == [(t, pytest.approx(rows[i][t], abs=1e-4)) for i, t in enumerate(prompt[1:])]
    assert [(int(token), rest[:1]) for token, rest in lines[3:5]] == [(t, "1") for t in new]
    total = rows[2][new[0]] + rows[3][new[1]]
    assert float(lines[5][0]) == pytest.approx(total, abs=1e-4)


def test_prefixes(run):
    assert run("prefixes") == ["True", "True"]


def test_stops(run):
    assert run("stops") == ["stop True", "True"] * 2


def test_beams(run):
    lines = run("beams")
    scores = [float(line.split()[0]) for line in lines]
    assert len(lines) == 6 and all(line.split()[1] == "5" for line in lines)
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3:] == sorted(scores[3:], reverse=True)
    assert all("'<s>The dog" in line for line in lines[:3])


def test_streaming(run):
    assert run("streaming") == ["True 1 two", "True", "True"]


def test_every_script_has_a_test():
    names = {path.stem for path in SCRIPTS.glob("*.py")}
    assert names and all(f"test_{name}" in globals() for name in names)
