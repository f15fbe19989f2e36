"""Runs a plan with the ops' references, in one real arena: what the plan says, word for word."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ingot.artifact.formats import Spans
from ingot.artifact.plan import DTYPE_BYTES, Buffer, Dim, Instruction, Plan
from ingot.compiler.quantization.search import quantize_rows
from ingot.ops import OPS

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int8": torch.int8,
}
# Tensors that rows of tokens flow through carry the plain module's batch of one in the ops.
BATCHED = {"arena", "view", "output"}
BATCHED_INPUTS = {"tokens", "positions"}


@dataclass(frozen=True)
class Step:
    """One step: for every sequence its new tokens, its context before them, and its pages."""

    tokens: Sequence[Sequence[int]]
    contexts: Sequence[int]
    pages: Sequence[Sequence[int]]


class PlanInterpreter:
    """A plan with its weights, caches and arena; `read` gives parameters by name."""

    def __init__(
        self, plan: Plan, read: Callable[[str], torch.Tensor], *, num_pages: int = 16
    ) -> None:
        self.plan = plan
        self.buffers = plan.by_name()
        # Every bit set: NaN wherever something is read that was not written.
        self.arena = torch.full((plan.memory.arena_bytes,), 0xFF, dtype=torch.uint8)
        self.weights = {
            weight.name: torch.cat([read(name).float() for name in weight.sources]).to(
                DTYPES[weight.dtype]
            )
            for weight in plan.of_kind("weight")
            if weight.dtype in ("float32", "bfloat16")
        }
        for scales in (weight for weight in plan.of_kind("weight") if weight.dtype == "float16"):
            self._quantize(scales, torch.cat([read(name) for name in scales.sources]))
        self.caches = {
            cache.name: torch.zeros((num_pages, *cache.shape[1:]), dtype=DTYPES[cache.dtype])
            for cache in plan.of_kind("cache")
        }

    def _quantize(self, scales: Buffer, weight: torch.Tensor) -> None:
        stored = self.buffers[scales.base]
        multipliers = self.buffers.get(f"{stored.name}_multipliers", scales)
        group, block = (int(stored.shape[1]) // int(b.shape[1]) for b in (multipliers, scales))
        bits = 4 if stored.dtype == "int4" else 8
        found = quantize_rows(weight, bits=bits, spans=Spans(group, block))
        self.weights[stored.name], self.weights[scales.name] = found.values, found.scales
        if found.multipliers is not None:
            self.weights[multipliers.name] = found.multipliers

    def run(self, step: Step) -> torch.Tensor:
        """Logits of every row of the step: [N, V]."""
        self.inputs = self._inputs(step)
        self.sizes = {"N": len(self.inputs["tokens"]), "R": len(self.inputs["logit_rows"])}
        self.results: dict[str, torch.Tensor] = {}
        for instruction in self.plan.instructions:
            self._execute(instruction)
        return self.results["logits"]

    def _inputs(self, step: Step) -> Mapping[str, torch.Tensor]:
        page = self.plan.limits.page_size
        tokens, positions, slots, starts = [], [], [], [0]
        for new, context, pages in zip(step.tokens, step.contexts, step.pages, strict=True):
            where = range(context, context + len(new))
            tokens += new
            positions += where
            slots += [pages[p // page] * page + p % page for p in where]
            starts.append(len(tokens))
        longest = max(map(len, step.pages))
        values = {
            "tokens": tokens,
            "positions": positions,
            "slots": slots,
            "query_start": starts,
            "context_lens": [c + len(t) for c, t in zip(step.contexts, step.tokens, strict=True)],
            "page_table": [[*p, *[0] * (longest - len(p))] for p in step.pages],
            "logit_rows": range(len(tokens)),
        }
        return {name: torch.tensor(list(v), dtype=torch.int32) for name, v in values.items()}

    def _execute(self, instruction: Instruction) -> None:
        op = OPS[instruction.op]
        absent = {"bias", "weight_multipliers"} & inspect.signature(op.reference).parameters.keys()
        kwargs = dict.fromkeys(absent) | {k: self._tensor(v) for k, v in instruction.inputs.items()}
        outs = [self.buffers[name] for name in instruction.outputs.values()]
        if outs and "out_dtype" in op.reference.__annotations__:
            kwargs["out_dtype"] = DTYPES[outs[0].dtype]
        results = op.reference(**kwargs, **instruction.attrs)
        results = results if isinstance(results, tuple) else (results,)
        for buffer, result in zip(outs, results, strict=False):
            self._store(buffer, result[0])

    def _tensor(self, name: str) -> torch.Tensor:
        buffer = self.buffers[name]
        if buffer.kind == "weight":
            return self.weights[name]
        if buffer.kind == "cache":
            return self.caches[name]
        if buffer.kind == "input":
            value = self.inputs[name]
            return value[None] if name in BATCHED_INPUTS else value
        return self._in_arena(buffer)[None]

    def _store(self, buffer: Buffer, value: torch.Tensor) -> None:
        if buffer.kind == "output":
            self.results[buffer.name] = value.clone()
        else:
            self._in_arena(buffer).copy_(value)

    def _in_arena(self, buffer: Buffer) -> torch.Tensor:
        base = self.buffers[buffer.base] if buffer.kind == "view" else buffer
        inner = [self._size(dim) for dim in buffer.shape[1:]]
        dense = math.prod(self._size(dim) for dim in base.shape[1:])
        stride = buffer.row_stride if buffer.kind == "view" else dense
        start = base.offset + (
            buffer.offset * DTYPE_BYTES[base.dtype] if buffer.kind == "view" else 0
        )
        flat = self.arena.view(DTYPES[buffer.dtype])
        inner_strides = [math.prod(inner[i + 1 :]) for i in range(len(inner))]
        return flat.as_strided(
            [self._size(buffer.shape[0]), *inner],
            [stride, *inner_strides],
            start // DTYPE_BYTES[buffer.dtype],
        )

    def _size(self, dim: Dim) -> int:
        return dim if isinstance(dim, int) else self.sizes[dim]
