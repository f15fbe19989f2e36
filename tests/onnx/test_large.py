"""Weights of more than 2 GB, which no file of protobuf can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bench.make_model import write_byte_tokenizer
from ingot.onnx import export_onnx

VOCAB, WIDTH, INNER, HEADS, SIZE = 70_000, 8192, 256, 8, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_theta": 1e4,
    "torch_dtype": "bfloat16",
}


def save(folder: Path) -> Path:
    """One layer below a table of 70,000 rows, in bfloat16."""
    rng = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(shape, generator=rng)).bfloat16()

    heads = HEADS * SIZE
    layer = {
        **{f"self_attn.{x}_proj.weight": drawn(heads, WIDTH) for x in "qkv"},
        "self_attn.o_proj.weight": drawn(WIDTH, heads),
        **{f"mlp.{x}_proj.weight": drawn(INNER, WIDTH) for x in ("gate", "up")},
        "mlp.down_proj.weight": drawn(WIDTH, INNER),
        **{f"{x}_layernorm.weight": drawn(WIDTH) + 1 for x in ("input", "post_attention")},
    }
    tensors = {f"model.layers.0.{name}": tensor for name, tensor in layer.items()}
    table = drawn(1000, WIDTH).repeat(VOCAB // 1000, 1)
    outer = {"model.embed_tokens.weight": table, "model.norm.weight": drawn(WIDTH) + 1}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors | outer, folder / "model.safetensors", metadata={"format": "pt"})
    write_byte_tokenizer(folder, VOCAB)
    return folder


@pytest.mark.slow
def test_more_than_two_gigabytes_are_written_and_run(tmp_path: Path) -> None:
    report = export_onnx(save(tmp_path / "model"), tmp_path / "out")
    assert report.files["model.onnx.data"] > 2**31
    assert max(report.files["model.onnx"], report.files["plain.onnx"]) < 2**20
    assert set(report.errors) == {"model.onnx", "plain.onnx"}
    assert max(report.errors.values()) <= 1e-4
