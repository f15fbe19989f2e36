"""Nomic's BERT: rotary positions and gated MLPs, with norms of sums."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.families import bert
from ingot.models.family import Family, Rows, Sums, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp

DEFAULTS = {
    **bert.DEFAULTS,
    "vocab_size": 30528,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
}
# How the files of the model's own code call things.
OWN = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
# What that code can do besides; these values are all that is published.
USUAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("causal", "prenorm", "parallel_block", "use_rms_norm"), (False,)),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
    **dict.fromkeys(("rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"), (False,)),
    **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base"), ()),
    "rotary_emb_fraction": (1.0,),
    "scale_attn_weights": (True,),
}
IGNORED = (
    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions"),
    *("pad_vocab_size_multiple", "parallel_block_tied_norm", "reorder_and_upcast_attn"),
    *("use_flash_attn", "use_xentropy"),
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `NomicBertModel`, as transformers or the model's own code has it."""
    fields.assume(**DEFAULTS)
    if "n_embd" in fields:
        fields.spell(**OWN)
        for key, allowed in USUAL.items():
            fields.refuse(
                key, allowed, "supported: the architecture of nomic-embed-text v1 and v1.5"
            )
        fields.choice("hidden_act", {"swiglu": "swiglu"}, "swiglu")
        for key in IGNORED:
            fields.raw(key, None)
        fields.spell(hidden_act="never written")
    else:
        fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.integer("type_vocab_size", 2)
    return parse_encoder(
        fields,
        mixer=read_attention(fields, causal=False),
        mlp=read_mlp(fields),
        classifier=(dense(fields, "tanh"),),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
    )


OURS, THEIRS = "model.layers.{i}", "encoder.layers.{i}"
FUSED = f"{THEIRS}.attn.Wqkv.weight"
SPLIT = "layers.{i}.self_attn"
# Texts are of type 0, whose row is added to each token's.
TYPES = Rows("embeddings.token_type_embeddings.weight", spare=1)
WEIGHTS: Weights = {
    "model.embed_tokens.weight": Sums(TYPES, Rows("embeddings.word_embeddings.weight"), 1),
    "model.embed_norm.{kind}": "emb_ln.{kind}",
    f"{OURS}.self_attn.q_proj.weight": (Rows(FUSED, 0), f"{SPLIT}.q_proj.weight"),
    f"{OURS}.self_attn.k_proj.weight": (Rows(FUSED, 1), f"{SPLIT}.k_proj.weight"),
    f"{OURS}.self_attn.v_proj.weight": (Rows(FUSED, 2), f"{SPLIT}.v_proj.weight"),
    f"{OURS}.self_attn.o_proj.weight": f"{THEIRS}.attn.out_proj.weight",
    f"{OURS}.post_attention_layernorm.{{kind}}": f"{THEIRS}.norm1.{{kind}}",
    f"{OURS}.mlp.gate_proj.weight": f"{THEIRS}.mlp.fc12.weight",
    f"{OURS}.mlp.up_proj.weight": f"{THEIRS}.mlp.fc11.weight",
    f"{OURS}.mlp.down_proj.weight": f"{THEIRS}.mlp.fc2.weight",
    f"{OURS}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.norm2.{{kind}}",
    "head.0.dense.{kind}": "pooler.dense.{kind}",
    "head.1.dense.{kind}": "classifier.{kind}",
}
# As transformers spells what the model's own code wrote.
SPELLINGS = {
    "nomic_bert.{rest}": "{rest}",
    "bert.{rest}": "{rest}",
    "embeddings.LayerNorm.{kind}": "emb_ln.{kind}",
    f"{SPLIT}.o_proj.weight": f"{THEIRS}.attn.out_proj.weight",
    "layers.{i}.post_attention_layernorm.{kind}": f"{THEIRS}.norm1.{{kind}}",
    "layers.{i}.mlp.gate_proj.weight": f"{THEIRS}.mlp.fc12.weight",
    "layers.{i}.mlp.up_proj.weight": f"{THEIRS}.mlp.fc11.weight",
    "layers.{i}.mlp.down_proj.weight": f"{THEIRS}.mlp.fc2.weight",
    "layers.{i}.post_mlp_layernorm.{kind}": f"{THEIRS}.norm2.{{kind}}",
}

FAMILY = Family(
    name="nomic_bert",
    architectures=architectures("NomicBert"),
    parse=parse,
    weights=with_heads(WEIGHTS),
    spellings=SPELLINGS,
    unused=("pooler.dense.{kind}", "cls.{rest}", "embeddings.position_ids"),
    tied={},
)
