"""By which names a family's tables know the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.errors import CheckpointError, OnFault
from ingot.models.blueprint import Shape
from ingot.models.family import Family
from ingot.models.mapped_file import TensorInfo
from ingot.models.templates import expand, fill

BASE = "model."  # in front of all parameters but those of the head
AROUND = ("language_model.", "transformer.", BASE)


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
    if any(BASE + name in base for name in infos):
        return lambda name: name if name in shapes else BASE + name
    for prefix in AROUND:
        if any(name.startswith(prefix) and name.removeprefix(prefix) in base for name in infos):
            return lambda name: name.removeprefix(prefix)
    return str
