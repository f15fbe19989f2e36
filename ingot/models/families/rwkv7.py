"""RWKV-7: layers that keep a matrix of each head and the rows before; no attention, no positions.

Its checkpoints are those of fla, as safetensors, and BlinkDL's own, whose config.json is made of
the shapes of their tensors.
"""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.family import Family, Rows, Weights
from ingot.models.rwkv_config import MIXED
from ingot.models.rwkv_fields import OWN, SPEECH, read_rwkv, sized
from ingot.models.weight_rules import Entry, Join

LAYER, FLA, OTHER = "model.layers.{i}", "model.layers.{i}", "blocks.{i}"
MIX = f"{LAYER}.self_attn"
# Of each product of low matrices: what it is called here, there, and by BlinkDL.
LOW = {"decay": "w", "rate": "a", "first_values": "v", "gate": "g"}
MATRICES = {"r": "receptance", "k": "key", "v": "value", "o": "output"}
WEIGHTS: dict[str, Entry | tuple[Entry, ...]] = {
    "model.embed_tokens.weight": ("model.embeddings.weight", "emb.weight"),
    "model.embed_norm.{kind}": ("model.layers.0.pre_norm.{kind}", "blocks.0.ln0.{kind}"),
    "model.norm.{kind}": ("model.norm.{kind}", "ln_out.{kind}"),
    "lm_head.weight": ("lm_head.weight", "head.weight"),
    f"{LAYER}.input_layernorm.{{kind}}": (f"{FLA}.attn_norm.{{kind}}", f"{OTHER}.ln1.{{kind}}"),
    f"{LAYER}.post_attention_layernorm.{{kind}}": (
        f"{FLA}.ffn_norm.{{kind}}",
        f"{OTHER}.ln2.{{kind}}",
    ),
    f"{MIX}.norm.{{kind}}": (f"{FLA}.attn.g_norm.{{kind}}", f"{OTHER}.att.ln_x.{{kind}}"),
    f"{LAYER}.mlp.{{name}}": (f"{FLA}.ffn.{{name}}", f"{OTHER}.ffn.{{name}}"),
    **{f"{MIX}.{n}": (f"{FLA}.attn.{n}", f"{OTHER}.att.{n}") for n in ("k_k", "k_a")},
    f"{MIX}.r_k": (Rows(f"{FLA}.attn.r_k", flat=True), Rows(f"{OTHER}.att.r_k", flat=True)),
    **{
        f"{MIX}.x_{name}": (
            f"{FLA}.attn.x_{name}",
            Rows(f"{FLA}.attn.x_x", part, flat=True),  # all six in one
            f"{OTHER}.att.x_{name}",
        )
        for part, name in enumerate(MIXED)
    },
    **{
        f"{MIX}.{name}_proj.weight": (
            f"{FLA}.attn.{name}_proj.weight",
            f"{OTHER}.att.{theirs}.weight",
        )
        for name, theirs in MATRICES.items()
    },
    **{
        f"{MIX}.{name}.{part}": (
            f"{FLA}.attn.{letter}_lora.lora.{theirs}",
            Rows(f"{OTHER}.att.{letter}{number}", transposed=True),
        )
        for name, letter in LOW.items()
        for part, theirs, number in (
            ("down.weight", "0.weight", 1),
            ("up.weight", "2.weight", 2),
            ("up.bias", "2.bias", 0),
        )
    },
}

TABLES = ("model.embeddings", "tts_tag_embedder", "global_embedder", "text_embedder")


def weights(config: ModelConfig) -> Weights:
    """The table of weights; of several embeddings their tables one after the other."""
    if not config.embedding_parts:
        return WEIGHTS
    rows = tuple(Rows(f"{table}.weight") for table in TABLES)
    return {**WEIGHTS, "model.embed_tokens.weight": Join(rows, config.embedding_parts)}


FAMILY = Family(
    name="rwkv7",
    architectures=("RWKV7ForCausalLM", SPEECH, OWN),
    parse=read_rwkv,
    weights=weights,
    sized=sized,
    # The first layer has no values to mix its own with.
    unused=("blocks.0.att.v{n}", "model.layers.0.attn.v_lora.{rest}"),
    tied={"lm_head.weight": "model.embeddings.weight"},
)
