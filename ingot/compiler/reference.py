"""The float32 reference: the exported graph, run over several prompts with streamed weights.

Rule 2 of the design keeps this small. Only attention lets tokens meet, so the graph can run node by
node, each node for all prompts before the next. Each weight is read, widened to float32, used for
all prompts at once, and dropped. A model of any size needs memory for one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.ops import OPS
from ingot.ops.expert_gate import gated, picks
from ingot.ops.scaled import Operand, Scaled
from ingot.ops.stacks import matrix_name
from ingot.passes.graph import arguments
from ingot.passes.verification import on_cpu

ReadParameter = Callable[[str], Operand]

# Weight rows widened to float32 at a time. Bounds the memory that a large head takes.
ROWS_AT_ONCE = 2048


def reference_logits(
    gm: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Logits of every position of every prompt.

    Args:
        gm: the exported graph, forward(input_ids[1,T], positions[1,T]) -> logits[1,T,V].
        read: gives a parameter or constant by name, on the CPU, in any float dtype, or in integers
            with scales, of which only the rows at hand become numbers.
        prompts: token ids, a non-empty list for each prompt.

    Returns:
        A float32 tensor [T, V] for each prompt.
    """
    return [logits[0] for logits in Interpreter(gm, read, prompts).run()]


class Interpreter:
    """Runs a graph over several prompts in lockstep; a value has a tensor for each prompt."""

    def __init__(
        self, gm: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
    ) -> None:
        self.gm = gm
        self.read = read
        self.inputs = [
            (torch.tensor([list(tokens)]), torch.arange(len(tokens))[None]) for tokens in prompts
        ]
        self.values: dict[Node, list[Any]] = {}
        self.widened = torch.empty(0)

    @torch.inference_mode()
    def run(self) -> list[torch.Tensor]:
        last_use = {arg: node for node in self.gm.graph.nodes for arg in node.all_input_nodes}
        inputs = zip(*self.inputs, strict=True)
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = list(next(inputs))
            elif node.op == "output":
                (result,) = node.all_input_nodes
                return self.values[result]
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            if self.finished():
                return []
            for arg in node.all_input_nodes:
                if last_use[arg] is node:
                    self.values.pop(arg, None)
        raise AssertionError("an exported graph ends with an output node")

    def _call(self, node: Node) -> list[Any]:
        if node.target is torch.ops.aten.linear.default:
            return self._linear(node)
        if node.target is torch.ops.aten.embedding.default:
            return self._embedding(node)
        if node.target is OPS["experts"].overload:
            return self._experts(node)
        weights = {a: self._parameter(a) for a in node.all_input_nodes if a.op == "get_attr"}
        return [self._apply(node, weights, index) for index in range(len(self.inputs))]

    def _apply(self, node: Node, weights: dict[Node, torch.Tensor], index: int) -> Any:
        def value(arg: Node) -> Any:
            return weights[arg] if arg in weights else self.values[arg][index]

        args = [on_cpu(arg) for arg in torch.fx.node.map_arg(node.args, value)]
        kwargs = {k: on_cpu(v) for k, v in torch.fx.node.map_arg(node.kwargs, value).items()}
        return self.apply(node, index, args, kwargs)

    def apply(self, node: Node, index: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The value of a node, from those that it is given."""
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _parameter(self, node: Node) -> torch.Tensor:
        value = self.read(str(node.target))
        tensor = value.dequantize() if isinstance(value, Scaled) else value
        return tensor.float() if tensor.is_floating_point() else tensor

    def _linear(self, node: Node) -> list[torch.Tensor]:
        x, weight, *rest = node.args
        assert isinstance(x, Node) and isinstance(weight, Node)
        # Another library's module may take the batch off before a product.
        given = [value.reshape(1, -1, value.shape[-1]) for value in self.values[x]]
        lengths, rows = [value.shape[1] for value in given], torch.cat(given, dim=1)
        matrix = self.weight_of(node, rows)
        # One place for all of the result: pieces of it between pieces of the weight would keep the
        # memory of the latter from being used again.
        out = torch.empty(*rows.shape[:-1], matrix.shape[0])
        for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            out[..., part] = torch.nn.functional.linear(rows, self._wide(matrix[part]))
        if rest and isinstance(rest[0], Node):
            out += self._parameter(rest[0])
        parts = zip(out.split(lengths, dim=1), self.values[x], strict=True)
        return [part.reshape(*value.shape[:-1], -1) for part, value in parts]

    def _experts(self, node: Node) -> list[Any]:
        """A mixture of experts, whose weights are read one expert at a time."""
        given = arguments(node)
        x, shares = (self.values[given[name]] for name in ("x", "shares"))
        lengths = [value.shape[1] for value in x]
        rows, parts = torch.cat(x, dim=1), torch.cat(shares, dim=1)
        out = torch.zeros_like(rows)
        for expert, picking, _ in picks(parts, given["top_k"]):
            both = self._expert_product(given, "gate_up", expert, rows[:, picking])
            gate, up = both.chunk(2, -1)
            inner = gated(gate, up, given["kind"], given["limit"])
            made = self._expert_product(given, "down", expert, inner)
            out[:, picking] += parts[:, picking, expert, None] * made
        return list(out.split(lengths, dim=1))

    def _expert_product(
        self, given: dict[str, Any], which: str, expert: int, rows: torch.Tensor
    ) -> torch.Tensor:
        """Rows [1, T, K] times one matrix of a stack of experts, with its bias."""
        name, bias = str(given[which].target), given[f"{which}_bias"]
        matrix = self.matrix_of(name, expert, rows)
        out = torch.nn.functional.linear(self.rows_for(name, rows), self._wide(matrix))
        return out if bias is None else out + self._parameter(bias)[expert]

    def matrix_of(self, stack: str, index: int, rows: torch.Tensor) -> Operand:
        """The matrix of a stack that is about to be applied to `rows` [1, T, K]."""
        return self.read(matrix_name(stack, index))

    def rows_for(self, stack: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows as they are multiplied with the matrices of a stack."""
        return rows

    def _wide(self, part: Operand) -> torch.Tensor:
        """Rows of a weight in float32, until the next ones.

        They take turns in one place: memory that is new each time costs as much as the product.
        """
        if isinstance(part, Scaled):
            return part.dequantize()
        if part.dtype == torch.float32:
            return part
        if self.widened.numel() < part.numel():
            self.widened = torch.empty(part.numel())
        return self.widened[: part.numel()].view(part.shape).copy_(part)

    def finished(self) -> bool:
        """Whether the rest of the graph is not needed."""
        return False

    def weight_of(self, node: Node, rows: torch.Tensor) -> Operand:
        """The weight [O, I] of a linear that is about to be applied to `rows` [1, T, I]."""
        return self.read(str(node.args[1].target))  # type: ignore[union-attr]

    def _embedding(self, node: Node) -> list[torch.Tensor]:
        weight, tokens = node.args[:2]
        assert isinstance(weight, Node) and isinstance(tokens, Node)
        table = self.read(str(weight.target))
        looked_up = (table[ids] for ids in self.values[tokens])
        return [r.dequantize() if isinstance(r, Scaled) else r.float() for r in looked_up]
