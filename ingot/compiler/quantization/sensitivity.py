"""How much rounding costs: each matrix in each format, and the rows that are multiplied with it.

Rounding moves the results y of a product by some d. To second order, and where errors of different
numbers are independent, the divergence KL(model || rounded model) grows by the sum over y of F d^2
/ 2. F is the Fisher information: the square of the gradient of log p(tokens) by y, with tokens
drawn from the model's own distribution. So one pass back through the model tells what an error is
worth, in nats, wherever it is made (Martens, "New insights and perspectives on the natural gradient
method", 2014). On two real models what is expected of weights and rows together is 0.9 to 1.3 times
what is measured.

The graph runs piece by piece, about a layer each: forward without keeping anything but what lies
between pieces, and then back, each piece once more with its gradients. Memory holds one weight and
what one piece computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import rounded_rows
from ingot.compiler.quantization.calibrate import usable
from ingot.compiler.quantization.costs import Costs, Way
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.reference import ROWS_AT_ONCE, Interpreter, ReadParameter
from ingot.ops import OPS
from ingot.ops.scaled import Operand, round_to
from ingot.ops.stacks import matrix_name, stack_of
from ingot.passes.graph import op_name

POSITIONS_AT_ONCE = 128  # whose logits and their gradients are in memory
SAMPLED_ROWS = 64  # of a matrix, that are rounded in each format
LEAST_NODES = 8  # of a piece of the graph
SEED = 1
TINY = 1e-30


@dataclass(slots=True)
class Seen:
    """Sums over the positions at which a matrix multiplied.

    Attributes:
        whole: what it would cost to lose the matrix, in nats.
        rows: its rows that are rounded in each format, drawn at random.
        chances: in proportion to which they were drawn.
        worth: for each number of theirs what the square of an error costs, [rows, K].
        inputs: the mean squares of its inputs, times the positions [K].
        changed: what rounding its inputs costs, by the columns that share a scale.
    """

    rows: Tensor
    chances: Tensor
    worth: Tensor
    inputs: Tensor
    whole: float = 0.0
    changed: dict[int, float] = field(default_factory=dict)


class Sensitivity(Interpreter):
    """Runs a graph forward and back, for what rounding its matrices and their rows costs.

    Args:
        gm: the exported graph. read: gives the checkpoint's numbers.
        sequences: tokens of a text.
        ways: to store every matrix that is asked for, by the name of its parameter.
        blocks: columns of its rows that may share a scale.
        dtype: of matrices that are stored plain.
        told: called with the name of a matrix on the way back.
    """

    inference = False

    def __init__(
        self,
        gm: GraphModule,
        read: ReadParameter,
        sequences: Sequence[Sequence[int]],
        ways: Mapping[str, Sequence[Way]],
        blocks: Mapping[str, Collection[int]],
        dtype: torch.dtype,
        told: Callable[[str], None] = lambda name: None,
    ) -> None:
        super().__init__(gm, read, sequences, first=[min(1, len(s) - 1) for s in sequences])
        self.ways, self.blocks, self.dtype, self.told = ways, blocks, dtype, told
        self.count = sum(self.wanted)
        self.costs = {name: Costs() for name in ways}
        self.seen: dict[str, Seen] = {}
        self.drawn = torch.Generator().manual_seed(SEED)

    def measured(self) -> dict[str, Costs]:
        """The costs of each matrix, by the name of its parameter."""
        body, tail = self._halves()
        pieces, before = self._pieces(body), []
        with torch.no_grad():
            for piece in pieces:
                before.append(dict(self.values))
                self._compute(piece)
        gradients = self._through_tail(tail)
        self._settle()
        for piece, given in zip(reversed(pieces), reversed(before), strict=True):
            gradients = self._back(piece, given, gradients)
            self._settle()
        return self.costs

    def _pieces(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Nodes in pieces, between which as few values as possible wait."""
        waiting = [len(live) for live in _live(nodes, self._last_use)]
        middle = waiting[len(waiting) // 4 : -(len(waiting) // 4) or None]
        fewest, pieces = min(middle, default=0), list[list[Node]]([[]])
        for node, count in zip(nodes, waiting, strict=True):
            pieces[-1].append(node)
            if count <= fewest and len(pieces[-1]) >= LEAST_NODES:
                pieces.append([])
        return [piece for piece in pieces if piece]

    def _through_tail(self, tail: Sequence[Node]) -> dict[Node, Tensor]:
        """The gradient by what the head reads, of log-probabilities of tokens that are drawn."""
        x, given = tail[0].all_input_nodes[0], dict(self.values)
        rows = given[x][0]
        gradient, wanted = torch.zeros_like(rows), torch.tensor(self.wanted).nonzero().flatten()
        for part in wanted.split(POSITIONS_AT_ONCE):
            with torch.enable_grad():
                leaf = _leaf(rows[..., part, :])
                self.values = {**given, x: [leaf]}
                (logits,) = self._compute(tail)
                scores = logits.float().flatten(0, -2).log_softmax(-1)
                tokens = scores.detach().exp().multinomial(1, generator=self.drawn)
                scores.gather(1, tokens).sum().backward()
            assert leaf.grad is not None
            gradient[..., part, :] = leaf.grad
        return {x: gradient}

    def _back(
        self, piece: Sequence[Node], given: dict[Node, list[Any]], gradients: dict[Node, Tensor]
    ) -> dict[Node, Tensor]:
        """The gradients by what a piece is given, from those by what it gives."""
        leaves = {node: _leaf(value) for node, (value,) in given.items()}
        self.values = {node: [leaf] for node, leaf in leaves.items()}
        with torch.enable_grad():
            self._compute(piece)
        made = {node: self.values[node][0] for node in gradients}
        known = [node for node, value in made.items() if value.requires_grad]
        torch.autograd.backward([made[n] for n in known], [gradients[n] for n in known])
        by_leaf = {node: getattr(leaf, "grad", None) for node, leaf in leaves.items()}
        return {node: gradient for node, gradient in by_leaf.items() if gradient is not None}

    def apply(self, node: Node, run: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """By the reference of an op, which has a gradient."""
        name = op_name(node)
        if name in OPS and not OPS[name].traits.meets_tokens:
            return OPS[name].reference(*args, **kwargs)
        return super().apply(node, run, args, kwargs)

    def _linear(self, node: Node) -> list[Tensor]:
        x, weight, *rest = node.args
        assert isinstance(x, Node) and isinstance(weight, Node)
        (given,) = self.values[x]
        out = self._product(given.reshape(-1, given.shape[-1]), str(weight.target))
        if rest and isinstance(rest[0], Node):
            out = out + self._parameter(rest[0])
        return [out.reshape(*given.shape[:-1], -1)]

    def _expert_product(
        self, given: dict[str, Any], which: str, expert: int, rows: Tensor
    ) -> Tensor:
        name, bias = str(given[which].target), given[f"{which}_bias"]
        out = self._product(rows[0], matrix_name(name, expert))[None]
        return out if bias is None else out + self._parameter(bias)[expert]

    def _embedding(self, node: Node) -> list[Tensor]:
        (rows,) = super()._embedding(node)
        name, tokens = str(node.args[0].target), self.values[node.args[1]][0]  # type: ignore
        if not torch.is_grad_enabled() or name not in self.ways:
            return [rows]
        leaf = _leaf(rows)
        leaf.register_hook(lambda gradient: self._looked_up(name, tokens, gradient))
        return [leaf]

    def _product(self, rows: Tensor, name: str) -> Tensor:
        return _Product.apply(rows, self, name)  # type: ignore[no-any-return, no-untyped-call]

    def parts(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """A matrix in float32, some rows at a time."""
        matrix = self.read(name)
        for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield part, self._wide(matrix[part])

    def observe(self, name: str, x: Tensor, gradient: Tensor) -> None:
        """Counts in the inputs [T, K] of a matrix, and the gradient by its results [T, O]."""
        parameter = self._owner(name)
        if parameter not in self.ways:
            return
        inputs, worth = x.square(), gradient.square().nan_to_num_(0.0, 0.0, 0.0)
        likely, sensitive = list[Tensor](), torch.zeros_like(x)
        for part, weight in self.parts(name):
            squares = weight.square()
            likely.append(worth[:, part].sum(0) * (squares @ inputs.sum(0)))
            sensitive += worth[:, part] @ squares
        self.told(name)
        if name not in self.seen:
            chances = torch.cat(likely)
            rows, nothing = _spread(chances, SAMPLED_ROWS), torch.zeros(x.shape[1])
            sums = torch.zeros(len(rows), x.shape[1])
            self.seen[name] = Seen(rows, chances[rows].clamp_min(TINY), sums, nothing)
        seen = self.seen[name]
        seen.whole += float((sensitive * inputs).sum())
        seen.worth += worth[:, seen.rows].T @ inputs
        seen.inputs += inputs.sum(0)
        for block in self.blocks[parameter]:
            off = (round_to(x, rounded_rows(block)).dequantize() - x).square_()
            seen.changed[block] = seen.changed.get(block, 0.0) + float((off * sensitive).sum())

    def _owner(self, name: str) -> str:
        """The parameter that a matrix is, or is one of."""
        return name if name in self.ways else stack_of(name)[0]

    def _settle(self) -> None:
        """Turns what was seen of matrices into costs."""
        for name, seen in self.seen.items():
            parameter = self._owner(name)
            self.costs[parameter].add(self._costs(name, seen, self.ways[parameter]))
        self.seen = {}

    def _costs(self, name: str, seen: Seen, ways: Sequence[Way]) -> Costs:
        rows, unit = _numbers(self.read(name)[seen.rows]), 2.0 * self.count
        lost = float(((rows.square() * seen.worth).sum(1) / seen.chances).sum())
        stored = {}
        for way in ways:
            off = (_stored(rows, way, seen.inputs, self.dtype) - rows).square_()
            share = float(((off * seen.worth).sum(1) / seen.chances).sum()) / max(lost, TINY)
            stored[way] = seen.whole * share / unit
        return Costs(stored, {block: cost / unit for block, cost in seen.changed.items()})

    def _looked_up(self, name: str, tokens: Tensor, gradient: Tensor) -> None:
        """Counts in the gradient by rows that were looked up in a table."""
        ids, place = tokens.flatten().unique(return_inverse=True)
        squares = torch.zeros(len(ids), gradient.shape[-1])
        squares.index_add_(0, place, gradient.flatten(0, -2).square().nan_to_num(0.0, 0.0, 0.0))
        rows = _numbers(self.read(name)[ids])
        stored = {}
        for way in self.ways[name]:
            off = (_stored(rows, way, None, self.dtype) - rows).square_()
            stored[way] = float((off * squares).sum()) / (2 * self.count)
        self.costs[name].add(Costs(stored))


class _Product(torch.autograd.Function):
    """rows [T, K] times a matrix [O, K], which is read anew for the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, runner: Sensitivity, name: str) -> Tensor:
        ctx.runner, ctx.name = runner, name
        ctx.save_for_backward(rows)
        return torch.cat([rows @ weight.T for _, weight in runner.parts(name)], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (rows,) = gradients, ctx.saved_tensors
        ctx.runner.observe(ctx.name, rows, gradient)
        back = torch.zeros_like(rows)
        for part, weight in ctx.runner.parts(ctx.name):
            back += gradient[:, part] @ weight
        return back, None, None


def _leaf(value: Any) -> Any:
    """A value from which gradients start, if it has any."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


def _live(nodes: Sequence[Node], last_use: Mapping[Node, Node]) -> Iterator[set[Node]]:
    """For each node, what is computed then and read later."""
    live = set[Node]()
    for node in nodes:
        if node.op in ("placeholder", "call_function") and node in last_use:
            live.add(node)
        live -= {arg for arg in node.all_input_nodes if last_use[arg] is node}
        yield set(live)


def _spread(worth: Tensor, count: int) -> Tensor:
    """Rows at even steps of the sum of their worth: a mean over them weighs each by its worth."""
    total = worth.double().cumsum(0)
    if not float(total[-1]) > 0:
        return torch.arange(min(count, len(worth)))
    marks = (torch.arange(count, dtype=torch.float64) + 0.5) * total[-1] / count
    return torch.searchsorted(total, marks).clamp_(max=len(worth) - 1)


def _numbers(rows: Operand) -> Tensor:
    return rows.float() if isinstance(rows, Tensor) else rows.dequantize()


def _stored(rows: Tensor, way: Way, importance: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows as they are stored."""
    if way is None:
        return rows.to(dtype).float()
    counts = None if importance is None else usable(importance)
    return quantize_rows(rows, way.of(rows.shape[1]), counts).dequantize()
