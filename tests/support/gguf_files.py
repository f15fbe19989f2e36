"""GGUF files of small models, by the writer of the package `gguf`.

What is done to tensors and how keys are called follows llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from ingot.models.gguf.types import TYPES
from tests.support import gguf_delta, gguf_lfm
from tests.support.gguf_blocks import blocks_like
from tests.support.gguf_experts import expert_tensors, write_expert_sizes
from tests.support.gguf_latent import latent_tensors, write_latent_sizes

Config = Mapping[str, Any]
Tensors = Mapping[str, torch.Tensor]
Type = gguf.GGMLQuantizationType
# By `model_type`, where llama.cpp calls it otherwise.
NAMES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "cohere": "command-r",
    "olmo3": "olmo2",
    "ministral3": "mistral3",
    "hunyuan_v1_dense": "hunyuan-dense",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss",
    "glm4_moe": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "minimax_m2": "minimax-m2",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "lfm2_moe": "lfm2moe",
}
PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3")
TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def write_gguf(
    model_dir: Path,
    out: Path,
    kind: Type | Callable[[str], Type] = Type.F32,
    *,
    keys: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
) -> Path:
    """Writes a model directory as a GGUF file, with its byte-level tokenizer if it has one.

    Args:
        kind: the type of matrices, or what gives it by their names; all others are float32.
        keys: writes more metadata.
    """
    config = json.loads((model_dir / "config.json").read_text())
    name = NAMES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(str(out), name)
    write_sizes(writer, name, config)
    if (model_dir / "tokenizer.json").is_file():
        write_tokenizer(writer, model_dir)
    write_ends(writer, config)
    keys(writer)
    for tensor_name, tensor in converted(name, config, load_file(model_dir / "model.safetensors")):
        values = tensor.float().numpy()
        stored = Type.F32
        if tensor.ndim > 1 and tensor_name.endswith(".weight"):
            stored = kind if isinstance(kind, Type) else kind(tensor_name)
        data = encoded(values, stored)
        writer.add_tensor(tensor_name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def encoded(values: np.ndarray, stored: Type) -> np.ndarray:
    """Values in a type; of one that no writer is for, noise of their size."""
    if stored == Type.Q6_K:
        return q6_k(values)
    try:
        return gguf.quantize(values, stored)
    except NotImplementedError:
        return blocks_like(values, TYPES[int(stored)])


def converted(name: str, config: Config, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors as the converter names and stores them."""
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == name)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    layers += config.get("num_nextn_predict_layers", 0)
    names = gguf.get_tensor_name_map(architecture, layers)
    if name == "deepseek2":
        tensors = latent_tensors(config, tensors)
    if name in gguf_delta.NAMES:
        tensors = gguf_delta.delta_tensors(config, tensors)
    if name in gguf_lfm.NAMES:
        tensors = gguf_lfm.lfm_tensors(tensors)
    tensors = expert_tensors(name, config, tensors)
    for theirs, tensor in stacked(tensors).items():
        new = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if new is None and theirs.startswith(("h.", "wte.", "wpe.", "ln_f.")):
            new = names.get_name(f"transformer.{theirs}", try_suffixes=(".weight", ".bias"))
        assert new is not None, theirs
        yield new, changed(name, config, theirs, tensor)
    if (rope := _rope(config)).get("rope_type") == "llama3":
        yield "rope_freqs.weight", torch.tensor(llama3_divisors(config, rope))
    for key in ("long", "short"):
        if factors := rope.get(f"{key}_factor"):
            yield f"rope_factors_{key}.weight", torch.tensor(factors)


