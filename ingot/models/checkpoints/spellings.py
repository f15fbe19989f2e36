"""By which names a family's tables know the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from ingot.errors import CheckpointError, OnFault
from ingot.models.blueprint import Shape
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.family import Family
from ingot.models.templates import expand, fill

BASE = "model."  # in front of all parameters but those of the head
# What stands in front of all names of a model that was saved as a part of another.
AROUND = ("", "language_model.", "transformer.", f"{BASE}language_model.", BASE)


def respelled(
    family: Family, infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], on_fault: OnFault
) -> dict[str, TensorInfo]:
    """The tensors by the names that the family's tables have."""
    found: dict[str, TensorInfo] = {}
    as_whole = _as_whole_model(infos, shapes)
    for info in infos.values():
        name = as_whole(info.name)
        for template, spelling in family.spellings.items():
            if match := expand(template).fullmatch(name):
                name = fill(spelling, match)
        if family.respelled:
            name = family.respelled(name)
        if not name:
            continue
        if name in found:
            on_fault(
                CheckpointError(
                    f"the checkpoint has {found[name].name} and {info.name}, which are the same "
                    "tensor",
                    hint="remove one of the two, or fetch the checkpoint again",
                )
            )
        found[name] = info
    return found


def _as_whole_model(
    infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape]
) -> Callable[[str], str]:
    """What a tensor is called in the model itself, where that was saved without its head or as a
    part of something larger: all names lack a prefix, or have one too many."""
    base = {name for name in shapes if name.startswith(BASE)}
    if base & infos.keys():
        return str
    for prefix, instead in product(AROUND, ("", BASE)):
        moved = partial(_moved, prefix=prefix, instead=instead, shapes=shapes)
        if any(moved(name) in base for name in infos):
            return moved
    return str


def _moved(name: str, *, prefix: str, instead: str, shapes: Mapping[str, Shape]) -> str:
    """A name with another prefix; the head may have neither."""
    rest = name.removeprefix(prefix)
    return rest if rest in shapes or not name.startswith(prefix) else instead + rest
