"""Small random RWKV-7 models as their programs write them: BlinkDL's files, and fla's folders.

Decays are near 1, so that the first token still moves the logits of the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]
RANKS = {"w": 8, "a": 12, "v": 4, "g": 20}
LOW = {"w": "w", "a": "a", "v": "v", "g": "g"}


def tensors(
    *,
    seed: int = 0,
    layers: int = 3,
    width: int = 64,
    head_dim: int = 16,
    inner: int = 160,
    rows: int = 320,
    head_rows: int = 0,
) -> Tensors:
    """The tensors of a model by BlinkDL's names, in float32."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int, by: float = 1.0, around: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=rng) * by + around

    def vector(by: float, around: float) -> Tensor:
        return normal(1, 1, width, by=by, around=around)

    def norm(name: str) -> Tensors:
        return {
            f"{name}.weight": normal(width, by=0.2, around=1.0),
            f"{name}.bias": normal(width, by=0.1),
        }

    made = {"emb.weight": normal(rows, width), **norm("blocks.0.ln0")}
    for i in range(layers):
        block = f"blocks.{i}"
        att, root = f"{block}.att", width**-0.5
        made |= {**norm(f"{block}.ln1"), **norm(f"{block}.ln2")}
        made |= {f"{att}.x_{name}": vector(0.2, 0.5) for name in "rwkvag"}
        # The slowest decay by far less than a thousandth a token.
        for name, around, by in (("w", -7.0, 2.0), ("a", 0.0, 1.0), ("v", 0.0, 1.0), ("g", 0, 0)):
            rank = RANKS[name]
            made[f"{att}.{name}1"] = normal(width, rank, by=root)
            made[f"{att}.{name}2"] = normal(rank, width, by=rank**-0.5)
            if name != "g":
                made[f"{att}.{name}0"] = vector(by, around)
        made |= {f"{att}.k_k": vector(0.1, 0.8), f"{att}.k_a": vector(0.1, 1.0)}
        made[f"{att}.r_k"] = normal(width // head_dim, head_dim, by=0.3)
        for name in ("receptance", "key", "value", "output"):
            made[f"{att}.{name}.weight"] = normal(width, width, by=root)
        made |= norm(f"{att}.ln_x")
        made[f"{block}.ffn.x_k"] = vector(0.2, 0.5)
        made[f"{block}.ffn.key.weight"] = normal(inner, width, by=root)
        made[f"{block}.ffn.value.weight"] = normal(width, inner, by=inner**-0.5 / 2)
    made |= norm("ln_out")
    made["head.weight"] = normal(head_rows or rows, width, by=width**-0.5)
    return made


def in_fla(found: Mapping[str, Tensor]) -> Tensors:
    """The same tensors as fla has them."""
    made = {}
    for name, tensor in found.items():
        words = name.split(".")
        if words[0] != "blocks":
            first = {"emb": "model.embeddings", "ln_out": "model.norm", "head": "lm_head"}
            made[f"{first[words[0]]}.{words[1]}"] = tensor
            continue
        layer, part, *rest = words[1:]
        into = f"model.layers.{layer}"
        norms = {"ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm"}
        matrices = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
        if part in norms:
            made[f"{into}.{norms[part]}.{rest[0]}"] = tensor
        elif part == "ffn":
            made[f"{into}.ffn.{'.'.join(rest)}"] = tensor.reshape(-1) if rest == ["x_k"] else tensor
        elif rest[0] in matrices:
            made[f"{into}.attn.{matrices[rest[0]]}.weight"] = tensor
        elif rest[0] == "ln_x":
            made[f"{into}.attn.g_norm.{rest[1]}"] = tensor
        elif rest[0][0] in LOW and rest[0][1:].isdigit():
            if (layer, rest[0][0]) == ("0", "v"):
                continue
            letter, number = rest[0]
            place = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[number]
            stored = tensor.reshape(-1) if number == "0" else tensor.T
            made[f"{into}.attn.{letter}_lora.lora.{place}"] = stored
        else:
            flat = rest[0] in ("k_k", "k_a")
            made[f"{into}.attn.{rest[0]}"] = tensor.reshape(-1) if flat else tensor
    return {name: tensor.contiguous() for name, tensor in made.items()}


def fla_config(found: Mapping[str, Tensor], **changes: Any) -> dict[str, Any]:
    """config.json of a model, as fla writes it."""
    heads, head_dim = found["blocks.0.att.r_k"].shape
    rows, width = found["emb.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in found if name.startswith("blocks."))
    ranks = {"decay": "w", "a": "a", "v": "v", "gate": "g"}
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "attn": None,
        "attn_mode": "chunk",
        "auto_map": {"AutoModelForCausalLM": "modeling_rwkv7.RWKV7ForCausalLM"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "fuse_cross_entropy": True,
        "fuse_norm": False,
        "head_dim": head_dim,
        "hidden_act": "sqrelu",
        "hidden_ratio": 4.0,
        "hidden_size": width,
        "intermediate_size": found["blocks.0.ffn.key.weight"].shape[0],
        "max_position_embeddings": 2048,
        "model_type": "rwkv7",
        "norm_bias": True,
        "norm_eps": 1e-5,
        "norm_first": True,
        "num_heads": heads,
        "num_hidden_layers": layers,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_l2warp": True,
        "value_dim": [width] * layers,
        "vocab_size": rows,
        **{
            f"{key}_low_rank_dim": found[f"blocks.0.att.{letter}1"].shape[1]
            for key, letter in ranks.items()
        },
        **changes,
    }


def save_fla(path: Path, found: Mapping[str, Tensor], **changes: Any) -> Path:
    """Writes a folder of fla."""
    path.mkdir(parents=True, exist_ok=True)
    save_file(in_fla(found), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(fla_config(found, **changes)))
    return path


def save_speech(path: Path, found: Mapping[str, Tensor], sizes: tuple[int, ...]) -> Path:
    """Writes a folder of RWKVTTS: the embedding lies in a table for each range of tokens."""
    made = in_fla(found)
    names = ("model.embeddings", "tts_tag_embedder", "global_embedder", "text_embedder")
    tables = made.pop("model.embeddings.weight").split(sizes)
    made |= {f"{n}.weight": t.contiguous() for n, t in zip(names, tables, strict=True)}
    config = fla_config(
        found,
        architectures=["RWKV7ForSpeech"],
        vocab_size=sizes[0],
        audio_global_vocab_size=sizes[2],
        text_vocab_size=sizes[3],
    )
    path.mkdir(parents=True, exist_ok=True)
    save_file(made, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def save_pth(path: Path, found: Mapping[str, Tensor]) -> Path:
    """Writes a file of BlinkDL's."""
    torch.save({**found}, path)
    return path


def vocabulary(words: Iterable[bytes]) -> bytes:
    """A vocabulary of the single bytes and these words, as the World vocabulary is written."""
    tokens = [*(bytes([byte]) for byte in range(256)), *words]
    return b"".join(_line(number, token) for number, token in enumerate(tokens, 1))


def _line(number: int, token: bytes) -> bytes:
    try:
        shown = repr(token.decode())
    except UnicodeDecodeError:
        shown = repr(token)
    return f"{number} {shown} {len(token)}\n".encode()
