"""A model with attention sinks, compiled for CPUs, against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
from ingot.runtime.llm import LLM
from tests.end_to_end.support import LIMITS
from tests.support.sunk_model import error, judged, known, save, tokens


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float32", {}), ("bfloat16", {}), ("bfloat16", {"kv_dtype": "int8"})],
    ids=["float32", "bfloat16", "int8 states"],
)
def test_logits_are_those_of_gpt_oss_attention(
    tmp_path: Path, dtype: str, options: dict[str, str]
) -> None:
    """In one step and in chunks, to the bit. The control: without sinks they are others."""
    model, out = save(tmp_path / "model"), tmp_path / "a.ingot"
    given = CompileOptions(dtype=dtype, max_model_len=128, verify_passes=True, **options)
    with known():
        compile_model(ModelDir.open(tmp_path / "model"), out, given)
    with LLM(out) as llm:
        for length in (1, 17, 100):
            ids = tokens(length)
            whole = llm.logits(ids)
            assert error(torch.tensor(whole), judged(model, ids)) < LIMITS[dtype]
            assert error(torch.tensor(whole), judged(model, ids, sinks=False)) > 4e-2
            for chunk in (1, 7):
                assert llm.logits(ids, chunk_tokens=chunk).tobytes() == whole.tobytes()
