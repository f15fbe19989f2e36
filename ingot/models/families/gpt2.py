"""GPT-2: learned positions, layer norms, a plain MLP; linears are stored transposed."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Rows
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_head_dim, read_mlp, read_num_layers
from ingot.models.rope import NO_ROPE


def read_scales(fields: Fields) -> tuple[float, ...]:
    """Reads the factor of attention scores, per layer."""
    scale = read_head_dim(fields) ** -0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return tuple(scale / (i + 1 if by_layer else 1) for i in range(read_num_layers(fields)))


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GPT2LMHeadModel`."""
    fields.spell(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
        intermediate_size="n_inner",
        hidden_act="activation_function",
        rms_norm_eps="layer_norm_epsilon",
    )
    fields.assume(
        intermediate_size=4 * fields.integer("hidden_size"),
        num_key_value_heads=fields.integer("num_attention_heads"),
        hidden_act="gelu_new",
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    fields.flag("reorder_and_upcast_attn", False)  # scores are float32 here in any case
    longest = fields.integer("max_position_embeddings")
    fields.refuse("n_ctx", (longest,), "n_positions is the limit")
    attention = read_attention(fields, rope=NO_ROPE, bias=True, o_bias=True)
    return parse_decoder(
        fields,
        mixer=tuple(replace(attention, scale=scale) for scale in read_scales(fields)),
        mlp=read_mlp(fields, kind="plain", bias=True),
        learned_positions=True,
        norm="layer",
    )


LAYER = "model.layers.{i}"
# {kind} is weight or bias; a transposed bias is the bias itself.
WEIGHTS: dict[str, str | Rows] = {
    "model.embed_tokens.weight": "wte.weight",
    "model.embed_positions.weight": "wpe.weight",
    f"{LAYER}.input_layernorm.{{kind}}": "h.{i}.ln_1.{kind}",
    f"{LAYER}.self_attn.q_proj.{{kind}}": Rows("h.{i}.attn.c_attn.{kind}", 0, transposed=True),
    f"{LAYER}.self_attn.k_proj.{{kind}}": Rows("h.{i}.attn.c_attn.{kind}", 1, transposed=True),
    f"{LAYER}.self_attn.v_proj.{{kind}}": Rows("h.{i}.attn.c_attn.{kind}", 2, transposed=True),
    f"{LAYER}.self_attn.o_proj.{{kind}}": Rows("h.{i}.attn.c_proj.{kind}", transposed=True),
    f"{LAYER}.post_attention_layernorm.{{kind}}": "h.{i}.ln_2.{kind}",
    f"{LAYER}.mlp.up_proj.{{kind}}": Rows("h.{i}.mlp.c_fc.{kind}", transposed=True),
    f"{LAYER}.mlp.down_proj.{{kind}}": Rows("h.{i}.mlp.c_proj.{kind}", transposed=True),
    "model.norm.{kind}": "ln_f.{kind}",
}

FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    parse=parse,
    weights=WEIGHTS,
    spellings={"transformer.{rest}": "{rest}"},
    unused=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
    tied={"lm_head.weight": "wte.weight"},
)
