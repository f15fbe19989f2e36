"""Names of the matrices of a stack: experts are read and stored one by one, never all at once."""

from __future__ import annotations


def matrix_name(stack: str, index: int) -> str:
    """The name of one matrix of a parameter [E, O, K]: `layers.0.mlp.experts.down_proj.5`."""
    return f"{stack}.{index}"


def stack_of(name: str) -> tuple[str, int]:
    """The inverse: the parameter and the place of the matrix; the name and -1 if it is no such
    name."""
    stack, _, index = name.rpartition(".")
    return (stack, int(index)) if stack and index.isdecimal() else (name, -1)
