"""A model's graph over a batch of sequences.

Only mixers let tokens meet (design, rule 2). So the tokens of a batch are laid side by side and run
through the graph of one sequence as it is, and mixers alone are told which belong together and what
came before. An op runs as one operator where ONNX has it, and else as its reference, of
which every call is standard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ingot.artifact.traits import Role, Traits
from ingot.onnx.attention import attend, visible
from ingot.onnx.records import MIXERS
from ingot.onnx.weights import Weight, Weights
from ingot.ops import OPS
from ingot.ops.attention import DistanceBias, SoftmaxScope
from ingot.ops.registry import Args

BATCH, TOKENS, PAST, TOTAL = (
    "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length",
)  # fmt: skip

Attend = Callable[..., tuple[Tensor, Tensor, Tensor]]
Shape = tuple[str | int, ...]  # a name is that of a size which each call may choose


class Batched(nn.Module):
    """A graph in primitives as what an ONNX file computes: named inputs to named outputs.

    Args:
        graph: the model, forward(input_ids[1,T], positions[1,T]).
        operators: what calls the operator of an op that ONNX has one for, by name.
        narrow: the dtype of products, keys and values.
    """

    inputs: Mapping[str, Shape]
    output_names: list[str]

    def __init__(
        self,
        graph: GraphModule,
        make_weights: Callable[[], Weights],
        *,
        operators: Mapping[str, Callable[..., Any]],
        narrow: torch.dtype,
    ) -> None:
        super().__init__()
        self.weights = make_weights()
        self.graph = (graph,)  # in a tuple, so that its parameters are not this module's
        self.operators, self.narrow = operators, narrow

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.outputs(dict(zip(self.inputs, inputs, strict=True)))

    def outputs(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs, by the inputs' names."""
        raise NotImplementedError


class Run(torch.fx.Interpreter):
    """One run of the graph over the tokens of a batch, [1, B*T]."""

    def __init__(self, module: Batched, given: Mapping[str, Tensor]) -> None:
        super().__init__(module.graph[0])
        self.own = module
        self.given = given
        self.batch = tuple(given["input_ids"].shape)
        self.masks: dict[tuple[int, bool], Tensor] = {}
        self.present: list[Tensor] = []
        self.records: list[Tensor] = []
        self.layer = 0

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.own.weights.get(target)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = OP_NAMES.get(target, "")
        if not name:
            args, kwargs = torch.fx.node.map_aggregate((args, kwargs), numbers)
            kwargs = {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}
            return target(*args, **kwargs)
        op = OPS[name]
        given = vars(op.bind(*args, **kwargs))
        if name in MIXERS:
            return self.recur(name, {key: numbers(value) for key, value in given.items()})
        if op.traits.meets_tokens:
            return self.attention(scope_of(given, self.batch), **given)
        if name in OF_WHOLE_ROWS:
            return self.product(op.traits, given)
        given = {key: numbers(value) for key, value in given.items()}
        return self.own.operators.get(name, op.reference)(**given)

    def product(self, traits: Traits, given: Mapping[str, Any]) -> Tensor:
        """Applies a matrix: a product, or a look-up of rows; and a bias, if there is one."""
        x, weight = (given[n] for n in (*traits.arguments(Role.OWN), *traits.integers))
        if traits.matrix:
            narrow = torch.float32 if weight.wide else self.own.narrow
            result: Tensor = weight.product(x.to(narrow)).float()
        else:
            result = weight.rows(x)
        for bias in traits.arguments(Role.VECTOR):
            result = result if given[bias] is None else result + numbers(given[bias])
        return result

    def attention(
        self, scope: SoftmaxScope, q: Tensor, k: Tensor, v: Tensor | None, value_size: int, **_: Any
    ) -> Tensor:
        """q [1, B*T, H, D], k and v [1, B*T, K, D] -> [1, B*T, H, D].

        Where values are the first columns of keys, whole keys take their place, and of the result
        those columns are what counts: programs that run ONNX expect keys and values of one shape.
        """
        flat = [
            x.reshape(*self.batch, -1).to(self.own.narrow) for x in (q, k, k if v is None else v)
        ]
        key, value = (f"past_key_values.{self.layer}.{x}" for x in ("key", "value"))
        past = self.given.get(key), self.given.get(value)
        heads = q.shape[2], k.shape[2]
        attend_with: Attend = self.own.operators.get("attention", attend)
        mixed, *present = attend_with(*flat, self.mask(scope), past, heads, scope)
        self.present += present
        self.layer += 1
        whole = mixed.reshape(q.shape).float()
        return whole if v is not None else whole[..., :value_size]

    def recur(self, name: str, given: dict[str, Any]) -> Tensor:
        """A mixer that goes on from the records of before: zeros where the file is given none.

        Rows [1, B*T, ...] -> [1, B*T, ...].
        """
        op, given = OPS[name], {**given}
        for key in op.traits.arguments(Role.PRECEDING):
            if given[key] is not None:
                given[key] = self.there(given[key].reshape(*self.batch, *given[key].shape[2:]))
        before = self.given.get(f"past_records.{len(self.records)}")
        if before is None:
            assert op.record is not None, "it keeps a record"
            before = torch.zeros((self.batch[0], *op.record(Args(**given))))
        out, after = MIXERS[name](given, before)
        self.records.append(after)
        return out.reshape(1, -1, *out.shape[2:])

    def there(self, rows: Tensor) -> Tensor:
        """Rows [B, T, ...], of zeros where there is padding: they leave records as they are."""
        mask = self.given.get("attention_mask")
        if mask is None:
            return rows
        new = mask[:, -self.batch[1] :].reshape(*self.batch, *[1] * (rows.dim() - 2))
        return torch.where(new != 0, rows, 0.0)

    def mask(self, scope: SoftmaxScope) -> Tensor:
        """Mask of visible keys, made once for all layers of one kind."""
        window, causal = kind = scope.window, scope.causal
        if kind not in self.masks:
            mask = self.given.get("attention_mask")
            self.masks[kind] = visible(mask, self.given["input_ids"], window, causal=causal)
        return self.masks[kind]


def scope_of(given: Mapping[str, Any], batch: tuple[int, ...]) -> SoftmaxScope:
    """What attention is over, by its arguments, of a batch [B, T]."""
    names = ("scale", "window", "softcap", "sinks", "causal")
    return SoftmaxScope(
        **{name: numbers(given[name]) for name in names}, bias=bias_of(given, batch)
    )


def bias_of(given: Mapping[str, Any], batch: tuple[int, ...]) -> DistanceBias | None:
    """What is added to scores by distance, if anything is."""
    if given["buckets"] is None:
        return None
    queries, keys = (
        rows if rows is None else rows.reshape(*batch, *rows.shape[2:])
        for rows in (given["q_bias"], given["k_bias"])
    )
    return DistanceBias(numbers(given["buckets"]), numbers(given["bias"]), queries, keys)


def numbers(value: Any) -> Any:
    """A weight as a tensor; anything else as it is."""
    return value.numbers() if isinstance(value, Weight) else value


OF_WHOLE_ROWS = ("linear", "embedding")  # what a weight of its own kind computes
OP_NAMES = {op.overload: name for name, op in OPS.items()}
