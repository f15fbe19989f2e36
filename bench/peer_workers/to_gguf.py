"""Writes a model directory as GGUF, for the peers that read it; runs in a peer's environment.

    python to_gguf.py MODEL_DIR OUT.gguf bf16|fp16|int8|int4

int8 is q8_0 and int4 is q4_0 with a q8_0 head; both have a scale per 32 weights. Routers, and what
is small in a mixer with a state, are float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_states import EXACT, KINDS

Types = gguf.GGMLQuantizationType
BODY = {"bf16": Types.BF16, "fp16": Types.F16, "int8": Types.Q8_0, "int4": Types.Q4_0}
HEAD = {"bf16": Types.BF16, "fp16": Types.F16, "int8": Types.Q8_0, "int4": Types.Q8_0}
FILE_TYPES = {
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "fp16": gguf.LlamaFileType.MOSTLY_F16,
    "int8": gguf.LlamaFileType.MOSTLY_Q8_0,
    "int4": gguf.LlamaFileType.MOSTLY_Q4_0,
}
# Tokens that a text can name, for peers that take no ids: they would need minutes for all of them.
NAMED = range(512, 2048)

ARCHITECTURES = {
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "mamba2": gguf.MODEL_ARCH.MAMBA2,
    "rwkv7": gguf.MODEL_ARCH.RWKV7,
}


def main() -> None:
    model_dir, out, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = json.loads((model_dir / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"])
    if architecture is None:
        known = " and ".join(ARCHITECTURES)
        sys.exit(f"{config['model_type']} is not converted to GGUF; only {known} are")
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, config, kind)
    _add_tokens(writer, config)
    for name, values in _named(model_dir, config, architecture):
        if values.ndim == 1 or any(part in name for part in ("ffn_gate_inp", *EXACT)):
            writer.add_tensor(name, np.ascontiguousarray(values))
            continue
        kinds = HEAD if name in ("token_embd.weight", "output.weight") else BODY
        writer.add_tensor(name, gguf.quantize(values, kinds[kind]), raw_dtype=kinds[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(
    model_dir: Path, config: dict[str, Any], architecture: Any
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by its name in GGUF."""
    if config["model_type"] in KINDS:
        _, renamed = KINDS[config["model_type"]]
        yield from renamed(_tensors(model_dir), config)
        return
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in _split(_tensors(model_dir)):
        new = names.get_name(name, try_suffixes=(".weight",))
        if new is None:
            sys.exit(f"GGUF has no name for {name}")
        yield new, values


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], kind: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config.get("max_position_embeddings", 2**20))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config.get("intermediate_size", 0))
    writer.add_file_type(FILE_TYPES[kind])
    if config["model_type"] in KINDS:
        add_sizes, _ = KINDS[config["model_type"]]
        add_sizes(writer, config)
    if "num_attention_heads" in config:
        _add_attention(writer, config)
    experts = config.get("num_experts", config.get("num_local_experts"))
    if experts is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_attention(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_tokens(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Names for the ids: speed needs no text, but the readers need a vocabulary."""
    # A merge, which readers need, is of two tokens into a third.
    letters = [*sorted(_byte_letters().values()), "ab"]
    size = config["vocab_size"]
    tokens = (letters + [f"<|{i}|>" for i in range(len(letters), size)])[:size]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i in NAMED else normal for i in range(size)])
    writer.add_token_merges(["a b"])
    eos = config.get("eos_token_id") or 0
    writer.add_eos_token_id(eos if isinstance(eos, int) else eos[0])
    writer.add_bos_token_id(config.get("bos_token_id") or 0)
    writer.add_add_bos_token(False)


def _byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _split(tensors: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Stacks of experts by the names that GGUF knows, with gate and up apart."""
    for name, values in tensors:
        base, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                yield f"{base}.{part}_proj.weight", np.ascontiguousarray(half)
        else:
            yield f"{name}.weight" if last == "down_proj" else name, values


def _tensors(model_dir: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor as float32, from bfloat16 safetensors."""
    for file in sorted(model_dir.glob("*.safetensors")):
        data = np.memmap(file, np.uint8, "r")
        length = int.from_bytes(bytes(data[:8]), "little")
        header = json.loads(bytes(data[8 : 8 + length]))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                sys.exit(f"{name} is {entry['dtype']}; only BF16 is converted")
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            bits = data[begin:end].view(np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])


if __name__ == "__main__":
    main()
