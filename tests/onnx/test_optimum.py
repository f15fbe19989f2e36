"""Optimum's classes for ONNX Runtime load what an export writes, and generate as it does.

Optimum needs an older transformers than the judge of every family. So it lies in a folder of its
own, which `make test-slow` makes, and runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.end_to_end.support import random_tokens
from tests.onnx.support import CACHED, exported, greedy
from tests.support.page_blocks import blocks_of

OPTIMUM = ROOT / "build" / "optimum"
PAGE = ROOT / "docs" / "onnx.md"
COUNT = 24
# Of these Optimum knows the shape of keys and values.
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt2", "granite")
# Of others it expects keys and values for every query head, each hidden_size / heads wide.
OTHERS = ("gemma2", "phi3", "glm4", "deepseek_v3")
PROMPTS = [random_tokens(5), random_tokens(30)]
GENERATE = """
model.generation_config.eos_token_id = None
longest = max(map(len, prompts))
ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
made = model.generate(
    ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0
)
print(json.dumps(made[:, longest:].tolist()))
"""


def page_lines() -> tuple[str, str, str]:
    """What the page says: the import, loading with keys and values, and without."""
    (block,) = (each for each in blocks_of(PAGE) if each.reason == "tested")
    imports, cached, plain = filter(None, block.text.splitlines())
    return imports, cached, plain


def by_optimum(folder: Path, prompts: list[list[int]], *, cached: bool) -> list[list[int]]:
    """The likeliest tokens after each of the prompts, which run as a batch."""
    assert OPTIMUM.is_dir(), "make build/optimum installs it"
    imports, *loads = page_lines()
    load = loads[0 if cached else 1].replace('"DIR"', repr(str(folder)))
    start = f"import json, sys, torch\nprompts, count = {prompts}, {COUNT}\n"
    check = f"assert model.can_use_cache is {cached}"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((start, imports, load, check, GENERATE))],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(OPTIMUM), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_optimum_generates_with_keys_and_values(name: str) -> None:
    """It finds the file by its name, and a batch is padded on the left."""
    _, folder = exported(name, opset=23, max_model_len=300)
    expected = [greedy(folder / CACHED, prompt, COUNT) for prompt in PROMPTS]
    assert by_optimum(folder, PROMPTS, cached=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_optimum_runs_other_models_without_them(name: str) -> None:
    _, folder = exported(name, opset=23, max_model_len=300)
    for prompt in PROMPTS:
        expected = greedy(folder / CACHED, prompt, COUNT)
        assert by_optimum(folder, [prompt], cached=False) == [expected]
