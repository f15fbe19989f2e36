"""Layers that are alike: the list of them in a module, and a short list with one of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Layers:
    """A list of layers in a module.

    `path` is the list's name. `chosen` are the layers to export: layer 0, and one later layer of
    each kind; a later one is needed because it has a predecessor. `stand_ins` has for every layer
    the place of its stand-in in `chosen`.
    """

    path: str
    entries: nn.ModuleList
    chosen: tuple[int, ...]
    stand_ins: tuple[int, ...]

    @contextmanager
    def shortened(self) -> Iterator[None]:
        """While it is open, the list holds only the chosen layers."""
        every = self.entries._modules
        self.entries._modules = {
            str(place): every[str(index)] for place, index in enumerate(self.chosen)
        }
        try:
            yield
        finally:
            self.entries._modules = every

    @property
    def num_left_out(self) -> int:
        """Number of modules that the short list leaves out."""
        left_out = (each for i, each in enumerate(self.entries) if i not in self.chosen)
        return sum(1 for entry in left_out for _ in entry.modules())


def find_layers(module: nn.Module) -> Layers | None:
    """The list from which most can be left out; None where there is none."""
    names = Counter(map(id, all_tensors(module).values()))
    found = [
        sort_by_kind(path, child)
        for path, child in module.named_modules()
        # A tensor with two names would be read under one of them only.
        if isinstance(child, nn.ModuleList)
        and all(names[id(tensor)] == 1 for tensor in all_tensors(child).values())
    ]
    best = max(found, key=lambda each: each.num_left_out, default=None)
    return best if best and best.num_left_out else None


def first_of_each_kind(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The first layer of each kind by its path, with the indices of all of that kind, in order.

    The layers are those of the list that holds most of the module; none where there is no list.
    """
    lists = {p: m for p, m in module.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    path = max(lists, key=lambda name: sum(1 for _ in lists[name].modules()), default="")
    kinds: list[list[int]] = []
    for index, entry in enumerate(lists.get(path, ())):
        same = (kind for kind in kinds if alike(lists[path][kind[0]], entry, (kind[0], index)))
        kind = next(same, None)
        if kind is None:
            kinds.append([index])
        else:
            kind.append(index)
    return {f"{path}.{kind[0]}".lstrip("."): tuple(kind) for kind in kinds}


def sort_by_kind(path: str, entries: nn.ModuleList) -> Layers:
    """Chooses the first layer, which stands only for itself, and one of each kind after it."""
    chosen: list[int] = []
    stand_ins = []
    for index, entry in enumerate(entries):
        same = (p for p, i in enumerate(chosen) if i > 0 and alike(entries[i], entry, (i, index)))
        place = next(same, len(chosen))
        if place == len(chosen):
            chosen.append(index)
        stand_ins.append(place)
    return Layers(path, entries, tuple(chosen), tuple(stand_ins))


def alike(one: Any, other: Any, places: tuple[int, int] = (0, 0)) -> bool:
    """Returns whether two modules, or two attributes of them, are equal in all but weights.

    `places` are their places in a list. Modules of other libraries know theirs, and a number that
    is the place of each may be just that.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        return alike(vars(one), vars(other), places)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[k], other[k], places) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            alike(*each, places) for each in zip(one, other, strict=True)
        )
    if isinstance(one, torch.Tensor):
        facts = [(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in (one, other)]
        return facts[0] == facts[1] and (one.is_meta or torch.equal(one, other))
    return bool(one == other) or (type(one) is int and (one, other) == places)


def all_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then buffers, by every name that they have."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
