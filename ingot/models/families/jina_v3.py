"""Jina embeddings v3: XLM-RoBERTa with rotary positions.

Adapters for tasks are files of their own: peft merges one into the weights, and what it saves is
read here.
"""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.families import bert
from ingot.models.family import Family, Rows, Sums, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp

DEFAULTS = {
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "max_position_embeddings": 8194,
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `JinaEmbeddingsV3Model`, with or without a head that classifies."""
    fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(**DEFAULTS)
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.refuse("type_vocab_size", (1,), "supported: tokens of one type")
    return parse_encoder(
        fields,
        mixer=read_attention(fields, causal=False, bias=True, o_bias=True),
        mlp=read_mlp(fields, kind="plain", bias=True),
        classifier=(dense(fields, "tanh"),),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
    )


OURS, THEIRS = "model.layers.{i}", "encoder.layers.{i}"
SPLIT = "layers.{i}.self_attn"


def part(index: int, name: str) -> tuple[Rows, str]:
    """Queries, keys or values: in one tensor, or each in its own."""
    fused = Rows(f"{THEIRS}.mixer.Wqkv.{{kind}}", index)
    return fused, f"{SPLIT}.{name}.{{kind}}"


WEIGHTS: Weights = {
    "model.embed_tokens.weight": Sums(
        Rows("embeddings.token_type_embeddings.weight"),
        Rows("embeddings.word_embeddings.weight"),
        1,
    ),
    "model.embed_norm.{kind}": "emb_ln.{kind}",
    f"{OURS}.self_attn.q_proj.{{kind}}": part(0, "q_proj"),
    f"{OURS}.self_attn.k_proj.{{kind}}": part(1, "k_proj"),
    f"{OURS}.self_attn.v_proj.{{kind}}": part(2, "v_proj"),
    f"{OURS}.self_attn.o_proj.{{kind}}": f"{THEIRS}.mixer.out_proj.{{kind}}",
    f"{OURS}.post_attention_layernorm.{{kind}}": f"{THEIRS}.norm1.{{kind}}",
    f"{OURS}.mlp.up_proj.{{kind}}": f"{THEIRS}.mlp.fc1.{{kind}}",
    f"{OURS}.mlp.down_proj.{{kind}}": f"{THEIRS}.mlp.fc2.{{kind}}",
    f"{OURS}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.norm2.{{kind}}",
    "head.0.dense.{kind}": "classifier.dense.{kind}",
    "head.1.dense.{kind}": "classifier.out_proj.{kind}",
}
# As transformers spells what was first published.
SPELLINGS = {
    "model.{rest}": "{rest}",
    "roberta.{rest}": "{rest}",
    "embeddings.LayerNorm.{kind}": "emb_ln.{kind}",
    f"{SPLIT}.o_proj.{{kind}}": f"{THEIRS}.mixer.out_proj.{{kind}}",
    "layers.{i}.post_attention_layernorm.{kind}": f"{THEIRS}.norm1.{{kind}}",
    "layers.{i}.mlp.fc1.{kind}": f"{THEIRS}.mlp.fc1.{{kind}}",
    "layers.{i}.mlp.fc2.{kind}": f"{THEIRS}.mlp.fc2.{{kind}}",
    "layers.{i}.post_mlp_layernorm.{kind}": f"{THEIRS}.norm2.{{kind}}",
}

FAMILY = Family(
    name="jina_v3",
    architectures=architectures("JinaEmbeddingsV3"),
    parse=parse,
    weights=with_heads(WEIGHTS),
    spellings=SPELLINGS,
    unused=bert.UNUSED,
    tied={},
)
