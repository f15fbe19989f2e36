"""llama.cpp's architectures `qwen35` and `qwen35moe`: Qwen3.5, 3.6 and 3.8.

Value heads are tiled, so that head j takes key head j mod K; see `_LinearAttentionVReorderBase` of
its converter. Decays are stored as they are, not as logarithms, and the norm of heads without the
offset of the others.
"""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.orders import OrderOf, Tiled
from ingot.models.gguf.spelling import (
    ATTENTION,
    BLOCK,
    ENDS,
    EXPERTS,
    KEYS,
    LAYER,
    MLP,
    OPTIONAL,
    PRE,
    GgufArchitecture,
    shared,
)

_MIXER = f"{LAYER}.linear_attn"
_NAMES = (
    ENDS
    | ATTENTION
    | PRE
    | {
        f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_attention_layernorm.weight",
        f"{BLOCK}.attn_qkv.weight": f"{_MIXER}.in_proj_qkv.weight",
        f"{BLOCK}.attn_gate.weight": f"{_MIXER}.in_proj_z.weight",
        f"{BLOCK}.ssm_alpha.weight": f"{_MIXER}.in_proj_a.weight",
        f"{BLOCK}.ssm_beta.weight": f"{_MIXER}.in_proj_b.weight",
        f"{BLOCK}.ssm_a": f"{_MIXER}.decay",
        f"{BLOCK}.ssm_dt.bias": f"{_MIXER}.dt_bias",
        f"{BLOCK}.ssm_conv1d.weight": f"{_MIXER}.conv1d.weight",
        f"{BLOCK}.ssm_norm.weight": f"{_MIXER}.norm.weight",
        f"{BLOCK}.ssm_out.weight": f"{_MIXER}.out_proj.weight",
        # of layers after the last, which predict further tokens
        f"{BLOCK}.nextn.{{rest}}": f"{LAYER}.nextn.{{rest}}",
    }
)
_KEYS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
_OPTIONAL = OPTIONAL | {"full_attention_interval": "full_attention_interval"}


def _more(metadata: Metadata) -> dict[str, Any]:
    """The size of values. Blocks count the layers after the last, too."""
    beyond = metadata.of_model("nextn_predict_layers", 0)
    attends = metadata.of_model("full_attention_interval", 4) - 1
    return {
        "linear_value_head_dim": _value_size(metadata),
        "num_hidden_layers": metadata.of_model("block_count") - beyond,
        "mtp_num_hidden_layers": beyond,
        "attention_bias": metadata.has(f"blk.{attends}.attn_q.bias"),
    }


def _value_size(metadata: Metadata) -> int:
    heads = max(int(metadata.of_model("ssm.time_step_rank")), 1)
    return int(metadata.of_model("ssm.inner_size")) // heads


def _heads(metadata: Metadata) -> tuple[int, int]:
    groups = max(int(metadata.of_model("ssm.group_count")), 1)
    return groups, max(int(metadata.of_model("ssm.time_step_rank")) // groups, 1)


def _of_heads(metadata: Metadata) -> Tiled:
    return Tiled(*_heads(metadata))


def _of_values(metadata: Metadata) -> Tiled:
    return Tiled(*_heads(metadata), _value_size(metadata))


def _after_keys(metadata: Metadata) -> Tiled:
    """Queries and keys stand before the values."""
    groups, shares = _heads(metadata)
    before = 2 * groups * int(metadata.of_model("ssm.state_size"))
    return Tiled(groups, shares, _value_size(metadata), before)


_ROWS: dict[str, OrderOf] = {
    f"{BLOCK}.attn_qkv.weight": _after_keys,
    f"{BLOCK}.ssm_conv1d.weight": _after_keys,
    f"{BLOCK}.attn_gate.weight": _of_values,
    f"{BLOCK}.ssm_alpha.weight": _of_heads,
    f"{BLOCK}.ssm_beta.weight": _of_heads,
    f"{BLOCK}.ssm_a": _of_heads,
    f"{BLOCK}.ssm_dt.bias": _of_heads,
}


def _architecture(name: str, **own: Any) -> GgufArchitecture:
    return GgufArchitecture(
        name=name,
        partial="partial_rotary_factor",
        optional=_OPTIONAL,
        more=_more,
        orders=_ROWS,
        columns={f"{BLOCK}.ssm_out.weight": _of_values},
        norm_offset=1.0,
        without_offset=(f"{BLOCK}.ssm_norm.weight",),
        transposed=(f"{BLOCK}.ssm_conv1d.weight",),
        **own,
    )


QWEN35 = _architecture("Qwen3_5ForCausalLM", keys=KEYS | _KEYS, names=_NAMES | MLP)
QWEN35_MOE = _architecture(
    "Qwen3_5MoeForCausalLM",
    keys={key: name for key, name in KEYS.items() if key != "intermediate_size"}
    | _KEYS
    | {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    names=_NAMES
    | EXPERTS
    | shared("shared_expert")
    | {f"{BLOCK}.ffn_gate_inp_shexp.weight": f"{LAYER}.mlp.shared_expert_gate.weight"},
)
