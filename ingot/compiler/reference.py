"""The float32 reference: the exported graph, run over several prompts with streamed weights.

Rule 2 of the design keeps this small. Tokens meet in few ops, attention above all. So the graph
runs over the tokens of all prompts as if they were one, and those ops take the prompts apart. Each
weight is read, widened to float32, used once, and dropped. A model of any size needs memory for one
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.traits import TRAITS, Role
from ingot.compiler.quantization.graph_matrices import is_head
from ingot.ops import OPS
from ingot.ops.expert_gate import inner_values, picks
from ingot.ops.registry import Args
from ingot.ops.scaled import Operand, Scaled
from ingot.ops.stacks import matrix_name
from ingot.passes.graph import arguments, op_name
from ingot.passes.verification import on_cpu

ATTENTION = OPS["attention"]
ROWS = (Role.OWN, Role.PRECEDING, Role.SEQUENCE)  # of tokens, in a graph of one sequence
ReadParameter = Callable[[str], Operand]

# Weight rows widened to float32 at a time. Bounds the memory that a large head takes.
ROWS_AT_ONCE = 2048
# Tokens of the vocabulary whose logits `logits_by_parts` computes at a time.
TOKENS_AT_ONCE = 8192


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
    (logits,) = Interpreter(gm, read, prompts).run()
    return [*logits[0].split([len(tokens) for tokens in prompts])]


class Interpreter:
    """Runs a graph over several prompts, whose tokens follow each other in every value.

    Several runs can go side by side, node by node: a value is a list with a tensor for each.

    Args:
        first: of each prompt the first position whose logits are wanted; by default all are.
        runs: how many go side by side.
    """

    inference = True  # whether nothing needs gradients

    def __init__(
        self,
        gm: GraphModule,
        read: ReadParameter,
        prompts: Sequence[Sequence[int]],
        first: Sequence[int] = (),
        *,
        runs: int = 1,
    ) -> None:
        self.gm = gm
        self.read = read
        self.runs = runs
        self.feed(prompts, [0] * len(prompts), first)
        self.values: dict[Node, list[Any]] = {}
        self.widened = torch.empty(0)
        self.part: slice | None = None  # of the vocabulary, once the head is computed by parts
        self._head = dict[tuple[ReadParameter, str], Operand]()  # what it reads, meanwhile
        self._last_use = {arg: node for node in gm.graph.nodes for arg in node.all_input_nodes}

    def feed(
        self, prompts: Sequence[Sequence[int]], starts: Sequence[int], first: Sequence[int]
    ) -> None:
        """Takes the tokens of prompts, of which each begins at a position of its own."""
        self.lengths = [len(tokens) for tokens in prompts]
        places = [range(start, start + n) for start, n in zip(starts, self.lengths, strict=True)]
        self.tokens = torch.tensor([[token for tokens in prompts for token in tokens]])
        self.positions = torch.tensor([[position for place in places for position in place]])
        wanted = zip(first or [0] * len(prompts), self.lengths, strict=True)
        self.wanted = [start <= i for start, length in wanted for i in range(length)]

    def run(self) -> list[torch.Tensor]:
        """Logits [1, N, V] of each run, of the N wanted positions of all prompts."""
        body, tail = self._halves()
        self._compute(body)
        if self.finished():
            return []
        self._keep_wanted(tail[0])
        return self._compute(tail)

    def logits_by_parts(self) -> Iterator[list[torch.Tensor]]:
        """The same logits, those of some tokens at a time, in the order of the vocabulary.

        They come all at once where what follows the head is not computed number by number.
        """
        body, tail = self._halves()
        self._compute(body)
        self._keep_wanted(tail[0])
        if len(tail) == 1 or not all(map(_is_by_number, tail[1:-1])):
            yield self._compute(tail)
            return
        given = dict(self.values)
        size = self.fetched(self.read, str(tail[0].args[1].target)).shape[0]  # type: ignore[union-attr]
        for start in range(0, size, TOKENS_AT_ONCE):
            self.part, self.values = slice(start, start + TOKENS_AT_ONCE), dict(given)
            yield self._compute(tail)
        self.part, self._head = None, {}

    def _halves(self) -> tuple[list[Node], list[Node]]:
        """The nodes before the head, and those from it on. Where what follows the head reads more
        than its results, or there is no head, only the output comes after the first half."""
        nodes = list(self.gm.graph.nodes)
        linear = torch.ops.aten.linear.default
        place = next((i for i, n in enumerate(nodes) if n.target is linear and is_head(n)), -1)
        tail = set(nodes[place:])
        others = {arg for node in nodes[place + 1 :] for arg in node.all_input_nodes} - tail
        if any(arg.op != "get_attr" for arg in others):
            place = -1
        return nodes[:place], nodes[place:]

    def _keep_wanted(self, head: Node) -> None:
        """Drops the rows of what the head reads, or of logits, that are not wanted."""
        if not all(self.wanted):
            x = head.all_input_nodes[0]
            self.values[x] = [value[..., self.wanted, :] for value in self.values[x]]

    def _compute(self, nodes: Sequence[Node]) -> list[torch.Tensor]:
        """Computes nodes, and returns what the output gets; nothing unless it is among them."""
        with torch.inference_mode() if self.inference else nullcontext():
            return self._computed(nodes)

    def _computed(self, nodes: Sequence[Node]) -> list[torch.Tensor]:
        inputs = iter((self.tokens, self.positions))
        for node in nodes:
            if node.op == "placeholder":
                self.values[node] = [next(inputs)] * self.runs
            elif node.op == "output":
                (result,) = node.all_input_nodes
                return self.values[result]
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            if self.finished():
                break
            for arg in node.all_input_nodes:
                if self._last_use[arg] is node:
                    self.values.pop(arg, None)
        return []

    def fetched(self, read: ReadParameter, name: str) -> Operand:
        """A parameter; of the head's the rows of the part at hand, for which it is read once."""
        if self.part is None:
            return read(name)
        key = (read, name)
        if key not in self._head:
            self._head[key] = read(name)
        return self._head[key][self.part]

    def _call(self, node: Node) -> list[Any]:
        if node.target is torch.ops.aten.linear.default:
            return self._linear(node)
        if node.target is torch.ops.aten.embedding.default:
            return self._embedding(node)
        if node.target is OPS["experts"].overload:
            return self._experts(node)
        weights = {a: self._parameter(a) for a in node.all_input_nodes if a.op == "get_attr"}
        return [self._apply(node, weights, run) for run in range(self.runs)]

    def _apply(self, node: Node, weights: dict[Node, torch.Tensor], run: int) -> Any:
        def value(arg: Node) -> Any:
            return weights[arg] if arg in weights else self.values[arg][run]

        args = [on_cpu(arg) for arg in torch.fx.node.map_arg(node.args, value)]
        kwargs = {k: on_cpu(v) for k, v in torch.fx.node.map_arg(node.kwargs, value).items()}
        return self.apply(node, run, args, kwargs)

    def apply(self, node: Node, run: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The value of a node in a run, from those that it is given."""
        traits = TRAITS.get(op_name(node))
        if traits is not None and traits.arguments(Role.CHOSEN):  # a row of all rows of a text
            texts = args[0].split(self.lengths, dim=1)
            return torch.cat([node.target(text, *args[1:], **kwargs) for text in texts], dim=1)  # type: ignore[operator]
        if traits is None or not traits.meets_tokens:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        op = OPS[op_name(node)]
        whole = op.bind(*args, **kwargs)
        split = {
            name: rows.split(self.lengths, dim=1)
            for name in traits.arguments(*ROWS)
            if (rows := getattr(whole, name)) is not None
        }
        prompts = [
            Args(**(vars(whole) | {name: rows[i] for name, rows in split.items()}))
            for i in range(len(self.lengths))
        ]
        meet = self.attend if op is ATTENTION else self.meet
        found = [meet(node, run, i, given) for i, given in enumerate(prompts)]
        return torch.cat(found, dim=1)

    def attend(self, node: Node, run: int, prompt: int, given: Args) -> torch.Tensor:
        """Attention of one prompt, [1, N, H, V]; the arguments are those of `attention`."""
        out: torch.Tensor = ATTENTION.reference(**vars(given))
        return out

    def meet(self, node: Node, run: int, prompt: int, given: Args) -> torch.Tensor:
        """Another op in which tokens of one prompt meet, [1, N, ..]; the arguments are its own."""
        out: torch.Tensor = OPS[op_name(node)].reference(**vars(given))
        return out

    def _parameter(self, node: Node) -> torch.Tensor:
        value = self.fetched(self.read, str(node.target))
        tensor = value.dequantize() if isinstance(value, Scaled) else value
        return tensor.float() if tensor.is_floating_point() else tensor

    def _linear(self, node: Node) -> list[torch.Tensor]:
        x, weight, *rest = node.args
        assert isinstance(x, Node) and isinstance(weight, Node)
        # Another library's module may take the batch off before a product.
        given = [value.reshape(1, -1, value.shape[-1]) for value in self.values[x]]
        lengths, rows = [value.shape[1] for value in given], _joined(given)
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
        rows, parts = _joined(x), _joined(shares)
        out = torch.zeros_like(rows)
        for expert, picking, _ in picks(parts, given["top_k"]):
            first = self._expert_product(given, "gate_up", expert, rows[:, picking])
            inner = inner_values(first, given["kind"], given["limit"], given["plain"])
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
        """True once the rest of the graph is not needed."""
        return False

    def weight_of(self, node: Node, rows: torch.Tensor) -> Operand:
        """The weight [O, I] of a linear that is about to be applied to `rows` [1, T, I]."""
        return self.fetched(self.read, str(node.args[1].target))  # type: ignore[union-attr]

    def _embedding(self, node: Node) -> list[torch.Tensor]:
        weight, tokens = node.args[:2]
        assert isinstance(weight, Node) and isinstance(tokens, Node)
        table = self.read(str(weight.target))
        looked_up = (table[ids] for ids in self.values[tokens])
        return [r.dequantize() if isinstance(r, Scaled) else r.float() for r in looked_up]


def _joined(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of all runs [1, T, K]."""
    return values[0] if len(values) == 1 else torch.cat([*values], dim=1)


def _is_by_number(node: Node) -> bool:
    """Returns whether a node is elementwise in its one input."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and all(arg.op != "get_attr" for arg in node.all_input_nodes)
