"""Serves RWKV-7 with BlinkDL's package `rwkv`: a checkpoint of fla's, or a .pth of its own.

    python run_rwkv.py MODEL_DIR|FILE.pth THREADS CONTEXT STREAMS fp32|bf16

It has no batches of sequences: streams run one after the other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from loop import Generate, seconds_of, serve
from safetensors.torch import load_file

os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0"}
OWN = {
    "model.embeddings": "emb",
    "model.layers.0.pre_norm": "blocks.0.ln0",
    "model.norm": "ln_out",
    "lm_head": "head",
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "attn.g_norm": "att.ln_x",
    "attn.r_proj": "att.receptance",
    "attn.k_proj": "att.key",
    "attn.v_proj": "att.value",
    "attn.o_proj": "att.output",
}
LOW = {"0.weight": 1, "2.weight": 2, "2.bias": 0}


def own_name(name: str) -> str:
    """A tensor of fla's by BlinkDL's name."""
    for theirs, own in OWN.items():
        name = name.replace(theirs, own, 1)
    name = name.replace("model.layers.", "blocks.").replace(".attn.", ".att.")
    for letter in "wavg":
        for theirs, number in LOW.items():
            name = name.replace(f"{letter}_lora.lora.{theirs}", f"{letter}{number}")
    return name


def own_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of fla's as BlinkDL's files have them."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            new = own_name(name)
            low = new.rpartition(".")[2]
            turned = len(low) == 2 and low[0] in "wavg" and low[1] in "12"
            vector = low in ("k_k", "k_a", "x_k", "w0", "a0", "v0")
            found[new] = values.t().contiguous() if turned else values
            if vector:
                found[new] = values.reshape(1, 1, -1)
    if "blocks.0.att.a0" not in found:
        sys.exit("it reads RWKV-7 alone")
    for number in (0, 1, 2):  # its first layer has matrices that nothing reads
        found[f"blocks.0.att.v{number}"] = found[f"blocks.0.att.a{number}"]
    return found


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    from rwkv.model import RWKV

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        file = Path(path)
        if file.is_dir():
            file = Path(folder) / "model.pth"
            torch.save(own_tensors(Path(path)), file)
        model = RWKV(model=str(file.with_suffix("")), strategy=f"cpu {sys.argv[5]}")

    def complete(prompts: list[list[int]], new_tokens: int) -> Iterator[int]:
        states = [model.forward(prompt, None)[1] for prompt in prompts]
        yield 0
        for count in range(1, new_tokens):
            states = [model.forward([count], state)[1] for state in states]
            yield count

    return lambda prompts, new_tokens: seconds_of(complete(prompts, new_tokens))


if __name__ == "__main__":
    serve(open_model)
