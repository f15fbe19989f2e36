"""Shapes of the dense families: the widths of published models, with as many layers as make 0.3 to
2 billion parameters. The number at the end of a name counts layers that were left."""

from __future__ import annotations

from typing import Any

import transformers

from bench.expert_shapes import EXPERT_SHAPES
from bench.record_shapes import RECORD_SHAPES

MISTRAL = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}

# The prefix of the configuration's class in `transformers`, and what its defaults are not.
FAMILY_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere-aya-8b-4": ("Cohere", {
        "vocab_size": 256000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
    }),
    "cohere2-r7b-4": ("Cohere2", {
        "vocab_size": 256000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
        "sliding_window": 4096,
    }),
    "ernie-4.5-0.3b": ("Ernie4_5", {
        "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 128,
    }),
    "exaone-4.0-1.2b": ("Exaone4", {
        "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 4096,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": True, "sliding_window": None,
        "layer_types": ["full_attention"] * 30,
    }),
    "gemma-2b-6": ("Gemma", {
        "vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256,
    }),
    "gemma-2-2b-8": ("Gemma2", {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256,
    }),
    "gemma-3-1b": ("Gemma3Text", {
        "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "sliding_window": 512,
    }),
    "glm-edge-1.5b-16": ("Glm", {
        "vocab_size": 59264, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128,
    }),
    "glm-4-9b-0414-4": ("Glm4", {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128,
    }),
    "gpt2-large": ("GPT2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "granite-3.1-2b-16": ("Granite", {
        "vocab_size": 49155, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": True, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625, "logits_scaling": 8.0,
    }),
    "hunyuan-1.8b-16": ("HunYuanDenseV1", {
        "vocab_size": 120832, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "tie_word_embeddings": True,
    }),
    "mamba2-1.3b": ("Mamba2", {
        "vocab_size": 50288, "hidden_size": 2048, "num_hidden_layers": 48, "num_heads": 64,
        "head_dim": 64, "state_size": 128, "n_groups": 1, "tie_word_embeddings": True,
    }),
    "ministral-8b-4": ("Ministral", {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 4, **MISTRAL,
    }),
    "ministral-3-3b-8": ("Ministral3", {
        "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 9216,
        "num_hidden_layers": 8, **MISTRAL, "tie_word_embeddings": True,
        "max_position_embeddings": 262144,
    }),
    "mistral-7b-4": ("Mistral", {
        "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 4, **MISTRAL, "sliding_window": None,
    }),
    "olmo-2-1b-10": ("Olmo2", {
        "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 10, "num_attention_heads": 16, "num_key_value_heads": 16,
    }),
    "olmo-3-7b-4": ("Olmo3", {
        "vocab_size": 100278, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 32,
        "sliding_window": 4096,
    }),
    "phi-3-mini-8": ("Phi3", {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 32,
    }),
    "pythia-1b": ("GPTNeoX", {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 8,
    }),
    "seed-oss-36b-2": ("SeedOss", {
        "vocab_size": 38784, "hidden_size": 5120, "intermediate_size": 27648,
        "num_hidden_layers": 2, "num_attention_heads": 80, "num_key_value_heads": 8,
        "head_dim": 128,
    }),
    "qwen3.5-0.8b": ("Qwen3_5Text", {
        "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "tie_word_embeddings": True,
    }),
    "smollm3-3b-12": ("SmolLM3", {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    }),
    "starcoder2-3b-10": ("Starcoder2", {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 10, "num_attention_heads": 24, "num_key_value_heads": 2,
        "sliding_window": 4096,
    }),
}  # fmt: skip
SPECIAL = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 0}


def family_config(name: str) -> transformers.PreTrainedConfig:
    """The configuration of one of `FAMILY_SHAPES`, `EXPERT_SHAPES` or `RECORD_SHAPES`."""
    prefix, options = (FAMILY_SHAPES | EXPERT_SHAPES | RECORD_SHAPES)[name]
    config: transformers.PreTrainedConfig = getattr(transformers, f"{prefix}Config")(
        **{"max_position_embeddings": 4096, **SPECIAL, **options}
    )
    return config
