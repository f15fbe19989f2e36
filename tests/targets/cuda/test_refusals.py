"""What no kernel for a GPU takes is refused by name, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.errors import CodegenError
from ingot.models.model_dir import ModelDir
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.generate import EMITTERS
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import TARGET, sketching

LATENT = "operation head_linear at model.layers.0.self_attn.k_b_proj has no CUDA kernel head_linear"


def test_a_compile_names_the_op_that_has_no_kernel(tmp_path: Path) -> None:
    """Today every op has one, so this takes a kernel away."""
    model_dir = save_random("deepseek_v2", tmp_path / "model", "bfloat16", tokenizer=True)
    options = CompileOptions(targets=(TARGET,), max_model_len=32)
    with sketching(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "build", lambda *_: pytest.fail("something was built"))
        patch.delitem(EMITTERS, "head_linear")  # type: ignore[arg-type]
        with pytest.raises(CodegenError) as raised:
            compile_model(ModelDir.open(model_dir), tmp_path / "a", options)
    assert raised.value.found == LATENT
    assert "linear_add" in raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
