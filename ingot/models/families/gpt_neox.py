"""GPT-NeoX and Pythia: layer norms, a plain MLP beside attention, partial rotation."""

from __future__ import annotations

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GPTNeoXForCausalLM`."""
    fields.spell(
        rms_norm_eps="layer_norm_eps",
        rope_theta="rotary_emb_base",
        partial_rotary_factor="rotary_pct",
    )
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=2048,
        hidden_act="gelu",
        rms_norm_eps=1e-5,
        partial_rotary_factor=0.25,
        bos_token_id=0,
        eos_token_id=2,
    )
    fields.refuse("is_decoder", (False, True), "it must be true or false")
    bias = fields.flag("attention_bias", True)
    parallel = fields.flag("use_parallel_residual", True)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, partial_rotary=True, bias=bias, o_bias=bias),
        mlp=read_mlp(fields, kind="plain", bias=True),
        norm="layer",
        placement="parallel_pair" if parallel else "pre",
    )


OURS, THEIRS = "model.layers.{i}", "gpt_neox.layers.{i}"


def weights(config: ModelConfig) -> Weights:
    """The table of tensors; queries, keys and values follow on each other head by head."""
    fused = f"{THEIRS}.attention.query_key_value.{{kind}}"
    heads = next((m.num_heads for m in config.mixers if isinstance(m, AttentionConfig)), 1)
    return {
        "model.embed_tokens.weight": "gpt_neox.embed_in.weight",
        f"{OURS}.input_layernorm.{{kind}}": f"{THEIRS}.input_layernorm.{{kind}}",
        f"{OURS}.self_attn.q_proj.{{kind}}": Rows(fused, 0, blocks=heads),
        f"{OURS}.self_attn.k_proj.{{kind}}": Rows(fused, 1, blocks=heads),
        f"{OURS}.self_attn.v_proj.{{kind}}": Rows(fused, 2, blocks=heads),
        f"{OURS}.self_attn.o_proj.{{kind}}": f"{THEIRS}.attention.dense.{{kind}}",
        f"{OURS}.post_attention_layernorm.{{kind}}": f"{THEIRS}.post_attention_layernorm.{{kind}}",
        f"{OURS}.mlp.up_proj.{{kind}}": f"{THEIRS}.mlp.dense_h_to_4h.{{kind}}",
        f"{OURS}.mlp.down_proj.{{kind}}": f"{THEIRS}.mlp.dense_4h_to_h.{{kind}}",
        "model.norm.{kind}": "gpt_neox.final_layer_norm.{kind}",
        "lm_head.weight": "embed_out.weight",
    }


FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    parse=parse,
    weights=weights,
    unused=(
        f"{THEIRS}.attention.bias",
        f"{THEIRS}.attention.masked_bias",
        f"{THEIRS}.attention.rotary_emb.inv_freq",
    ),
    spellings={"lm_head.weight": "embed_out.weight"},
    tied={"embed_out.weight": "gpt_neox.embed_in.weight"},
)
