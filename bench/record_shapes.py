"""Shapes of models that keep records of sequences: the heads of published ones, and little else."""

from __future__ import annotations

from typing import Any

RECORD_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "small-delta": ("Qwen3_5Text", {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }),
    "small-mamba2": ("Mamba2", {
        "vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 2, "num_heads": 16,
        "head_dim": 64, "state_size": 128, "n_groups": 2,
    }),
}  # fmt: skip
