"""The bundled model, opened once for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.runtime.llm import LLM
from ingot.runtime.output import CompletionOutput
from ingot.runtime.params import SamplingParams

PROMPT = "ROMEO:\n"

Write = Callable[..., list[CompletionOutput]]


@pytest.fixture(scope="module")
def shakespeare(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.fixture
def write(shakespeare: LLM) -> Write:
    """Completes a prompt in a form; the completions."""

    def complete(outputs: Any, **params: Any) -> list[CompletionOutput]:
        given = {"temperature": 1.0, "max_tokens": 400, "seed": 0, **params}
        asked = SamplingParams(structured_outputs=outputs, **given)
        return shakespeare.generate(PROMPT, asked, use_tqdm=False)[0].outputs

    return complete
