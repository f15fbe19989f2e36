"""The config.json of further published models, of families that have other spellings or sizes."""

from __future__ import annotations

from typing import Any

from tests.support.published import PUBLISHED

_GEMMA3 = PUBLISHED["google/gemma-3-1b-it"]
_FACTORS = [1.0 + 0.02 * i for i in range(48)]

VARIANTS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.2-1B-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": 128256,
    },
    "mistralai/Mistral-7B-Instruct-v0.3": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "vocab_size": 32768,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896,
        "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen/Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
        "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "google/gemma-3-270m-it": {
        **_GEMMA3, "_sliding_window_pattern": 6, "dtype": "bfloat16", "eos_token_id": 1,
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "use_bidirectional_attention": False,
    },
    "microsoft/Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999,
        "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": _FACTORS, "short_factor": _FACTORS, "type": "longrope"},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 200064,
    },
    "microsoft/Phi-3.5-mini-instruct": {
        **PUBLISHED["microsoft/Phi-3-mini-128k-instruct"], "_name_or_path": "Phi-3.5-mini-instruct",
        "rope_scaling": {"long_factor": _FACTORS, "short_factor": _FACTORS, "type": "longrope"},
    },
    "zai-org/glm-4-9b-chat-hf": {
        "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
        "max_position_embeddings": 131072, "model_type": "glm", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "vocab_size": 151552,
    },
    "CohereForAI/c4ai-command-r-plus": {
        "architectures": ["CohereForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 5, "eos_token_id": 255001,
        "hidden_act": "silu", "hidden_size": 12288, "initializer_range": 0.02,
        "intermediate_size": 33792, "layer_norm_eps": 1e-05, "logit_scale": 0.8333333333333334,
        "max_position_embeddings": 131072, "model_type": "cohere", "num_attention_heads": 96,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0,
        "rope_theta": 75000000.0, "torch_dtype": "float16", "use_cache": True,
        "use_qk_norm": True, "vocab_size": 256000,
    },
    "LGAI-EXAONE/EXAONE-4.0-1.2B": {
        "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 361, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 4096,
        "layer_types": ["full_attention"] * 30, "max_position_embeddings": 65536,
        "model_type": "exaone4", "num_attention_heads": 32, "num_hidden_layers": 30,
        "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 1000000, "sliding_window": None, "sliding_window_pattern": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "vocab_size": 102400,
    },
    "mistralai/Ministral-3-3B-Instruct-2512": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16",
        "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "quantization_config": {
            "activation_scheme": "static", "dequantize": False, "quant_method": "fp8",
            "modules_to_not_convert": ["model.vision_tower", "lm_head"],
            "weight_block_size": None,
        },
        "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
            "initializer_range": 0.02, "intermediate_size": 9216,
            "max_position_embeddings": 262144, "model_type": "ministral3",
            "num_attention_heads": 32, "num_hidden_layers": 26, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
                "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
                "rope_type": "yarn", "type": "yarn",
            },
            "sliding_window": None, "tie_word_embeddings": True, "use_cache": True,
            "vocab_size": 131072,
        },
        "transformers_version": "5.0.0.dev0",
        "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1,
    },
}  # fmt: skip
