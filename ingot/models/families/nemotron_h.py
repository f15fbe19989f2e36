"""Nemotron-H: layers of one norm and one part, which is Mamba-2, attention, an MLP or experts.

Attention does not rotate; MLPs and experts are plain, with squared ReLU.
"""

from __future__ import annotations

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.mamba import HEADLESS, NAMES
from ingot.models.family import Family, Rows, Stack, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mixer, Mlp
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba2_fields import read_nemotron_mamba2
from ingot.models.moe_fields import DOWN, MLP
from ingot.models.nemotron_fields import DENSE, EXPERTS, read_experts, read_layers
from ingot.models.record_fields import FULL, MAMBA
from ingot.models.record_weights import OURS, mamba2_weights
from ingot.models.rope import NO_ROPE

# What weights were drawn from, how models were trained or are run, and what the class does not
# read: attention has no biases and does not rotate, and the numbers of heads tell their width.
UNUSED = (
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "mamba_dt_min"),
    *("mamba_dt_max", "mamba_dt_init_floor", "rescale_prenorm_residual", "residual_in_fp32"),
    *("chunk_size", "mamba_chunk_size", "expand", "mamba_expand", "use_mamba_kernels"),
    *("mamba_ssm_cache_dtype", "mamba_proj_bias", "moe_shared_expert_overlap", "attention_bias"),
    *("attention_head_dim", "num_query_groups", "rms_norm_eps", "norm_eps", "rope_theta"),
    *("partial_rotary_factor", "rope_scaling", "rope_parameters", "mlp_hidden_act"),
    *("mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_nextn_predict_layers"),
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `NemotronHForCausalLM`."""
    for key in UNUSED:
        fields.raw(key, None)
    fields.spell(
        rms_norm_eps="layer_norm_epsilon",
        hidden_act="mlp_hidden_act",
        num_experts="n_routed_experts",
    )
    fields.assume(
        vocab_size=131072,
        hidden_size=4096,
        intermediate_size=21504,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        hidden_act="relu2",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=7688,
        bos_token_id=1,
        eos_token_id=2,
    )
    kinds = read_layers(fields)
    attention: AttentionConfig = read_attention(fields, rope=NO_ROPE)
    mixers: dict[str, Mixer] = {MAMBA: read_nemotron_mamba2(fields), FULL: attention}
    mlp = read_mlp(fields, kind="plain", bias=fields.flag("mlp_bias", False))
    mlps: dict[str, Mlp] = {DENSE: mlp, EXPERTS: read_experts(fields)}
    return parse_decoder(
        fields,
        mixer=[mixers.get(kind) for kind in kinds],
        mlp=[mlps.get(kind) for kind in kinds],
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors; all parts are called mixers."""
    layer, theirs = "model.layers.{i}", "model.layers.{i}.mixer"
    bias = any(isinstance(mixer, Mamba2Config) and mixer.bias for mixer in config.mixers)
    stacks = {f"{MLP}.experts.up_proj": "up_proj", DOWN: "down_proj"}
    return {
        **NAMES,
        **mamba2_weights(theirs, bias=bias),
        f"{layer}.post_attention_layernorm.weight": f"{layer}.norm.weight",
        **{f"{OURS}.{name}_proj.weight": f"{theirs}.{name}_proj.weight" for name in "qkvo"},
        **{
            ours: (
                Stack((Rows(f"{theirs}.experts.{{e}}.{name}.weight"),)),
                f"{theirs}.experts.{name}",
            )
            for ours, name in stacks.items()
        },
        f"{MLP}.latent_in_proj.{{kind}}": f"{theirs}.fc1_latent_proj.{{kind}}",
        f"{MLP}.latent_out_proj.{{kind}}": f"{theirs}.fc2_latent_proj.{{kind}}",
        f"{MLP}.{{part}}": f"{theirs}.{{part}}",
    }


FAMILY = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    parse=parse,
    weights=weights,
    spellings=HEADLESS,
    unused=("mtp.{rest}", "model.mtp.{rest}"),
    tied={"lm_head.weight": "model.embeddings.weight"},
)
