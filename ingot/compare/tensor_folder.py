"""A folder of tensors as .npy files, which numpy and a reader's own tools open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ingot.compare.differences import parts
from ingot.compiler.interpret import Value
from ingot.ops.scaled import Scaled

NARROW = ".bfloat16"  # at the end of a name: numpy has no such dtype, its bits lie as uint16


def save_values(folder: Path, values: Mapping[str, Value]) -> None:
    """Writes a file for each array of each value: NAME.npy, or NAME.values.npy, NAME.scales.npy.

    NAME.widths.npy has the block and the group of integers.
    """
    folder.mkdir()
    for name, value in values.items():
        for suffix, part in parts(value):
            is_narrow = part.dtype == torch.bfloat16
            raw = part.detach().clone().contiguous()
            array = (raw.view(torch.int16) if is_narrow else raw).numpy()
            ending = NARROW if is_narrow else ""
            np.save(
                folder / f"{name}{suffix}{ending}.npy",
                array.view(np.uint16) if is_narrow else array,
            )
        if isinstance(value, Scaled):
            np.save(folder / f"{name}.widths.npy", np.array((value.block, value.group)))


def load_values(folder: Path) -> dict[str, Value]:
    """What `save_values` wrote."""
    tensors = {}
    for path in sorted(folder.glob("*.npy")):
        array = np.load(path, allow_pickle=False)
        name = path.name.removesuffix(".npy")
        if name.endswith(NARROW):
            name, tensor = name.removesuffix(NARROW), torch.from_numpy(array.view(np.int16))
            tensors[name] = tensor.view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(array)
    names = {name.removesuffix(".values") for name in tensors if name.endswith(".values")}
    found: dict[str, Value] = {
        name: Scaled(
            tensors.pop(f"{name}.values"),
            tensors.pop(f"{name}.multipliers", None),
            tensors.pop(f"{name}.scales"),
            tensors.pop(f"{name}.zeros", None),
            **dict(zip(("block", "group"), tensors.pop(f"{name}.widths").tolist(), strict=True)),
        )
        for name in names
    }
    return found | tensors
