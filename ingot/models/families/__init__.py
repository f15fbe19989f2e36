"""The model families that are built in: one file each, and the list of them."""

from __future__ import annotations

from ingot.models.families import gemma2, gpt2, llama, mistral, qwen2, qwen3
from ingot.models.family import Family

BUILT_IN: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma2.FAMILY,
    gpt2.FAMILY,
)
