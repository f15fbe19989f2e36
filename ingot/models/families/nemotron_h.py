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
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import DOWN, MLP, MOST_EXPERTS, read_moe, spell_either
from ingot.models.record_fields import FULL, KINDS, MAMBA, read_kinds, read_taps, read_time_steps
from ingot.models.record_weights import OURS, mamba2_weights
from ingot.models.rope import NO_ROPE

DENSE, EXPERTS = "mlp", "moe"
LETTERS = {"M": MAMBA, "*": FULL, "-": DENSE, "E": EXPERTS}
SPELLED = {**KINDS, "mlp": DENSE, "moe": EXPERTS}
USUAL = (MAMBA, EXPERTS, FULL, DENSE)  # of a file that tells nothing of its layers
# What some files call keys that others spell as Mamba-2 does.
OTHER_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "time_step_limit": "mamba_dt_limit",
    "use_conv_bias": "mamba_conv_bias",
}
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


def read_layers(fields: Fields) -> tuple[str, ...]:
    """The kind of each layer: from a list, or from a pattern with a letter for each."""
    pattern = fields.raw("hybrid_override_pattern", None)
    default: tuple[str, ...] = USUAL
    if pattern is not None:
        known = isinstance(pattern, str) and pattern and set(pattern) <= LETTERS.keys()
        if known:
            default = tuple(LETTERS[letter] for letter in pattern)
        else:
            wanted = f"made of {' '.join(LETTERS)}"
            fields.fault(fields.wrong("hybrid_override_pattern", pattern, wanted))
    spell_either(fields, "layer_types", "layers_block_type")
    given = fields.raw("layer_types", None)
    count = len(given) if isinstance(given, list) and given else len(default)
    fields.assume(num_hidden_layers=count)
    kinds = read_kinds(fields, tuple(SPELLED.values()), default, SPELLED)
    if len(kinds) != fields.integer("num_hidden_layers", maximum=10_000) and fields.sound():
        number = fields.raw("num_hidden_layers")
        fields.fault(fields.wrong("num_hidden_layers", number, f"{len(kinds)}, as layers are told"))
    return kinds


def read_mamba2(fields: Fields) -> Mamba2Config:
    """Mamba-2. Its time steps have no floor, though `transformers` has one in a whole pass."""
    fields.refuse("mamba_hidden_act", ("silu", "swish"), "supported: silu")
    for key, other in OTHER_NAMES.items():
        spell_either(fields, key, other)
    shortest, longest = read_time_steps(fields)
    return Mamba2Config(
        heads=fields.integer("mamba_num_heads", 128, maximum=2**16),
        head_dim=fields.integer("mamba_head_dim", 64, maximum=2**16),
        groups=fields.integer("n_groups", 8, maximum=2**16),
        state=fields.integer("ssm_state_size", 128, maximum=2**16),
        taps=read_taps(fields, "conv_kernel", 4),
        norm_eps=fields.number("rms_norm_eps"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        shortest=shortest,
        longest=longest,
    )


def read_experts(fields: Fields) -> MoeConfig:
    """Plain experts that are picked by sigmoids with a correction bias, in groups."""
    dense = read_mlp(fields, kind="plain", bias=fields.flag("mlp_bias", False))
    shared = fields.integer("moe_shared_expert_intermediate_size", 7688)
    fields.integer("n_shared_experts", 1, minimum=0, maximum=MOST_EXPERTS)  # one, in any case
    latent = 0
    if not fields.is_null("moe_latent_size"):
        latent = fields.integer("moe_latent_size", 0, minimum=0)
    return read_moe(
        fields,
        kind="plain",
        latent=latent,
        latent_bias=dense.bias and latent > 0,
        scoring="sigmoid",
        correction_bias=True,
        groups=fields.integer("n_group", 1, maximum=MOST_EXPERTS),
        kept_groups=fields.integer("topk_group", 1, maximum=MOST_EXPERTS),
        group_score="top2",
        normalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared=MlpConfig(kind="plain", size=shared, activation=dense.activation, bias=dense.bias),
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
    mixers: dict[str, Mixer] = {MAMBA: read_mamba2(fields), FULL: attention}
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
