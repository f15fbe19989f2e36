"""Routers and experts against those of `transformers`, and what they do at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v3 import configuration_deepseek_v3, modeling_deepseek_v3
from transformers.models.gpt_oss import configuration_gpt_oss, modeling_gpt_oss
from transformers.models.mixtral import configuration_mixtral, modeling_mixtral
from transformers.models.qwen3_moe import configuration_qwen3_moe, modeling_qwen3_moe

from ingot.ops import OPS
from ingot.ops.route import largest

HIDDEN, INNER, COUNT, PICKS = 16, 12, 6, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def route(logits: Tensor, bias: Tensor | None = None, **rule: object) -> Tensor:
    return OPS["route"].reference(logits, bias, **{"scoring": "softmax", "top_k": PICKS, **rule})


def experts(x: Tensor, shares: Tensor, *weights: Tensor | None, **attrs: object) -> Tensor:
    given = {"kind": "silu", "top_k": PICKS, **attrs}
    return OPS["experts"].reference(x, shares, *weights, *[None] * (4 - len(weights)), **given)


def randomise(module: nn.Module) -> nn.Module:
    """Values for parameters and biases of picking, which a new module leaves as they are."""
    with torch.no_grad():
        for index, each in enumerate((*module.parameters(), *module.buffers())):
            each.copy_(0.3 * normal(*each.shape, seed=index))
    return module.eval()


def output(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = module(x)
    return out[0] if isinstance(out, tuple) else out


SIZES = {"hidden_size": HIDDEN, "num_experts_per_tok": PICKS}


@pytest.mark.parametrize("rows", [1, 9])
def test_a_mixture_is_that_of_mixtral(rows):
    config = configuration_mixtral.MixtralConfig(
        **SIZES, intermediate_size=INNER, num_local_experts=COUNT
    )
    block = randomise(modeling_mixtral.MixtralSparseMoeBlock(config))
    x = normal(1, rows, HIDDEN, seed=9)
    shares = route(x @ block.gate.weight.T, normalise=True)
    got = experts(x, shares, block.experts.gate_up_proj, block.experts.down_proj)
    assert torch.allclose(got, output(block, x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(experts(x, 0 * shares, *block.experts.parameters()), got)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_mixture_is_that_of_qwen3(normalise):
    config = configuration_qwen3_moe.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=INNER, num_experts=COUNT, norm_topk_prob=normalise
    )
    block = randomise(modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(config))
    x = normal(1, 7, HIDDEN, seed=9)
    shares = route(x @ block.gate.weight.T, normalise=normalise)
    got = experts(x, shares, block.experts.gate_up_proj, block.experts.down_proj)
    assert torch.allclose(got, output(block, x), rtol=1e-4, atol=1e-5)


def test_a_mixture_is_that_of_gpt_oss():
    """Its gate and up alternate, its matrices are transposed, and its gate is clamped."""
    config = configuration_gpt_oss.GptOssConfig(
        **SIZES, intermediate_size=INNER, num_local_experts=COUNT
    )
    block = randomise(modeling_gpt_oss.GptOssMLP(config))
    held = block.experts
    x = 4 * normal(1, 7, HIDDEN, seed=9)
    logits = x @ block.router.weight.T + block.router.bias
    both = held.gate_up_proj.transpose(1, 2)
    order = [*range(0, 2 * INNER, 2), *range(1, 2 * INNER, 2)]
    weights = (both[:, order], held.down_proj.transpose(1, 2))
    biases = (held.gate_up_proj_bias[:, order], held.down_proj_bias)
    limit = float(held.limit)
    shares = route(logits, normalise=True)
    got = experts(x, shares, *weights, *biases, kind="clamped", limit=limit)
    assert torch.allclose(got, output(block, x), rtol=1e-4, atol=1e-4)
    unbounded = experts(x, shares, *weights, *biases, kind="clamped", limit=1e9)
    assert not torch.allclose(got, unbounded, rtol=1e-4, atol=1e-4)


def test_groups_and_biases_are_those_of_deepseek():
    config = configuration_deepseek_v3.DeepseekV3Config(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=16, n_shared_experts=1,
        num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )  # fmt: skip
    block = randomise(modeling_deepseek_v3.DeepseekV3MoE(config))
    x = normal(1, 40, HIDDEN, seed=9)
    rule = {"scoring": "sigmoid", "groups": 4, "kept_groups": 2, "group_score": "top2"}
    shares = route(
        x @ block.gate.weight.T, block.gate.e_score_correction_bias, top_k=3, normalise=True,
        eps=1e-20, scale=2.5, **rule,
    )  # fmt: skip
    held = block.experts
    got = experts(x, shares, held.gate_up_proj, held.down_proj, top_k=3)
    expected = output(block, x) - output(block.shared_experts, x)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_equal_scores_go_to_the_lower_index():
    logits = torch.tensor([[[1.0, 2.0, 2.0, 2.0, 1.0, 1.0], [0.0] * 6]])
    for picks, wanted in ((1, [[1], [0]]), (2, [[1, 2], [0, 1]]), (4, [[0, 1, 2, 3]] * 2)):
        shares = route(logits, top_k=picks)
        assert [row.nonzero().flatten().tolist() for row in shares[0]] == wanted
    assert largest(torch.tensor([3.0, 5.0, 5.0, 1.0]), 2).tolist() == [1, 2]


def test_shares_of_the_picked_are_a_softmax_over_them():
    logits = normal(1, 5, 8)
    shares = route(logits, top_k=3, normalise=True)
    picks = logits.topk(3).indices
    assert torch.allclose(shares.gather(-1, picks), logits.topk(3).values.softmax(-1))
    assert (shares != 0).sum(-1).eq(3).all()


def test_a_bias_moves_picks_and_no_shares():
    logits = normal(1, 5, 8)
    bias = torch.zeros(8).index_fill(0, torch.tensor([2]), 100.0)
    shares = route(logits, bias, scoring="sigmoid", top_k=1)
    assert torch.equal(shares[0, :, 2], logits[0, :, 2].sigmoid())
    assert (shares[0] != 0).sum() == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_the_result(value):
    logits = normal(1, 3, COUNT)
    logits[0, 1, 2] = value
    shares = route(logits)
    assert not shares[0, 1].isfinite().all() and shares[0, [0, 2]].isfinite().all()
    x = normal(1, 3, HIDDEN, seed=1)
    weights = normal(COUNT, 2 * INNER, HIDDEN), normal(COUNT, HIDDEN, INNER)
    out = experts(x, shares, *weights)
    assert not out[0, 1].isfinite().any() and out[0, [0, 2]].isfinite().all()


def test_rows_without_a_share_are_zeros():
    """And experts that nobody picks are not read."""
    x, shares = normal(1, 3, HIDDEN), torch.zeros(1, 3, COUNT)
    shares[0, 1, 4] = 0.5
    gate_up, down = normal(COUNT, 2 * INNER, HIDDEN), normal(COUNT, HIDDEN, INNER)
    gate_up[[0, 1, 2, 3, 5]] = torch.nan
    out = experts(x, shares, gate_up, down)
    assert not out[0, [0, 2]].any() and out[0, 1].isfinite().all() and out[0, 1].any()
