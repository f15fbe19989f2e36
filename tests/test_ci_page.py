"""`docs/ci.md`: its workflow is the one of the examples, and its commands do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ingot.cli.main import main
from ingot.cli.parser import build_parser
from tests.support.tiny_models import save_random

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "ci.md").read_text()
WORKFLOW = (ROOT / "examples" / "check_model.yml").read_text()
INSTALL = 'pip install "ingot-lm[compile]"'


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language} tested \S+\n(.*?)^```$", PAGE, re.M | re.S)


def page_commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines()]


def steps(options: str) -> list[str]:
    """The commands of the workflow for one entry of its matrix."""
    runs = re.findall(r"- run: (.*)", WORKFLOW)
    return [run.replace("${{ matrix.options }}", options) for run in runs]


def matrix() -> list[str]:
    (entries,) = re.findall(r"options: \[(.*)\]", WORKFLOW)
    return re.findall(r'"([^"]*)"', entries)


def test_the_page_shows_the_workflow_of_the_examples() -> None:
    assert blocks("yaml") == [WORKFLOW]


def test_every_command_is_one_of_ingot() -> None:
    assert len(matrix()) == 4
    commands = page_commands() + [run for options in matrix() for run in steps(options)]
    assert commands.count(INSTALL) == 4
    for command in commands:
        if command != INSTALL:
            program, *words = shlex.split(command)
            assert program == "ingot" and build_parser().parse_args(words).verb


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as the page describes it, with goldens that its first command recorded."""
    folder = tmp_path_factory.mktemp("ci")
    save_random("llama", folder / "model", "bfloat16", tokenizer=True)
    (folder / "prompts.txt").write_text("Once upon a time\nThe quick brown fox\n")
    record = next(command for command in page_commands() if "record" in command)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(record)[1:]) == 0
    return folder


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("options", matrix())
def test_the_workflow_passes(
    folder: Path, options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (compiled, verified) = (shlex.split(run)[1:] for run in steps(options) if run != INSTALL)
    assert main([*compiled, "--force"]) == 0
    capsys.readouterr()
    assert main(verified) == 0
    out = capsys.readouterr().out
    assert "hashes match" in out and "18 prompts" in out and "divergence" in out


@pytest.mark.thorough
def test_the_workflow_fails_for_other_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    save_random("llama", folder / "other" / "model", "bfloat16", seed=1, tokenizer=True)
    goldens = str(folder / "goldens.json")
    monkeypatch.chdir(folder / "other")
    assert main(["compile", "model", "-o", "model.ingot", *shlex.split(matrix()[0])]) == 0
    assert main(["verify", "model.ingot", "--golden", goldens]) == 4
    assert "mean error" in capsys.readouterr().err
