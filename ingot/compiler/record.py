"""Records of modules' calls: two modules with equal records compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

INPUTS = ("input_ids", "positions")
INDEXING = (aten.slice.Tensor, aten.alias.default, aten.detach.default)


class Recorder(TorchDispatchMode):
    """Numbers the calls of operators that modules on the meta device make, for so many tokens.

    Hash-consing: a number stands for an operator and its arguments, so equal numbers mean equal
    results. A tensor among the arguments has the number of the call that gave it, or the name of
    the input or of the `named` parameter or buffer that it is.
    """

    def __init__(self, named: Mapping[str, torch.Tensor], num_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = [torch.zeros(1, num_tokens, dtype=torch.int64, device="meta") for _ in INPUTS]
        self.names: dict[int, Any] = {id(tensor): name for name, tensor in named.items()}
        self.names |= {id(tensor): name for name, tensor in zip(INPUTS, self.inputs, strict=True)}
        self.numbers: dict[Any, int] = {}
        self.reads: dict[int, set[int]] = {}
        self.order: list[int] = []
        # A tensor's id is its own only while it lives.
        self.alive: list[torch.Tensor] = []
        self.examples: dict[Any, Any] = {}

    def record(self, module: Callable[..., Any]) -> list[Any]:
        """The numbers of the calls that a module's result comes from, in order, and its name.

        Raises ValueError where a call writes into a tensor, or reads one that has no name.
        """
        self.order = []
        with torch.no_grad(), self:
            result = module(*self.inputs)
        needed: set[int] = set()
        waiting = {self.name(result)[0]}
        while waiting:
            needed |= waiting
            waiting = set().union(*(self.reads[number] for number in waiting)) - needed
        return [number for number in self.order if number in needed] + [self.name(result)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if writes(func, args, kwargs):
            raise ValueError(f"{func} writes into a tensor")
        given = list(leaves((args, list(kwargs.items()))))
        like = (func, *[facts(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in given])
        if like not in self.examples:
            self.examples[like] = func(*args, **kwargs)
        # On the meta device a like call gives a like result: running it again would tell no more.
        result = made_like(self.examples[like])
        if func in INDEXING and result.shape == args[0].shape:
            # Where sizes are numbers, an index with whole slices makes other calls than in a graph.
            self.keep(result, self.name(args[0]))
        else:
            self.add_call(func, given, result)
        return result

    def add_call(self, func: Any, given: list[Any], result: Any) -> None:
        """Numbers a call, and names its results by the number."""
        names = [self.name(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
        number = self.numbers.setdefault((func, *names), len(self.numbers))
        self.reads[number] = {name[0] for name in names if isinstance(name, tuple)}
        self.order.append(number)
        for index, tensor in enumerate(tensors(result)):
            self.keep(tensor, (number, index))

    def name(self, tensor: torch.Tensor) -> Any:
        """A parameter's name, or the number of the call that gave it and its place there."""
        if id(tensor) not in self.names:
            raise ValueError("a tensor is neither the module's nor made by a call")
        return self.names[id(tensor)]

    def keep(self, tensor: torch.Tensor, name: Any) -> None:
        self.names[id(tensor)] = name
        self.alive.append(tensor)


def writes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call writes into a tensor; one that it may write into may be left out."""
    written = (
        kwargs.get(given.name, args[index] if index < len(args) else None)
        for index, given in enumerate(func._schema.arguments)
        if given.alias_info is not None and given.alias_info.is_write
    )
    return any(each is not None for each in written)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def leaves(value: Any) -> Iterator[Any]:
    """The tensors in nested lists and tuples, and all around them as text."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        yield f"{len(value)} in"
        for part in value:
            yield from leaves(part)
    else:
        yield repr(value)  # 1, 1.0 and True are equal, and not the same argument


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def made_like(value: Any) -> Any:
    """New meta tensors like those in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        size, stride = value.shape, value.stride()
        return torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(map(made_like, value))
    return value
