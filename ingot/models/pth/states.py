"""Tuned states of RWKV-7: what a sequence begins with instead of nothing.

Training such a state leaves the model as it is and takes minutes. A file has a tensor for each
layer, `blocks.{i}.att.time_state` [H, N, N], whose rows are values and whose columns are keys.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.plan import Plan
from ingot.artifact.traits import written_by
from ingot.errors import CheckpointError, listed
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.pth.container import PthFile

Record = NDArray[np.float32]
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


def load_state(path: Path, plan: Plan) -> dict[str, Record]:
    """The records that a sequence begins with, by the names of the plan's states.

    A record has the shape that its state says. It begins with matrices [H * N, N], which have a row
    for each key; rows of tokens before are zeros.

    Raises:
        CheckpointError: a file that is no state, or one of another model.
    """
    layers = _matrices(plan)
    found = {state.name: np.zeros(state.record, np.float32) for state in plan.spec.states}
    with PthFile(path) as file:
        names = {f"blocks.{layer}.att.time_state": each for layer, each in layers.items()}
        if not layers or file.tensors.keys() != names.keys():
            raise _of_another(path, f"has {listed(sorted(file.tensors))}", sorted(names))
        for name, (state, heads) in names.items():
            size = found[state].shape[1]
            shape = (heads, size, size)
            info = file.tensors[name]
            if info.shape != shape:
                raise _of_another(path, f"has {name} {list(info.shape)}", [f"{list(shape)}"])
            matrices = _numbers(file, info).transpose(0, 2, 1)
            if not np.isfinite(matrices).all():
                raise CheckpointError(
                    f"{path}: {name} holds values that are not finite",
                    hint="the file is damaged, or its training diverged",
                )
            found[state][: heads * size] = matrices.reshape(-1, size)
    return found


def _matrices(plan: Plan) -> dict[int, tuple[str, int]]:
    """The state of each layer that holds its matrices, and how many, where its rule is RWKV-7's."""
    found = {}
    for instruction in plan.instructions:
        layer = _LAYER.search(instruction.origin)
        if layer and instruction.attrs.get("rule") == "low_rank":
            (state,) = written_by(instruction)
            heads = int(plan.buffer(instruction.inputs["v"]).shape[1])
            found[int(layer[1])] = state, heads
    return found


def _numbers(file: PthFile, info: TensorInfo) -> Record:
    data = file.bytes(info.start, info.stop).tobytes()
    if info.dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(info.shape)
    kinds = {"F32": "<f4", "F16": "<f2"}
    if info.dtype not in kinds:
        raise _of_another(file.path, f"has {info.name} in {info.dtype}", ["float numbers"])
    numbers: Record = np.frombuffer(data, kinds[info.dtype]).astype(np.float32)
    return numbers.reshape(info.shape)


def _of_another(path: Path, found: str, wanted: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{path} {found}",
        hint=f"A state of this model has {listed(wanted)}."
        if wanted
        else "The model has no states of RWKV-7.",
    )
