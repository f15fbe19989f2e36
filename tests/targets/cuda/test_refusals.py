"""What no kernel for a GPU takes is refused by name, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.errors import CodegenError
from ingot.targets.cuda import toolchain
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import TARGET, sketching

LATENT = "operation head_linear at model.layers.0.self_attn.k_b_proj has no CUDA kernel head_linear"
REFUSED: list[tuple[str, str, str]] = [
    ("deepseek_v2", "none", LATENT),
    ("deepseek_v3_experts", "int8", LATENT),
]


@pytest.mark.parametrize("name, quantize, found", core(REFUSED[0], further=REFUSED))
def test_a_compile_names_the_op_that_has_no_kernel(
    name: str, quantize: str, found: str, tmp_path: Path
) -> None:
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    options = CompileOptions(targets=(TARGET,), quantize=quantize, max_model_len=32)
    with sketching(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "build", lambda *_: pytest.fail("something was built"))
        with pytest.raises(CodegenError) as raised:
            compile_model(model_dir, tmp_path / "a", options)
    assert raised.value.found == found
    assert "linear_add" in raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
