"""The model families that are built in: one file each, and the list of them."""

from __future__ import annotations

from ingot.models.families import (
    gemma2,
    glm4_moe,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from ingot.models.family import Family

BUILT_IN: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma2.FAMILY,
    gpt2.FAMILY,
    mixtral.FAMILY,
    qwen2_moe.FAMILY,
    qwen3_moe.FAMILY,
    gpt_oss.FAMILY,
    glm4_moe.FAMILY,
)
