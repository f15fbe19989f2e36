"""The tables of tensors of families that store q, k and v as one, and gate and up as one."""

from __future__ import annotations

from ingot.models.family import Rows, Weights

_ATTENTION = "model.layers.{i}.self_attn"
_MLP = "model.layers.{i}.mlp"

QKV: Weights = {
    f"{_ATTENTION}.{name}_proj.weight": Rows(f"{_ATTENTION}.qkv_proj.weight", part)
    for part, name in enumerate("qkv")
}
GATE_UP: Weights = {
    f"{_MLP}.{name}_proj.weight": Rows(f"{_MLP}.gate_up_proj.weight", part)
    for part, name in enumerate(("gate", "up"))
}
