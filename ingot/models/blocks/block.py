"""What all blocks with parameters share."""

from __future__ import annotations

import torch
from torch import nn

from ingot.models.outline import Outline


class Block(nn.Module):
    """A module whose own parameters are those of its outline, which it keeps.

    `optional` names parameters that are None where the outline has none.
    """

    def __init__(self, outline: Outline, *optional: str) -> None:
        super().__init__()
        self.outline = outline
        for name in dict.fromkeys((*outline.shapes, *optional)):
            shape = outline.shapes.get(name)
            made = None if shape is None else nn.Parameter(torch.empty(shape))
            self.register_parameter(name, made)


def outline_of(module: nn.Module) -> Outline:
    """The outline of any module, with what its blocks say of themselves."""
    return _outline_of(module, set(module.parameters()))


def _outline_of(module: nn.Module, left: set[nn.Parameter]) -> Outline:
    shapes = {}
    for name, parameter in module.named_parameters(recurse=False):
        if parameter in left:  # one that stands in two places counts in the first
            left.remove(parameter)
            shapes[name] = tuple(parameter.shape)
    said = module.outline if isinstance(module, Block) else Outline()
    return Outline(
        shapes=shapes,
        constants={name: tuple(b.shape) for name, b in module.named_buffers(recurse=False)},
        parts={name: _outline_of(child, left) for name, child in module.named_children()},
        stacked=said.stacked,
        multiplied=said.multiplied,
        outer=said.outer,
    )
