"""`config.json` and its neighbours, made of the tensors of a file of BlinkDL's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot.errors import CheckpointError, UnsupportedModelError
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.file_names import HEAD_ROWS

Tensors = Mapping[str, TensorInfo]
ARCHITECTURE = "RWKV_x070"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
EMBEDDING, HEAD, HEADS = "emb.weight", "head.weight", "blocks.0.att.r_k"
# Parts of names that tell what a model of this program is besides a plain RWKV-7.
_OTHERS = {
    "att.time_maa_": "RWKV-6",
    "time_mix_": "an RWKV-4 or RWKV-5",
    "att.time_decay": "an RWKV-4, RWKV-5 or RWKV-6",
    "ffn.s_emb": "an RWKV-7 with DeepEmbed",
    "ffn.s1": "an RWKV-7 with DeepEmbed",
    "att.qq": "an RWKV-7 with attention (DEA)",
}


def config_values(path: Path, tensors: Tensors) -> dict[str, Any]:
    """The object in config.json.

    Raises:
        UnsupportedModelError: another version of RWKV, or a variant.
        CheckpointError: what is no RWKV model, or lacks a tensor that tells a size.
    """
    _refuse_others(path, tensors)
    blocks = [name.split(".")[1] for name in tensors if name.startswith("blocks.")]
    numbers = [int(number) for number in blocks if number.isdecimal()]
    rows, width = _shape(path, tensors, EMBEDDING)
    ranks = {"decay": "w", "a": "a", "gate": "g"} | ({"v": "v"} if max(numbers) else {})
    return {
        "architectures": [ARCHITECTURE],
        "vocab_size": rows,
        "hidden_size": width,
        "num_hidden_layers": max(numbers) + 1,
        "head_dim": _shape(path, tensors, HEADS)[1],
        "intermediate_size": _shape(path, tensors, "blocks.0.ffn.key.weight")[0],
        "norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **_ends(rows, _shape(path, tensors, HEAD)[0]),
        "dtype": _DTYPES.get(tensors[EMBEDDING].dtype, ""),
        **{
            f"{name}_low_rank_dim": _shape(path, tensors, f"blocks.{max(numbers)}.att.{letter}1")[1]
            for name, letter in ranks.items()
        },
    }


def _ends(rows: int, spoken: int) -> dict[str, int]:
    """The token that ends an answer: the first of texts, or the last of codes, of which a head
    gives logits for fewer tokens than there are."""
    return (
        {"eos_token_id": 0} if spoken == rows else {"eos_token_id": spoken - 1, HEAD_ROWS: spoken}
    )


def _refuse_others(path: Path, tensors: Tensors) -> None:
    for part, kind in _OTHERS.items():
        name = next((name for name in tensors if part in name), "")
        if name:
            raise UnsupportedModelError(
                f"{path} is {kind} model: it has {name}",
                hint="supported of RWKV: version 7 (x070), without DeepEmbed and attention",
            )
    if HEADS not in tensors:
        raise CheckpointError(
            f"{path} is no RWKV-7 model: it lacks {HEADS}",
            hint="Of PyTorch's own files ingot reads those of RWKV-7. Convert others where you "
            "trust them, with transformers: AutoModelForCausalLM.from_pretrained(dir)"
            ".save_pretrained(new_dir), and copy the tokenizer into new_dir.",
        )


def _shape(path: Path, tensors: Tensors, name: str) -> tuple[int, ...]:
    """The shape of a matrix."""
    shape = tensors[name].shape if name in tensors else ()
    if len(shape) != 2:
        raise CheckpointError(
            f"{path} lacks the matrix {name}", hint="the file is damaged: fetch it again"
        )
    return shape
