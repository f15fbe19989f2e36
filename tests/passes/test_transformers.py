"""The same passes fire on the modules of `transformers`, as often as on our own."""

import copy
import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from ingot.compiler.export import export
from ingot.errors import PassError
from ingot.passes.dump import op_counts
from ingot.passes.graph import arguments, op_calls
from ingot.passes.invariants import only_known_ops
from ingot.passes.pipeline import optional_passes, pipeline
from ingot.passes.runner import run
from ingot.passes.verification import Checker, GraphRunner, example_inputs, relative_error
from tests.passes.support import Facts
from tests.support.core import core

torch.set_num_threads(1)

LAYERS = 2
FAMILIES = {
    "llama": {"attention_bias": False},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "mistral": {"head_dim": 64, "sliding_window": None},
    "gemma2": {
        "head_dim": 64,
        "layer_types": ["full_attention"] * LAYERS,
        "attn_logit_softcapping": None,  # which its attention by PyTorch would leave out
        "final_logit_softcapping": 3.0,
    },
}
# What the passes must find in a layer, and in the rest of the model; these modules cannot say.
LAYER = {"attention": 1, "rope": 2, "rms_norm": 2, "gate": 1, "merged_linears": 2}
REST = {"rope_table": 1, "rms_norm": 1}
MORE_NORMS = {"qwen3": 2, "gemma2": 2}  # in a layer
MORE = {"gemma2": {"mul": 1, "soft_cap": 1}}


def counts_of(family: str, layers: int = LAYERS) -> dict[str, int]:
    counts = Counter({name: layers * count for name, count in LAYER.items()})
    counts["rms_norm"] += layers * MORE_NORMS.get(family, 0)
    counts.update(REST)
    counts.update(MORE.get(family, {}))
    return dict(counts)


class Plain(nn.Module):
    """A causal language model of `transformers` without cache and mask.

    The scale of embedded tokens and the cap of logits are numbers here; there, the first is a
    tensor, and the second is not part of a module.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.lm_head = model.model, model.lm_head
        gemma = model.config.model_type == "gemma2"
        self.scale = model.config.hidden_size**0.5 if gemma else 1.0
        self.cap = model.config.final_logit_softcapping if gemma else None

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = F.embedding(input_ids, self.model.embed_tokens.weight) * self.scale
        table = self.model.rotary_emb(x, positions)
        for layer in self.model.layers:
            x = layer(x, attention_mask=None, position_embeddings=table)
        logits = self.lm_head(self.model.norm(x))
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def model_of(family: str, **options) -> nn.Module:
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=67,
        hidden_size=256,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        **{"num_hidden_layers": LAYERS, **FAMILIES[family], **options},
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.config._attn_implementation = "sdpa"  # Gemma 2 is not made with it, but runs with it
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            nn.init.normal_(parameter, float(name.endswith("weight")), 0.3)
        else:
            nn.init.normal_(parameter, 0.0, 0.1)
    return model


def compiled(model: nn.Module, **options):
    """The final graph of a model of `transformers`."""
    gm = export(copy.deepcopy(Plain(model)).to("meta"), Facts())
    counts = counts_of(model.config.model_type, model.config.num_hidden_layers)
    verify = options.pop("verify", False)
    run(gm, pipeline(**options), counts, verify=verify)
    return gm


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("family", core("qwen3", further=FAMILIES))
def test_foreign_modules_become_primitives_and_keep_their_numbers(family):
    model = model_of(family)
    gm = compiled(model)
    counts = counts_of(family)
    expected = {op: counts[op] for op in ("rope", "rms_norm", "gate", "rope_table")}
    expected |= MORE.get(family, {})
    expected |= {"linear": 4 * LAYERS + 1, "add": 2 * LAYERS, "embedding": 1, "select_rows": 2}
    expected |= {"kv_write": LAYERS, "paged_attention": LAYERS}
    found = op_counts(gm)
    assert {op: n for op, n in found.items() if "." not in op} == expected
    assert only_known_ops(gm) == []

    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    (inputs,) = example_inputs(gm)
    with torch.inference_mode():
        logits = GraphRunner(gm, lambda name: tensors[name].detach()).run(*inputs)[0]
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        step = dict(zip(names, inputs, strict=True))
        tokens, positions = step["tokens"].long(), step["positions"]
        starts = [*(positions[0] == 0).nonzero().flatten().tolist(), tokens.shape[1]]
        alone = [model(tokens[:, a:b]).logits[0] for a, b in itertools.pairwise(starts)]
    reference = torch.cat(alone)[step["logit_rows"].long()]
    assert relative_error(logits, reference) < 1e-5


@pytest.mark.thorough
def test_every_pass_keeps_the_numbers_of_a_foreign_model():
    compiled(model_of("qwen3"), dtype="bfloat16", verify=True)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("dtype", core(further=["bfloat16", "float32"]))
def test_optional_passes_can_be_left_out(dtype):
    model = model_of("qwen3", num_hidden_layers=1)
    full = compiled(model, dtype=dtype)
    gm = compiled(model, dtype=dtype, disable=optional_passes())
    assert only_known_ops(gm) == []
    assert op_counts(gm)["linear"] == 8 and op_counts(full)["linear"] == 5
    assert relative_error(Checker(gm).logits, Checker(full).logits) < 1e-5


@pytest.mark.thorough
def test_biases_are_merged():
    gm = compiled(model_of("qwen2"))
    prefix = "model.layers.0.self_attn"
    assert gm.meta["weight_sources"][f"{prefix}.q_k_v_proj.bias"] == tuple(
        f"{prefix}.{name}_proj.bias" for name in "qkv"
    )


@pytest.mark.thorough
def test_gates_of_another_activation_are_found():
    gm = compiled(model_of("llama", hidden_act="gelu_pytorch_tanh"))
    assert [arguments(n)["kind"] for n in op_calls(gm, "gate")] == LAYERS * ["gelu_tanh"]


@pytest.mark.thorough
def test_a_model_that_has_less_than_its_counts_say_is_refused():
    model = model_of("llama")
    model.model.layers[1].mlp.act_fn = nn.Identity()
    with pytest.raises(PassError, match="fuse_gates: matched 1 times, but the model has 2 places"):
        compiled(model)
