"""The same passes fire on the modules of `transformers`, and on our own, with the same counts."""

import copy
import itertools

import pytest
import torch
import transformers
from torch import nn

from ingot.compiler.export import export
from ingot.passes.dump import op_counts
from ingot.passes.numerics import Checker, GraphRunner, example_inputs, relative_error
from ingot.passes.pipeline import PIPELINE, pipeline
from ingot.passes.runner import run
from ingot.passes.verify import only_known_ops
from tests.passes.support import TARGET, Facts

torch.set_num_threads(1)

LAYERS = 2
OPTIONAL = tuple(step.name for step in PIPELINE if step.optional)
FAMILIES = {
    "llama": {"attention_bias": False},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "mistral": {"head_dim": 64, "sliding_window": None},
}
# A whole layer is seven instructions.
LAYER_OPS = {
    "linear_rope_kv_write": LAYERS,
    "linear": 2 * LAYERS + 1,
    "gated_linear": LAYERS,
    "paged_attention": LAYERS,
    "rms_norm": 2 * LAYERS + 1,
    "embedding": 1,
    "rope_table": 1,
    "select_rows": 2,
}


class Plain(nn.Module):
    """A causal language model of `transformers` without cache and mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.lm_head = model.model, model.lm_head

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.model.embed_tokens(input_ids)
        table = self.model.rotary_emb(x, positions)
        for layer in self.model.layers:
            x = layer(x, attention_mask=None, position_embeddings=table)
        return self.lm_head(self.model.norm(x))


def model_of(family: str, **options) -> nn.Module:
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=67,
        hidden_size=256,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="sdpa",
        **{"num_hidden_layers": LAYERS, **FAMILIES[family], **options},
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            nn.init.normal_(parameter, float(name.endswith("weight")), 0.3)
        else:
            nn.init.normal_(parameter, 0.0, 0.1)
    return model


def compiled(model: nn.Module, facts: Facts, **options):
    """The final graph of a model of `transformers`, and its ledger."""
    gm = export(copy.deepcopy(Plain(model)).to("meta"), facts)
    verify = options.pop("verify", False)
    ledger = run(gm, pipeline(**options), facts, target=TARGET, verify=verify)
    return gm, {entry.name: entry for entry in ledger}


@pytest.mark.parametrize("family", FAMILIES)
def test_foreign_modules_become_the_same_graph(family):
    model = model_of(family)
    facts = Facts(num_layers=LAYERS, qk_norm=family == "qwen3")
    gm, ledger = compiled(model, facts)
    counts = op_counts(gm)
    assert {op: counts[op] for op in LAYER_OPS} == LAYER_OPS
    assert only_known_ops(gm) == []
    assert ledger["fuse_rms_norm"].matched == (4 * LAYERS + 1 if facts.qk_norm else 2 * LAYERS + 1)

    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    (inputs,) = example_inputs(gm)
    with torch.inference_mode():
        logits = GraphRunner(gm, lambda name: tensors[name].detach()).run(*inputs)[0]
        tokens, positions = (x.long() for x in inputs[:2])
        starts = [*(positions[0] == 0).nonzero().flatten().tolist(), tokens.shape[1]]
        alone = [model(tokens[:, a:b]).logits[0] for a, b in itertools.pairwise(starts)]
    reference = torch.cat(alone)[inputs[6].long()]
    assert relative_error(logits, reference) < 1e-5


def test_every_pass_keeps_the_numbers_of_a_foreign_model():
    facts = Facts(num_layers=LAYERS, qk_norm=True)
    compiled(model_of("qwen3"), facts, dtype="bfloat16", verify=True)


@pytest.mark.parametrize("left_out", OPTIONAL)
def test_optional_passes_can_be_left_out_one_by_one(left_out):
    check_left_out("float32", (left_out,))


def test_optional_passes_can_be_left_out_together():
    check_left_out("bfloat16", OPTIONAL)


def check_left_out(dtype, disable):
    facts = Facts(num_layers=1, qk_norm=True)
    model = model_of("qwen3", num_hidden_layers=1)
    full, _ = compiled(model, facts, dtype=dtype)
    gm, ledger = compiled(model, facts, dtype=dtype, disable=disable)
    assert only_known_ops(gm) == []
    assert not set(disable) & set(ledger)
    assert relative_error(Checker(gm).logits, Checker(full).logits) < 1e-5


def test_biases_are_merged():
    gm, _ = compiled(model_of("qwen2"), Facts(num_layers=LAYERS))
    prefix = "model.layers.0.self_attn"
    assert gm.meta["weight_sources"][f"{prefix}.q_k_v_proj.bias"] == tuple(
        f"{prefix}.{name}_proj.bias" for name in "qkv"
    )


def test_gelu_gates_are_expected_from_the_facts():
    facts = Facts(num_layers=LAYERS, hidden_act="gelu_tanh")
    gm, ledger = compiled(model_of("llama", hidden_act="gelu_pytorch_tanh"), facts)
    assert ledger["fuse_gelu_mul"].expected == LAYERS and ledger["fuse_silu_mul"].expected == 0
    assert op_counts(gm)["gated_linear"] == LAYERS