def stacked(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The experts of each layer in one tensor, under the name of all."""
    found: dict[str, Any] = {}
    for name in sorted(tensors, key=lambda name: (len(name), name)):  # expert 10 after 9
        whole = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        whole = whole.replace("block_sparse_moe.experts", "feed_forward.experts")
        whole = whole.removeprefix("model.") if "feed_forward" in whole else whole
        found.setdefault(whole, []).append(tensors[name])
    return {name: each[0] if name in tensors else torch.stack(each) for name, each in found.items()}


def changed(name: str, config: Config, theirs: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the converter stores it."""
    if name in PERMUTED and "q_proj" in theirs:
        return permute(tensor, config["num_attention_heads"])
    if name in PERMUTED and "k_proj" in theirs:
        return permute(tensor, config["num_key_value_heads"])
    if name.startswith("gemma") and theirs.endswith("norm.weight"):
        return tensor.float() + 1
    if name == "gpt2" and theirs.endswith(TURNED):
        return tensor.T.contiguous()
    if name == "gptneox" and "query_key_value" in theirs:
        heads = config["num_attention_heads"]
        parts = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
        return torch.cat([parts[:, i].reshape(-1, *tensor.shape[1:]) for i in range(3)])
    return tensor


def permute(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of halves that turn together, brought side by side."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape).contiguous()


def llama3_divisors(config: Config, rope: Config) -> list[float]:
    """What frequencies are divided by."""
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    found = []
    for i in range(0, dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        share = (original / length - low) / (high - low)
        between = 1 / ((1 - share) / rope["factor"] + share)
        inside = length >= original / high
        found.append(rope["factor"] if length > original / low else between if inside else 1.0)
    return found


def _rope(config: Config) -> dict[str, Any]:
    rope = dict(config.get("rope_parameters") or {})
    return dict(rope.get("full_attention", rope))


def write_sizes(writer: gguf.GGUFWriter, name: str, config: Config) -> None:
    """The keys of the converter's `set_gguf_parameters`."""

    def given(*keys: str) -> Any:
        return next((config[key] for key in keys if config.get(key) is not None), None)

    latent = name == "deepseek2"
    plain = (
        (writer.add_block_count, ("num_hidden_layers", "n_layer")),
        (writer.add_context_length, ("max_position_embeddings", "n_positions")),
        (writer.add_embedding_length, ("hidden_size", "n_embd")),
        (writer.add_head_count, ("num_attention_heads", "n_head")),
        (writer.add_head_count_kv, () if latent else ("num_key_value_heads",)),
        (writer.add_layer_norm_rms_eps, ("rms_norm_eps",)),
        (writer.add_layer_norm_eps, ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")),
        (writer.add_key_length, () if latent else ("head_dim",)),
        (writer.add_value_length, () if latent else ("head_dim",)),
        (writer.add_attn_logit_softcapping, ("attn_logit_softcapping",)),
        (writer.add_final_logit_softcapping, ("final_logit_softcapping",)),
        (writer.add_expert_count, ("num_local_experts", "num_experts")),
        (writer.add_expert_used_count, ("num_experts_per_tok",)),
        (writer.add_expert_feed_forward_length, ("moe_intermediate_size",)),
        (writer.add_expert_shared_feed_forward_length, ("shared_expert_intermediate_size",)),
        (writer.add_embedding_scale, ("embedding_multiplier",)),
        (writer.add_residual_scale, ("residual_multiplier",)),
        (writer.add_attention_scale, ("attention_multiplier",)),
        (writer.add_logit_scale, ("logits_scaling", "logit_scale")),
    )
    for add, keys in plain:
        value = given(*keys)
        if value is not None:
            add(value)
    inner = given("intermediate_size", "n_inner") or 4 * config["n_embd"]
    writer.add_feed_forward_length(inner)
    if given("sliding_window") is not None and name not in ("llama", "qwen2", "qwen3"):
        writer.add_sliding_window(config["sliding_window"])
        if name in ("olmo2", "exaone4"):
            slides = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window_pattern(slides)
    if name == "phi3" and given("sliding_window") is None:
        writer.add_sliding_window(0)
    if latent:
        write_latent_sizes(writer, config)
    if name in gguf_delta.NAMES:
        gguf_delta.write_delta_sizes(writer, config)
    if name in gguf_lfm.NAMES:
        gguf_lfm.write_lfm_sizes(writer, config)
    write_expert_sizes(writer, config)
    if name == "gptneox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    _write_rope(writer, config)


def _write_rope(writer: gguf.GGUFWriter, config: Config) -> None:
    rope, local = _rope(config), dict(config.get("rope_parameters") or {}).get("sliding_attention")
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"] * _stretch(rope, config))
    if local:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    heads = config.get("num_attention_heads")
    if heads and (share := rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))):
        head = config.get("head_dim") or config["hidden_size"] // heads
        writer.add_rope_dimension_count(int(head * share))
    kind = rope.get("rope_type")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        unit = 0.1 if writer.arch == "deepseek2" else 1.0
        writer.add_rope_scaling_yarn_log_mul(unit * rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = math.sqrt(1 + math.log(scale) / math.log(original))
        writer.add_rope_scaling_attn_factors(rope.get("attention_factor", factor))


def _stretch(rope: Config, config: Config) -> float:
    """What `alpha` makes of the base, which the converter of Hunyuan writes alone."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return float(rope["alpha"] ** (head / (head - 2))) if rope.get("alpha") else 1.0


def write_ends(writer: gguf.GGUFWriter, config: Config) -> None:
    """The tokens that begin and end a text."""
    for end in ("bos", "eos"):
        if isinstance(token := config.get(f"{end}_token_id"), int):
            getattr(writer, f"add_{end}_token_id")(token)


def write_tokenizer(writer: gguf.GGUFWriter, model_dir: Path, pre: str = "gpt-2") -> None:
    """A byte-level tokenizer.json, as the converter's `_set_vocab_gpt2` writes it."""
    file = json.loads((model_dir / "tokenizer.json").read_text())
    added = {token["id"]: token for token in file["added_tokens"]}
    by_id = {i: token for token, i in file["model"]["vocab"].items()}
    by_id |= {i: token["content"] for i, token in added.items()}
    config = json.loads((model_dir / "config.json").read_text())
    kinds = gguf.TokenType
    tokens, types = [], []
    for i in range(config["vocab_size"]):
        tokens.append(by_id.get(i, f"[PAD{i}]"))
        of_added = kinds.CONTROL if i in added and added[i]["special"] else kinds.USER_DEFINED
        types.append(of_added if i in added else kinds.NORMAL if i in by_id else kinds.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [m if isinstance(m, str) else " ".join(m) for m in file["model"]["merges"]]
    writer.add_token_merges(merges)


def q6_k(values: np.ndarray) -> np.ndarray:
    """Rows of numbers as blocks of Q6_K, which the package `gguf` reads and does not write."""
    groups = values.astype(np.float32).reshape(-1, 16, 16)
    largest = np.abs(groups).max(2)
    d = np.maximum(largest.max(1, keepdims=True) / 31 / 127, 1e-7).astype(np.float16)
    shares = np.ceil(largest / 31 / d.astype(np.float32)).clip(1, 127).astype(np.int8)
    steps = d.astype(np.float32)[:, :, None] * shares[:, :, None]
    q = (np.rint(groups / steps).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (q[:, :, :2] & 15) | (q[:, :, 2:] & 15) << 4
    high = q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6
    parts = (low.reshape(-1, 128), high.reshape(-1, 64), shares.view(np.uint8), d.view(np.uint8))
    return np.hstack(parts).reshape(len(values), -1)
