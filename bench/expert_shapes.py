"""Shapes of models with experts: the widths of published models, with the layers that the number
at the end of a name counts. Those of "small" models have the heads of published ones, and little
else."""

from __future__ import annotations

from typing import Any

QWEN3_30B = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "max_position_embeddings": 40960,
}  # fmt: skip

EXPERT_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v2-lite-6": ("DeepseekV2", {
        "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 6, "first_k_dense_replace": 1,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 163840,
    }),
    "gpt-oss-20b-2": ("GptOss", {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    }),
    "mixtral-8x7b-1": ("Mixtral", {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
    }),
    "qwen3-30b-a3b-1": ("Qwen3Moe", {**QWEN3_30B, "num_hidden_layers": 1}),
    "qwen3-30b-a3b-16": ("Qwen3Moe", {**QWEN3_30B, "num_hidden_layers": 16}),
    "qwen3-30b-a3b": ("Qwen3Moe", {**QWEN3_30B, "num_hidden_layers": 48}),
    "small-experts": ("Qwen3Moe", {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024,
        "moe_intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": True,
    }),
    "small-latent": ("DeepseekV2", {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024,
        "moe_intermediate_size": 256, "num_hidden_layers": 2, "first_k_dense_replace": 1,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4,
    }),
}  # fmt: skip
