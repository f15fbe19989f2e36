"""Writes a tiny model of speech with random weights and two voices: an RWKV-7 as RWKVTTS has them.

    python examples/tiny_voice.py FOLDER

It speaks noise, in the tokens of the real ones. FOLDER gets `rwkv7.pth`, whose one table has rows
for speech, its end, tags, voices and texts, and whose head has rows for speech and its end alone;
and `anna.state` and `ben.state`, as tuning a state leaves them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

SPEECH, TAGS, VOICE, TEXT = 8192, 3, 4096, 65536  # how many tokens there are of each
LAYERS, WIDTH, HEAD, RANK = 2, 64, 32, 8
HEADS = WIDTH // HEAD


def write_voice(folder: Path) -> int:
    """Writes the model and the voices; the same numbers each time. Returns how many they are."""
    rng = torch.Generator().manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = tensors(rng)
    torch.save(numbers, folder / "rwkv7.pth")
    for name in ("anna", "ben"):
        state = {
            f"blocks.{i}.att.time_state": torch.randn(HEADS, HEAD, HEAD, generator=rng)
            for i in range(LAYERS)
        }
        torch.save(state, folder / f"{name}.state")
    return sum(tensor.numel() for tensor in numbers.values())


def tensors(rng: torch.Generator) -> Mapping[str, torch.Tensor]:
    """The tensors of a model. Matrices keep the size of what they multiply."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=rng) * columns**-0.5

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)}

    def vector(value: float) -> torch.Tensor:
        return torch.full((1, 1, WIDTH), value)

    rows = SPEECH + 1 + TAGS + VOICE + TEXT
    made = {"emb.weight": torch.randn(rows, WIDTH, generator=rng), **norm("blocks.0.ln0")}
    for i in range(LAYERS):
        att, ffn = f"blocks.{i}.att", f"blocks.{i}.ffn"
        made |= {**norm(f"blocks.{i}.ln1"), **norm(f"blocks.{i}.ln2"), **norm(f"{att}.ln_x")}
        made |= {f"{att}.x_{name}": vector(0.5) for name in "rwkvag"}
        for name, value in {"w": -4.0, "a": 0.0, "v": 0.0}.items():
            made[f"{att}.{name}0"] = vector(value)
        for name in "wavg":
            made[f"{att}.{name}1"] = matrix(WIDTH, RANK)
            made[f"{att}.{name}2"] = matrix(RANK, WIDTH)
        made |= {f"{att}.k_k": vector(0.8), f"{att}.k_a": vector(1.0)}
        made[f"{att}.r_k"] = matrix(HEADS, HEAD)
        for name in ("receptance", "key", "value", "output"):
            made[f"{att}.{name}.weight"] = matrix(WIDTH, WIDTH)
        made[f"{ffn}.x_k"] = vector(0.5)
        made[f"{ffn}.key.weight"] = matrix(4 * WIDTH, WIDTH)
        made[f"{ffn}.value.weight"] = matrix(WIDTH, 4 * WIDTH)
    return {**made, **norm("ln_out"), "head.weight": matrix(SPEECH + 1, WIDTH)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"{sys.argv[1]}: {write_voice(Path(sys.argv[1]))} random numbers and two voices")
