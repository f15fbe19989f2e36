"""Calibration: the float32 reference runs over a text, and each linear is rounded on the way.

The interpreter goes node by node, with all sequences at once. When it reaches a linear, it has all
inputs of that linear, computed by layers that are already quantized. It rounds the weight by GPTQ
for these inputs, stores it, and goes on with the stored weight. Memory holds one weight and the
activations of one layer. Experts are calibrated with the tokens that picked them, if these are
enough to tell their columns apart, and else rounded by search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.graph_matrices import naming
from ingot.compiler.quantization.search import search
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import Interpreter
from ingot.compiler.text_file import read_text
from ingot.compiler.tokenizer import encode
from ingot.errors import UsageError
from ingot.ops.scaled import Operand
from ingot.ops.stacks import matrix_name
from ingot.passes.graph import arguments, value

SEQUENCE_TOKENS = 512
MAX_SEQUENCES = 16
MIN_TOKENS = 2048
TOKENS_A_COLUMN = 2  # that an expert must have seen: fewer give moments that are mostly chance


def calibration_sequences(
    path: Path | None, tokenizer: Tokenizer, *, max_model_len: int
) -> list[list[int]]:
    """Token sequences, spread evenly over a text; none without a text.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or is too short.
        TokenizerError: a text that the tokenizer cannot encode.
    """
    if path is None:
        return []
    text = read_text(path, "the calibration text")
    tokens = encode(tokenizer, text, f"the calibration text {path}")
    if len(tokens) < MIN_TOKENS:
        raise UsageError(
            f"the calibration text {path} is too short: {len(tokens)} tokens",
            hint=f"Give at least {MIN_TOKENS} tokens of text that resembles what the model is for; "
            f"up to {SEQUENCE_TOKENS * MAX_SEQUENCES} are used.",
        )
    length = min(SEQUENCE_TOKENS, max_model_len)
    count = min(SEQUENCE_TOKENS * MAX_SEQUENCES, len(tokens)) // length
    starts = [i * (len(tokens) - length) // (count - 1) for i in range(count)]
    return [tokens[start : start + length] for start in starts]


class Calibrator(Interpreter):
    """Rounds the matrices of `storage` that are not in `weights` yet, and stops after the last.

    `weights` gives the parameters: those that it already holds as they are stored.
    """

    def __init__(
        self,
        gm: GraphModule,
        weights: QuantizedWeights,
        storage: Mapping[str, Storage],
        sequences: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(gm, weights.read, sequences)
        self.weights = weights
        self.storage = storage
        self.left = {name for name in storage if name not in weights}
        self.factor: tuple[Node, Tensor] | None = None

    def finished(self) -> bool:
        return not self.left

    def weight_of(self, node: Node, rows: Tensor) -> Operand:
        x, weight = node.args[:2]
        assert isinstance(x, Node) and isinstance(weight, Node)
        name = str(weight.target)
        if name not in self.left:
            return super().weight_of(node, rows)
        if self.factor is None or self.factor[0] is not x:  # linears that share an input follow
            self.factor = (x, inverse_factor(second_moments(rows[0])))
        self._round(name, name, self.factor[1])
        self.left.remove(name)
        return self.weights.read(name)

    def _experts(self, node: Node) -> list[Any]:
        """Also rounds experts that no token has picked."""
        out = super()._experts(node)
        for weight in (arguments(node)[name] for name in ("gate_up", "down")):
            name = str(weight.target)
            if name in self.left:
                for index in range(value(weight).shape[0]):
                    self._search(name, index)
                self.left.remove(name)
        return out

    def matrix_of(self, stack: str, index: int, rows: Tensor) -> Operand:
        tokens, columns = rows.shape[1:]
        if stack in self.left and tokens >= TOKENS_A_COLUMN * columns:
            self._round(stack, matrix_name(stack, index), inverse_factor(second_moments(rows[0])))
        elif stack in self.left:
            self._search(stack, index)
        return super().matrix_of(stack, index, rows)

    def _search(self, stack: str, index: int) -> None:
        """Rounds a matrix of a stack of which too few inputs are known, unless it is rounded."""
        name = matrix_name(stack, index)
        if name not in self.weights:
            with naming(self.gm, stack):
                stored = self.storage[stack]
                self.weights.add(name, stored.bits, search(self.weights.read(name), stored))

    def _round(self, parameter: str, name: str, factor: Tensor) -> None:
        """Rounds a matrix by GPTQ: a parameter, or one of it."""
        values = self.weights.read(name)
        stored = self.storage[parameter]
        with naming(self.gm, parameter):
            matrix = gptq(values, factor, stored.of(values.shape[-1]))
        self.weights.add(name, stored.bits, [matrix])
