"""A tiny gpt-oss as it is published: experts in mxfp4, everything else in bfloat16."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.quantized_checkpoints import Tensors, set_config
from tests.support.tiny_models import save_random

BLOCK = 32
EXPERTS = ".mlp.experts."
# That of openai/gpt-oss-20b.
SETTINGS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
        *("model.embed_tokens", "lm_head"),
    ],
}


def save_mxfp4(folder: Path) -> Path:
    """Writes the model, with a byte-level tokenizer. Its stored numbers are random."""
    save_random("gptoss_layer_types", folder, "bfloat16", tokenizer=True)
    path, rng = folder / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(path)
    for name in [name for name in tensors if EXPERTS in name and name.endswith("_proj")]:
        tensors |= packed(name, tensors.pop(name), rng)
    save_file(tensors, path, metadata={"format": "pt"})
    set_config(folder, SETTINGS)
    return folder


def packed(name: str, like: torch.Tensor, rng: torch.Generator) -> Tensors:
    """Blocks and scales for experts [E, inputs, outputs], which numbers are about as large as."""
    experts, inputs, outputs = like.shape
    shape = (experts, outputs, inputs // BLOCK)
    blocks = torch.randint(0, 256, (*shape, BLOCK // 2), generator=rng, dtype=torch.uint8)
    power = round(float(torch.log2(like.float().std() / 2.6)))  # of 16 equal codes of e2m1
    scales = torch.randint(127 + power - 1, 127 + power + 2, shape, generator=rng)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales.to(torch.uint8)}


def dequantized(folder: Path) -> torch.nn.Module:
    """The model in `transformers`, which turns the experts into numbers; float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    ).eval()
