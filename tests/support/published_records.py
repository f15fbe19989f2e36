"""The config.json of published models whose layers keep records, with the keys of their files."""

from __future__ import annotations

from typing import Any

INFINITY = {"__float__": "Infinity"}
_LFM2: dict[str, Any] = {
    "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "eos_token_id": 7,
    "hidden_size": 2048, "initializer_range": 0.02, "max_position_embeddings": 128000,
    "norm_eps": 1e-05, "num_attention_heads": 32, "num_key_value_heads": 8, "pad_token_id": 0,
    "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "use_cache": True, "use_pos_enc": True,
    "vocab_size": 65536,
}  # fmt: skip
_CONV, _FULL = ["conv"], ["full_attention"]
_GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attention_multiplier": 0.0078125, "bos_token_id": 100257,
    "embedding_multiplier": 12, "eos_token_id": 100257, "hidden_act": "silu",
    "hidden_size": 1536, "init_method": "mup", "initializer_range": 0.1,
    "intermediate_size": 512, "logits_scaling": 6, "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": False,
    "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm", "num_attention_heads": 12, "num_experts_per_tok": 6,
    "num_hidden_layers": 40, "num_key_value_heads": 4, "num_local_experts": 64,
    "output_router_logits": False, "pad_token_id": 100256, "position_embedding_type": "nope",
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000, "router_aux_loss_coef": 0.0001, "shared_intermediate_size": 1024,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 100352,
    "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
}  # fmt: skip
_NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM"},
    "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128,
    "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "mamba_hidden_act": "silu", "mamba_proj_bias": False, "mlp_bias": False,
    "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
    "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": True,
    "residual_in_fp32": False, "sliding_window": None, "ssm_state_size": 128,
    "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_limit": [0.0, INFINITY],
    "time_step_max": 0.1, "time_step_min": 0.001, "torch_dtype": "bfloat16", "use_bias": False,
    "use_cache": True, "use_conv_bias": True, "use_mamba_kernels": True, "vocab_size": 131072,
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4,
    "eos_token_id": 0, "expand": 2, "hidden_act": "silu", "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-05, "model_type": "mamba", "pad_token_id": 0,
    "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 16,
    "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1,
    "time_step_min": 0.001, "time_step_scale": 1.0, "use_bias": False, "use_cache": True,
    "use_conv_bias": True,
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "LiquidAI/LFM2-1.2B": {
        **_LFM2, "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True,
        "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
        "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True,
        "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "model_type": "lfm2", "num_heads": 32,
        "num_hidden_layers": 16,
    },
    "LiquidAI/LFM2-8B-A1B": {
        **_LFM2, "architectures": ["Lfm2MoeForCausalLM"], "intermediate_size": 7168,
        "layer_types": [
            "full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)
        ],
        "model_type": "lfm2_moe", "moe_intermediate_size": 1792, "norm_topk_prob": True,
        "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "routed_scaling_factor": 1.0, "use_expert_bias": True,
    },
    "LiquidAI/LFM3-1.7B": {"architectures": ["Lfm3ForCausalLM"], "model_type": "lfm3"},
    "ibm-granite/granite-4.0-h-tiny": _GRANITE,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {
        **_NEMOTRON, "eos_token_id": 12, "hidden_size": 4480,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "intermediate_size": 15680, "mamba_head_dim": 80, "mamba_num_heads": 128,
        "max_position_embeddings": 131072, "num_attention_heads": 40, "num_hidden_layers": 56,
        "num_key_value_heads": 8, "num_query_groups": 8, "rms_norm_eps": 1e-05,
        "time_step_rank": 256,
    },
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {
        **_NEMOTRON, "eos_token_id": 2, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "mamba_head_dim": 64, "mamba_num_heads": 64,
        "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 6,
        "num_hidden_layers": 52, "num_key_value_heads": 2, "partial_rotary_factor": 1.0,
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "topk_group": 1,
    },
    "mistralai/Mamba-Codestral-7B-v0.1": {
        "architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256,
        "conv_kernel": 4, "eos_token_id": 0, "expand": 2, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.1, "intermediate_size": 8192,
        "layer_norm_epsilon": 1e-05, "model_type": "mamba2", "n_groups": 8,
        "norm_before_gate": True, "num_heads": 128, "num_hidden_layers": 64, "pad_token_id": 0,
        "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True,
        "state_size": 128, "tie_word_embeddings": False, "time_step_floor": 0.0001,
        "time_step_init_scheme": "random", "time_step_limit": [0.0, INFINITY],
        "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
        "time_step_scale": 1.0, "torch_dtype": "bfloat16", "use_bias": False, "use_cache": True,
        "use_conv_bias": True, "vocab_size": 32768,
    },
    "state-spaces/mamba-130m-hf": {
        **_MAMBA, "d_inner": 1536, "d_model": 768, "fused_add_norm": True, "hidden_size": 768,
        "intermediate_size": 1536, "n_layer": 24, "num_hidden_layers": 24,
        "pad_vocab_size_multiple": 8, "rms_norm": True, "ssm_cfg": {}, "time_step_rank": 48,
        "torch_dtype": "float32", "vocab_size": 50280,
    },
    "tiiuae/falcon-mamba-7b": {
        **_MAMBA, "architectures": ["FalconMambaForCausalLM"], "eos_token_id": 11,
        "hidden_size": 4096, "intermediate_size": 8192,
        "model_type": "falcon_mamba", "num_hidden_layers": 64, "tie_word_embeddings": False,
        "time_step_rank": 256, "torch_dtype": "bfloat16", "use_mambapy": False,
        "vocab_size": 65024,
    },
}  # fmt: skip
