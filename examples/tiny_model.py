"""Writes a tiny model directory with random weights, to try things on: a Llama of two layers.

    python examples/tiny_model.py FOLDER

It writes the three files of a model by hand, so it needs neither PyTorch nor safetensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_model(folder: Path, config: Mapping[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """Writes a model directory; the same config gives the same bytes. Returns the tensors."""
    tensors = random_weights(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", tensors)
    write_tokenizer(folder / "tokenizer.json")
    return tensors


def random_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a Llama by name. Their size keeps numbers from growing through the layers."""
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in shapes(config).items():
        if len(shape) == 1:
            values = rng.normal(1.0, 0.1, shape)
        else:
            values = rng.normal(0.0, 2.0 * shape[1] ** -0.5, shape)
        found[f"{name}.weight"] = values.astype(np.float32)
    return found


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by its name without `.weight`."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["head_dim"] * config["num_attention_heads"]
    keys = config["head_dim"] * config["num_key_value_heads"]
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layers = {
        f"model.layers.{i}.{name}": shape
        for i in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    embedding = (config["vocab_size"], hidden)
    head = {} if config["tie_word_embeddings"] else {"lm_head": embedding}
    return {"model.embed_tokens": embedding, **layers, "model.norm": (hidden,), **head}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """The length of a header, the header in JSON, and then all numbers."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        places = [end, end := end + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": places}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)


def write_tokenizer(path: Path) -> None:
    """A tokenizer that makes a token of every byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


if __name__ == "__main__":
    written = write_model(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {sum(tensor.size for tensor in written.values())} random parameters")
