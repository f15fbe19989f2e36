"""Every example runs on the bundled model, without torch, and prints what it is about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each prints, as a whole.
PRINTS = {
    "best_of.py": r"( *-\d+\.\d\d  ['\"].*\n){4}",
    "chat.py": r"user: What news.*\nassistant: [^$]*\nuser: And who.*\nassistant: [^$]*",
    "generate.py": r"(--- \w+ after \d+ tokens\n[^$]*){3}",
    "many_at_once.py": r"ROMEO: .*\nJULIET: .*\nHAMLET: .*\n",
    "own_rule.py": r"[^sS]+",
    "perplexity.py": r"perplexity \d+\.\d over \d+ tokens\nleast expected: .* -\d+\.\d\n",
    "shared_prefix.py": r"ROMEO: 0 of .*\nJULIET: \d\d+ of .*\nNURSE: \d\d+ of .*\n",
    "stream.py": r"[^$]*\n--- ended by .*\n",
}
# These make a model of their own, in a folder that they are given.
MAKES_MODEL = {"tiny_model.py", "tiny_voice.py", "walkthrough.py"}
READS_TEXTS = {"search.py"}
# Runs a program on one processor, whatever else the machine does, and fails if it has loaded what
# an artifact does not need.
RUN = """
import os, runpy, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
loaded = {name.partition(".")[0] for name in sys.modules} & {"torch", "transformers"}
sys.exit(f"loaded {loaded}" if loaded else 0)
"""


def output(name: str, given: Path, *start: str, more: tuple[str, ...] = ()) -> str:
    """What an example prints."""
    command = [sys.executable, *(start or ("-c", RUN)), str(EXAMPLES / name), str(given), *more]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_run_and_described():
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == PRINTS.keys() | MAKES_MODEL | READS_TEXTS
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\| \[(\w+\.py)\]\(\1\) \|", page)) == programs
    folders = {path.name for path in EXAMPLES.glob("*/") if path.name != "__pycache__"}
    assert set(re.findall(r"\| \[(\w+/)\]\(\1\) \|", page)) == {f"{f}/" for f in folders}


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_shows(name, shakespeare_artifact):
    printed = output(name, shakespeare_artifact)
    assert re.fullmatch(PRINTS[name], printed), printed


def test_a_search_finds_the_passage_that_is_asked_for(embedder_artifact, tmp_path):
    (tmp_path / "a.txt").write_text("To be\n\nor not to be\n")
    (tmp_path / "b.txt").write_text("that is\nthe question")
    more = (str(tmp_path), "that is\nthe question")
    printed = output("search.py", embedder_artifact, more=more)
    found = re.findall(r"(-?\d\.\d{3})  (\w\.txt): (.+)\n", printed)
    assert found[0] == ("1.000", "b.txt", "that is the question") and len(found) == 3


def test_a_tiny_model_is_written_without_torch(tmp_path):
    printed = output("tiny_model.py", tmp_path / "model")
    assert re.fullmatch(r"\S+/model: \d+ random parameters\n", printed), printed
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}


def test_a_tiny_voice_is_a_model_and_two_states(tmp_path):
    printed = output("tiny_voice.py", tmp_path, "-u")
    assert re.fullmatch(r"\S+: \d+ random numbers and two voices\n", printed), printed
    assert {path.name for path in tmp_path.iterdir()} == {"rwkv7.pth", "anna.state", "ben.state"}


@pytest.mark.thorough
def test_the_walkthrough_shows_every_stage(tmp_path):
    printed = output("walkthrough.py", tmp_path, "-u")
    parts = re.findall(r"^(\d)\. (.+)\n=+$", printed, re.M)
    assert [number for number, _ in parts] == [str(number) for number in range(1, 10)]
    dumps = [path.stem for path in (tmp_path / "passes").glob("[0-9]*.txt")]
    for dump in sorted(dumps)[1:]:
        assert f"\n{dump}. " in printed
    assert "paged_attention" in printed and "group_gates: 2 of 2" in printed
    assert "void gated_linear_" in printed
    assert "'To be, or' goes on with the tokens [" in printed
    assert len(printed.splitlines()) < 400, "nobody reads that in ten minutes"
