"""What a graph says of the matrices in it, against what the blueprint of its module says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.compiler.export import export
from ingot.compiler.packed_sizes import matrices_of, weights_of
from ingot.compiler.quantization.choose import Matrices, alike
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.models import registry
from tests.models.test_blueprint import config_of
from tests.support.core import core
from tests.support.tiny_models import EVERY

SIDE_BY_SIDE = "cohere2"  # attention and MLP read the same rows, and stay apart
SOME = ("gpt2", "qwen3_tied", "qwen3moe_unnormalised", SIDE_BY_SIDE, "deepseek_v2_bias", "qwen35")


def facts(matrices: Matrices) -> list[object]:
    """All but what `reads` is called."""
    return [
        (name, replace(matrix, reads=""), sorted(alike(matrices, [name])))
        for name, matrix in matrices.items()
    ]


@pytest.mark.parametrize("name", core(*SOME, further=[], slow=EVERY))
def test_a_graph_has_the_matrices_of_the_blueprint(name: str) -> None:
    config = config_of(name)
    graph = export(registry.build(config, max_model_len=64), config)
    told = matrices_of(weights_of(registry.blueprint(config)))
    assert facts(matrices_in(graph)) == facts(told) != []
