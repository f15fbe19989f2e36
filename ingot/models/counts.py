"""Counts of the primitives that a module becomes, by kind, summed over its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from torch import nn

from ingot.errors import UnsupportedModelError


def module_counts(module: nn.Module, called: Container[str] | None = None) -> Counter[str]:
    """Counts the primitives that must occur in the graph of a module.

    `called` are the paths of the blocks that a part of the graph comes from; None counts all.

    Every block says in `becomes` what one call of it gives, without its children. A block that
    stands in two places counts twice; so does a weight that two blocks read. A module without
    parameters of its own may leave `becomes` out; its children count.

    Besides primitives there is `merged_linears`: groups of linears that share an input.

    Raises:
        UnsupportedModelError: a module with parameters of its own that does not say what it
            becomes.
    """
    counts: Counter[str] = Counter()
    for path, block in module.named_modules(remove_duplicate=False):
        becomes: Mapping[str, int] | None = getattr(block, "becomes", None)
        if becomes is None and next(block.parameters(recurse=False), None) is not None:
            raise UnsupportedModelError(
                f"{type(block).__name__} at {path or 'the model itself'} does not say what it "
                "becomes",
                hint='give the class an attribute such as becomes = {"linear": 1}, or use a block '
                "of ingot.models.blocks",
            )
        if called is None or path in called:
            counts.update(becomes or {})
    return counts
