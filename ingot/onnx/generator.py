"""A model that generates over a batch, with or without keys and values from before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from ingot.models.config import ModelConfig
from ingot.onnx.batched import BATCH, PAST, TOKENS, TOTAL, Batched, Run, Shape
from ingot.ops import OPS
from ingot.passes.graph import op_name, op_nodes
from ingot.passes.keep_records import record_of

KINDS = ("key", "value")  # of what is cached


class Generator(Batched):
    """input_ids, position_ids int64 [B, T], and where it is cached attention_mask [B, M] and past
    keys and values [B, K, P, D] -> logits float32 [B, T, V], and then present ones [B, K, M, D].

    Mixers that keep a record of a sequence have `past_records.0` and so on behind those, and
    `present_records.0`: float32 [B, *record], of zeros where a sequence begins. Padding stands on
    the left of a text that begins.

    The graph gives logits [1, T, V]. The others are as of `Batched`.
    """

    def __init__(self, config: ModelConfig, *given: Any, cached: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self.cached = cached
        ids: Shape = (BATCH, TOKENS)
        shapes = past_shapes(config) if cached else {}
        mask: dict[str, Shape] = {"attention_mask": (BATCH, TOTAL)} if cached else {}
        past = {f"past_key_values.{name}": shape for name, shape in shapes.items()}
        records = record_shapes(self.graph[0]) if cached else []
        kept = {f"past_records.{i}": shape for i, shape in enumerate(records)}
        self.inputs = {"input_ids": ids, **mask, "position_ids": ids, **past, **kept}
        self.output_names = ["logits", *(f"present.{name}" for name in shapes)]
        self.output_names += [f"present_records.{i}" for i in range(len(records))]

    def outputs(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        ids, run = given["input_ids"], Run(self, given)
        logits = run.run(ids.reshape(1, -1), given["position_ids"].reshape(1, -1))
        present = [*run.present, *run.records] if self.cached else []
        return (logits.reshape(*ids.shape, logits.shape[-1]), *present)


def past_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Shapes of the keys and values of before, by the layers that attend."""
    found: dict[str, Shape] = {}
    attending = [mixer.cached for mixer in config.mixers if mixer.cached]
    for index, cached in enumerate(attending):
        for place, kind in enumerate(KINDS):
            heads, size = cached[min(place, len(cached) - 1)]  # of latent rows, both are one
            found[f"{index}.{kind}"] = (BATCH, heads, PAST, size)
    return found


def record_shapes(graph: GraphModule) -> list[Shape]:
    """Shapes of the records of before, in the order of the mixers that keep one."""
    return [(BATCH, *record_of(node)) for node, _ in op_nodes(graph) if OPS[op_name(node)].record]
