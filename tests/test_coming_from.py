"""What docs/coming_from.md claims: every command is one, and every expression runs."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

import ingot
from ingot import compiled
from ingot.cli.parser import NAMES, build_parser
from tests.runtime.fake_model import logprobs, write_fake
from tests.support.pages import files_on_path
from tools.coming_from_rows import LLAMA_CPP, OLLAMA, TRANSFORMERS, VLLM

ROWS = [*VLLM, *LLAMA_CPP, *OLLAMA, *TRANSFORMERS]
COMMANDS = sorted({row.ours for row in ROWS if row.ours.startswith("ingot ")})
EXPRESSIONS = sorted({row.ours for row in ROWS if row.ours} - {*COMMANDS})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return write_fake(tmp_path_factory.mktemp("coming_from") / "fake.ingot", hidden=True)


@pytest.fixture(scope="module")
def llm(artifact):
    with ingot.LLM(artifact) as model:
        yield model


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command):
    program, verb, *rest = shlex.split(command)
    assert program == "ingot" and build_parser().parse_args([verb, *rest])


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_runs(expression, artifact, llm, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(compiled, "resolve", lambda path, options=None: artifact)
    names = {
        **{name: getattr(ingot, name) for name in ingot.__all__},
        "MODEL": artifact,
        "MODEL_DIR": tmp_path,
        "args": ingot.AsyncEngineArgs(artifact),
        "f": lambda generated, logits: logits,
        "llm": llm,
        "messages": [{"role": "user", "content": "the dog"}],
        "text": "the dog",
        "token_ids": [5, 6],
    }
    value = eval(expression, names)
    assert value is not None
    if isinstance(value, (ingot.LLM, ingot.AsyncLLM)):
        value.close()


def test_the_perplexity_is_that_of_the_logits(llm, tmp_path):
    with files_on_path("coming_from.md", tmp_path):
        from perplexity import perplexity

        text = "the quick brown fox"
        tokens = llm.get_tokenizer().encode(text)
        rows = logprobs(tokens)[:-1]
        expected = np.exp(-np.mean([row[t] for row, t in zip(rows, tokens[1:], strict=True)]))
        assert perplexity(llm, text) == pytest.approx(expected, rel=1e-4)


def test_what_has_no_row_of_ours_is_no_verb_of_ours():
    words = {word for row in ROWS if not row.ours for word in re.split("[ -]", row.theirs)}
    assert [word for word in sorted(words) if word.startswith(tuple(NAMES))] == []


def test_every_cell_says_something():
    assert [row.theirs for row in ROWS if not (row.ours or row.remark)] == []
    assert [row.remark for row in ROWS if row.remark and not row.remark.endswith(".")] == []
