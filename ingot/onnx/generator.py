"""A model that generates over a batch, with or without keys and values from before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ingot.models.config import ModelConfig
from ingot.onnx.batched import BATCH, PAST, TOKENS, TOTAL, Batched, Run, Shape

KINDS = ("key", "value")  # of what is cached


class Generator(Batched):
    """input_ids, position_ids int64 [B, T], and where it is cached attention_mask [B, M] and past
    keys and values [B, K, P, D] -> logits float32 [B, T, V], and then present ones [B, K, M, D].

    The graph gives logits [1, T, V]. The others are as of `Batched`.
    """

    def __init__(self, config: ModelConfig, *given: Any, cached: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self.cached = cached
        ids: Shape = (BATCH, TOKENS)
        shapes = past_shapes(config) if cached else {}
        mask: dict[str, Shape] = {"attention_mask": (BATCH, TOTAL)} if cached else {}
        past = {f"past_key_values.{name}": shape for name, shape in shapes.items()}
        self.inputs = {"input_ids": ids, **mask, "position_ids": ids, **past}
        self.output_names = ["logits", *(f"present.{name}" for name in shapes)]

    def outputs(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        ids, run = given["input_ids"], Run(self, given)
        logits = run.run(ids.reshape(1, -1), given["position_ids"].reshape(1, -1))
        present = run.present if self.cached else []
        return (logits.reshape(*ids.shape, logits.shape[-1]), *present)


def past_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Shapes of the keys and values of before, layer by layer."""
    found: dict[str, Shape] = {}
    for index, layer in enumerate(config.layers):
        cached = layer.mixer.cached
        for place, kind in enumerate(KINDS):
            heads, size = cached[min(place, len(cached) - 1)]  # of latent rows, both are one
            found[f"{index}.{kind}"] = (BATCH, heads, PAST, size)
    return found
