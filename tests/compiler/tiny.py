"""A tiny model for tests of plans: two layers, one of which has a window and sinks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Limits, Plan
from ingot.compiler.export import export
from ingot.compiler.lower import lower
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.decoder import CausalLM
from ingot.models.config import ModelConfig
from ingot.models.counts import module_counts
from ingot.models.layer_config import LayerConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.rope import RopeConfig
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run

LIMITS = Limits(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16, max_logit_rows=8, page_size=4
)
ATTENTION = AttentionConfig(
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    scale=0.2,
    rope=RopeConfig(rotary_dim=32, original_max_position_embeddings=64),
    qk_norm="head",
)
MLP = MlpConfig(size=128, activation="silu")
EXPERTS = MoeConfig(experts=16, picks=2, size=64, gate="silu")
CONFIG = ModelConfig(
    architecture="TestForCausalLM",
    vocab_size=80,
    hidden_size=64,
    layers=(
        LayerConfig(mixer=ATTENTION, mlp=MLP),
        LayerConfig(mixer=replace(ATTENTION, window=5, sinks=True), mlp=MLP),
    ),
    norm_eps=1e-4,
    max_position_embeddings=64,
    tie_embeddings=False,
    bos_token_ids=(1,),
    eos_token_ids=(2,),
    checkpoint_dtype="float32",
)


@dataclass(frozen=True)
class Tiny:
    """A model as it was exported, after all passes, and as a plan."""

    reference: GraphModule
    graph: GraphModule
    plan: Plan


@cache
def tiny(
    dtype: str = "float32",
    storage: Storage | None = None,
    *,
    int8_states: bool = False,
    experts: bool = False,
    vocab_size: int = CONFIG.vocab_size,
) -> Tiny:
    """The tiny model, all of its matrices stored so, but those of routers."""
    module, reference = _exported(experts, vocab_size)
    gm = GraphModule(reference, deepcopy(reference.graph))
    matrices = [
        n for n, p in module.named_parameters() if p.dim() >= 2 and not n.endswith(".gate.weight")
    ]
    names = matrices if storage else []
    run(gm, pipeline(dtype=dtype, integers=set(names)), module_counts(module))
    stored = dict.fromkeys(names, storage) if storage else {}
    return Tiny(reference, gm, lower(gm, LIMITS, stored, int8_states=int8_states))


@cache
def _exported(experts: bool, vocab_size: int) -> tuple[CausalLM, GraphModule]:
    """What models have in common that differ by how their numbers are stored."""
    config = replace(with_experts(CONFIG) if experts else CONFIG, vocab_size=vocab_size)
    with torch.device("meta"):
        module = CausalLM(config, max_model_len=64)
        return module, export(module, config)


def with_experts(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=tuple(replace(layer, mlp=EXPERTS) for layer in config.layers))
