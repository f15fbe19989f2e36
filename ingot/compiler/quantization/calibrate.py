"""Calibration: the float32 reference runs over a text, and each linear is rounded on the way.

The interpreter goes node by node, with all sequences at once. When it reaches a linear, it has all
inputs of that linear, computed by layers that are already quantized. It rounds the weight for these
inputs, stores it, and goes on with the stored weight. Memory holds one weight and the activations
of one layer. There are two ways to round:

- The search weighs errors in a column by the mean square of its inputs: few tokens tell it.
- GPTQ also needs the means of the products of inputs in pairs, which take thousands of tokens.

Experts are rounded for the tokens that picked them, if these are enough for the way, and else by
the search, for the inputs of all experts together. The head is reached last, and rounded by search.
It also decides for a table that is head and embedding at once, which is looked up as it was before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.graph_matrices import is_head, naming
from ingot.compiler.quantization.search import search
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import Interpreter
from ingot.ops.scaled import Operand
from ingot.ops.stacks import matrix_name
from ingot.passes.graph import arguments

TOKENS_A_COLUMN = 2  # for GPTQ of an expert: fewer give moments that are mostly chance
FEWEST_TOKENS = 64  # for mean squares of an expert's own


@dataclass(frozen=True, slots=True)
class Inputs:
    """What rounding is told of the inputs of a matrix.

    Attributes:
        importance: their mean squares [K]; None where they tell nothing.
        factor: `inverse_factor` of them, for GPTQ; None for the search.
    """

    importance: Tensor | None
    factor: Tensor | None = None


class Calibrator(Interpreter):
    """Rounds the matrices of `storage` that are not in `weights` yet, and stops after the last.

    `weights` gives the parameters: those that it already holds as they are stored. `by_gptq` rounds
    all but the head by GPTQ.
    """

    def __init__(
        self,
        gm: GraphModule,
        weights: QuantizedWeights,
        storage: Mapping[str, Storage],
        sequences: Sequence[Sequence[int]],
        *,
        by_gptq: bool = True,
    ) -> None:
        super().__init__(gm, weights.read, sequences)
        self.weights = weights
        self.storage = storage
        self.by_gptq = by_gptq
        self.left = {name for name in storage if name not in weights}
        self.at_end = False
        self.known: tuple[Node, Inputs] | None = None
        self.together: dict[str, MeanSquares] = {}  # of the inputs of stacks

    def finished(self) -> bool:
        return self.at_end or not self.left

    def weight_of(self, node: Node, rows: Tensor) -> Operand:
        x, weight = node.args[:2]
        assert isinstance(x, Node) and isinstance(weight, Node)
        name = str(weight.target)
        if name not in self.left:
            return super().weight_of(node, rows)
        if self.known is None or self.known[0] is not x:  # linears that share an input follow
            self.known = (x, self._inputs(rows[0]))
        self._round(name, name, self.known[1])
        self.left.remove(name)
        return self.weights.read(name)

    def _linear(self, node: Node) -> list[Any]:
        """Leaves logits out: nothing after the head is to be rounded."""
        if not is_head(node):
            return super()._linear(node)
        x, weight = node.args[:2]
        assert isinstance(x, Node) and isinstance(weight, Node)
        self.at_end, name = True, str(weight.target)
        if name in self.left:
            rows = self.values[x][0]
            self._round(name, name, Inputs(mean_squares(rows.reshape(-1, rows.shape[-1]))))
            self.left.remove(name)
        return self.values[x]

    def _embedding(self, node: Node) -> list[Tensor]:
        with self.weights.untold():  # a table that is the head, too, is rounded there
            return super()._embedding(node)

    def _experts(self, node: Node) -> list[Any]:
        """Also rounds experts that too few tokens have picked."""
        out = super()._experts(node)
        for weight in (arguments(node)[name] for name in ("gate_up", "down")):
            name = str(weight.target)
            if name in self.left:
                inputs = Inputs(self.together.pop(name, MeanSquares()).found())
                for index in range(self.gm.get_parameter(name).shape[0]):
                    if matrix_name(name, index) not in self.weights:
                        self._round(name, matrix_name(name, index), inputs)
                self.left.remove(name)
        return out

    def matrix_of(self, stack: str, index: int, rows: Tensor) -> Operand:
        tokens, columns = rows.shape[1:]
        if stack in self.left:
            self.together.setdefault(stack, MeanSquares()).add(rows[0])
            if self.by_gptq and tokens >= TOKENS_A_COLUMN * columns:
                self._round(stack, matrix_name(stack, index), self._inputs(rows[0]))
            elif tokens >= FEWEST_TOKENS:
                self._round(stack, matrix_name(stack, index), Inputs(mean_squares(rows[0])))
        return super().matrix_of(stack, index, rows)

    def _inputs(self, rows: Tensor) -> Inputs:
        if not self.by_gptq:
            return Inputs(mean_squares(rows))
        moments = second_moments(rows)
        return Inputs(usable(moments.diagonal()), inverse_factor(moments))

    def _round(self, parameter: str, name: str, inputs: Inputs) -> None:
        """Rounds a matrix: a parameter, or one of it."""
        values, stored = self.weights.read(name), self.storage[parameter]
        with naming(self.gm, parameter):
            if inputs.factor is None:
                self.weights.add(name, stored.bits, search(values, stored, inputs.importance))
                return
            form = stored.of(values.shape[-1])
            matrix = gptq(values, inputs.factor, form, inputs.importance)
        self.weights.add(name, stored.bits, [matrix])


class MeanSquares:
    """Mean squares of inputs that come a few at a time."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.tokens = 0

    def add(self, rows: Tensor) -> None:
        """Counts inputs [T, K] in."""
        squares = rows.square().sum(0)
        self.total = squares if self.total is None else self.total + squares
        self.tokens += len(rows)

    def found(self) -> Tensor | None:
        """The mean squares [K]; None where they tell nothing."""
        return None if self.total is None else usable(self.total / max(self.tokens, 1))


def mean_squares(rows: Tensor) -> Tensor | None:
    """Mean squares [K] of inputs [T, K]; None where they tell nothing."""
    inputs = MeanSquares()
    inputs.add(rows)
    return inputs.found()


def usable(importance: Tensor) -> Tensor | None:
    """Mean squares, unless they are not finite or all zero: some model, some text overflows."""
    sensible = bool(torch.isfinite(importance).all()) and bool((importance > 0).any())
    return importance if sensible else None
