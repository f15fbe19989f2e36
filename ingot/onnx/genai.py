"""Writes what other programs read beside a model, such as onnxruntime-genai and Optimum: configs
and the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ingot.compiler.tokenizer import copy_tokenizer
from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.file_names import CONFIG, GENERATION, SPECIAL_TOKENS_MAP
from ingot.models.latent_config import LatentConfig
from ingot.models.model_dir import ModelDir
from ingot.onnx.output import GENAI_CONFIG

INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
# The settings of a search that generation_config.json may change.
SEARCH: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "min_length": 0,
    "early_stopping": True,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    # The graph puts new keys and values behind those of before, in memory of their own.
    "past_present_share_buffer": False,
}


def write_surroundings(model_dir: ModelDir, folder: Path, config: ModelConfig) -> None:
    """Copies config.json and the tokenizer."""
    copy_tokenizer(model_dir, folder, config.vocab_size)
    (folder / CONFIG).write_bytes(model_dir.json_bytes(CONFIG))
    if model_dir.has(SPECIAL_TOKENS_MAP):
        (folder / SPECIAL_TOKENS_MAP).write_bytes(model_dir.json_bytes(SPECIAL_TOKENS_MAP))


def write_genai_config(
    model_dir: ModelDir, folder: Path, config: ModelConfig, *, longest: int, file: str
) -> None:
    """Writes the config of onnxruntime-genai."""
    chosen = model_dir.json(GENERATION) if model_dir.has(GENERATION) else {}
    text = json.dumps(genai_config(config, chosen, longest=longest, file=file), indent=2)
    (folder / GENAI_CONFIG).write_text(text + "\n", encoding="utf-8")


def genai_config(
    config: ModelConfig, generation: dict[str, Any], *, longest: int, file: str
) -> dict[str, Any]:
    """The content of `genai_config.json`.

    The type is that of any model of text: the graph tells all that another name would.
    https://onnxruntime.ai/docs/genai/reference/config.html
    """
    ends, starts = list(config.eos_token_ids) or [0], list(config.bos_token_ids) or [0]
    padding = generation.get("pad_token_id")
    attention = config.mixers[0]
    assert isinstance(attention, AttentionConfig | LatentConfig), "all layers attend"
    kv_heads, head_size = attention.cached[0]
    return {
        "model": {
            "type": "decoder",
            "vocab_size": config.vocab_size,
            "context_length": longest,
            "bos_token_id": starts[0],
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": padding if isinstance(padding, int) else ends[0],
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": file,
                "hidden_size": config.hidden_size,
                "head_size": head_size,
                "num_attention_heads": attention.num_heads,
                "num_key_value_heads": kv_heads,
                "num_hidden_layers": config.num_layers,
                "inputs": INPUTS,
                "outputs": OUTPUTS,
            },
        },
        "search": {
            **SEARCH,
            **{name: x for name, x in generation.items() if name in SEARCH and x is not None},
            "max_length": longest,
        },
    }
