"""What llama.cpp calls an importance matrix, from the text that ingot calibrates with.

It is the mean square of the inputs of each column, by the name of the tensor. Ingot's compile
weighs errors by the same numbers, so both are told the same of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx import Node

from ingot.compiler.export import export
from ingot.compiler.quantization.calibrate import mean_squares
from ingot.compiler.quantization.graph_matrices import is_head
from ingot.compiler.quantization.sequences import sample_sequences
from ingot.compiler.reference import Interpreter
from ingot.compiler.tokenizer import load_tokenizer
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.gguf.architectures import ARCHITECTURES
from ingot.models.model_dir import ModelDir
from ingot.models.templates import expand, fill

LONGEST = 1024
HEAD, TABLE = "output.weight", "token_embd.weight"


class MeanSquares(Interpreter):
    """Runs the float32 reference, and keeps the mean squares of the inputs of each linear."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: dict[str, Tensor] = {}
        self.at_end = False

    def finished(self) -> bool:
        return self.at_end

    def _linear(self, node: Node) -> list[Any]:
        x, weight = node.args[:2]
        (rows,) = self.values[x]
        squares = mean_squares(rows.reshape(-1, rows.shape[-1]))
        if squares is not None:
            self.found[str(weight.target)] = squares
        if not is_head(node):
            return super()._linear(node)
        self.at_end = True  # nobody needs logits
        return self.values[x]


def gguf_names(architecture: str, tensors: Iterable[str]) -> dict[str, str]:
    """The names of tensors of a GGUF file, by those that the checkpoint has for them."""
    templates, found = ARCHITECTURES[architecture].names, {}
    for tensor in tensors:
        for template, name in templates.items():
            if match := expand(template).fullmatch(tensor):
                found[fill(name, match)] = tensor
                break
    return found


def named(
    squares: Mapping[str, Tensor], architecture: str, tensors: Iterable[str]
) -> dict[str, np.ndarray]:
    """Mean squares by the names of tensors. A head that is the table has the inputs of the head.

    Raises ValueError for a matrix that the file does not have by itself.
    """
    names = gguf_names(architecture, tensors)
    theirs = set(names.values())
    table = next(name for name, tensor in names.items() if tensor == TABLE)
    if HEAD not in theirs:
        names |= dict.fromkeys(("lm_head.weight", table), TABLE)
    if unknown := sorted(squares.keys() - names.keys()):
        raise ValueError(f"the file has no tensor for {', '.join(unknown)}")
    return {names[name]: found.numpy() for name, found in squares.items()}


def importance(model: Path) -> dict[str, np.ndarray]:
    """The importance matrix of a GGUF file: mean squares [K] by the names of its tensors."""
    from gguf import GGUFReader

    folder = ModelDir.open(model)
    config = registry.load_config(folder)
    module = registry.build(config, max_model_len=LONGEST)
    tokenizer = load_tokenizer(folder, config.vocab_size)
    text = sample_sequences(tokenizer, config.vocab_size, max_model_len=LONGEST)
    with Checkpoint.open(folder, config, module) as checkpoint:
        runner = MeanSquares(export(module, config), checkpoint.read, text)
        runner.run()
    reader = GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    return named(runner.found, architecture, [tensor.name for tensor in reader.tensors])
