"""Base of all blocks with parameters."""

from __future__ import annotations

import torch
from torch import nn

from ingot.models.blueprint import Blueprint


class Block(nn.Module):
    """A module whose own parameters are those of its blueprint, which it keeps.

    `optional` names parameters that are None where the blueprint has none.
    """

    def __init__(self, blueprint: Blueprint, *optional: str) -> None:
        super().__init__()
        self.blueprint = blueprint
        for name in dict.fromkeys((*blueprint.shapes, *optional)):
            shape = blueprint.shapes.get(name)
            made = None if shape is None else nn.Parameter(torch.empty(shape))
            self.register_parameter(name, made)


def blueprint_of(module: nn.Module) -> Blueprint:
    """The blueprint of any module, with what its blocks say of themselves."""
    return _blueprint_of(module, set(module.parameters()))


def _blueprint_of(module: nn.Module, left: set[nn.Parameter]) -> Blueprint:
    shapes = {}
    for name, parameter in module.named_parameters(recurse=False):
        if parameter in left:  # one that stands in two places counts in the first
            left.remove(parameter)
            shapes[name] = tuple(parameter.shape)
    said = module.blueprint if isinstance(module, Block) else Blueprint()
    return Blueprint(
        shapes=shapes,
        constants={name: tuple(b.shape) for name, b in module.named_buffers(recurse=False)},
        parts={name: _blueprint_of(child, left) for name, child in module.named_children()},
        stacked=said.stacked,
        multiplied=said.multiplied,
        plain=said.plain,
        outer=said.outer,
        exact=said.exact,
        picks=said.picks,
    )
