"""The tensors that mixers are published in that keep one record of a sequence."""

from __future__ import annotations

from ingot.models.family import Decays, Rows, Totals, Weights

OURS = "model.layers.{i}.self_attn"


def mamba2_weights(theirs: str, *, bias: bool = False) -> Weights:
    """Those of Mamba-2, whose names in a file begin with `theirs`.

    Args:
        bias: the product with the input has one, to which that of time steps is added.
    """
    steps: Rows | Totals = Rows(f"{theirs}.dt_bias")
    if bias:
        steps = Totals((Rows(f"{theirs}.in_proj.bias", 2), Rows(f"{theirs}.dt_bias")))
    return {
        f"{OURS}.gate_proj.{{kind}}": Rows(f"{theirs}.in_proj.{{kind}}", 0),
        f"{OURS}.conv_proj.{{kind}}": Rows(f"{theirs}.in_proj.{{kind}}", 1),
        f"{OURS}.dt_proj.weight": Rows(f"{theirs}.in_proj.weight", 2),
        f"{OURS}.dt_proj.bias": steps,
        f"{OURS}.conv.{{kind}}": Rows(f"{theirs}.conv1d.{{kind}}", transposed=True),
        f"{OURS}.rate": Decays(Rows(f"{theirs}.A_log")),
        f"{OURS}.skip": f"{theirs}.D",
        f"{OURS}.norm.weight": f"{theirs}.norm.weight",
        f"{OURS}.out_proj.{{kind}}": f"{theirs}.out_proj.{{kind}}",
    }


def mamba_weights(theirs: str) -> Weights:
    """Those of Mamba, whose names in a file begin with `theirs`."""
    ranks = f"{theirs}.x_proj.weight"
    return {
        f"{OURS}.x_proj.{{kind}}": Rows(f"{theirs}.in_proj.{{kind}}", 0),
        f"{OURS}.gate_proj.{{kind}}": Rows(f"{theirs}.in_proj.{{kind}}", 1),
        f"{OURS}.conv.{{kind}}": Rows(f"{theirs}.conv1d.{{kind}}", transposed=True),
        f"{OURS}.rank_proj.weight": Rows(ranks, 0),
        f"{OURS}.b_proj.weight": Rows(ranks, 1),
        f"{OURS}.c_proj.weight": Rows(ranks, 2),
        f"{OURS}.dt_proj.{{kind}}": f"{theirs}.dt_proj.{{kind}}",
        f"{OURS}.rate": Decays(Rows(f"{theirs}.A_log", transposed=True)),
        f"{OURS}.skip": f"{theirs}.D",
        f"{OURS}.out_proj.{{kind}}": f"{theirs}.out_proj.{{kind}}",
    }
