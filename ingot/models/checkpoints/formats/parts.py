"""Finds the tensors that together hold a matrix, and checks their dtypes and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ingot.errors import CheckpointError, OnFault
from ingot.models.checkpoints.mapped_file import TensorInfo

Infos = Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class MatrixParts:
    """The tensors of one matrix, by the ends of their names.

    Attributes:
        needed: all that a matrix has; the first names it.
        optional: what it may have besides; unread: what it may have that changes no weight.
        dtypes: of tensors whose end models in no such format use as well, such as `.weight`.
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def matrices(self, infos: Infos, on_fault: OnFault) -> Iterator[tuple[str, Infos]]:
        """(what their names have in common, tensor by end) of every whole matrix.

        `on_fault` gets a CheckpointError for each that lacks a tensor.
        """
        found: dict[str, dict[str, TensorInfo]] = {}
        for name, info in infos.items():
            for end in (*self.needed, *self.optional, *self.unread):
                if name.endswith(end) and info.dtype in self.dtypes.get(end, (info.dtype,)):
                    found.setdefault(name.removesuffix(end), {})[end] = info
        for stem, parts in sorted(found.items()):
            missing = [end for end in self.needed if end not in parts]
            if not missing:
                yield stem, parts
            elif any(end in parts for end in (*self.needed, *self.optional)):
                on_fault(_incomplete(stem, parts, missing))


def _incomplete(stem: str, parts: Infos, missing: list[str]) -> CheckpointError:
    present = ", ".join(stem + end for end in parts)
    return CheckpointError(
        f"the checkpoint has {present} without {', '.join(stem + end for end in missing)}",
        hint="a quantized matrix needs all of its tensors: fetch the checkpoint again",
    )


def fault_of(info: TensorInfo, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> str:
    """Fault of a tensor that should have that shape and one of those dtypes; or ""."""
    if info.shape != shape:
        return f"{info.name} {list(info.shape)} instead of {list(shape)}"
    if info.dtype not in dtypes:
        return f"{info.name} in {info.dtype} instead of {' or '.join(dtypes)}"
    return ""


def misshapen(*faults: str) -> CheckpointError | None:
    """The error of those faults of tensors that are not ""."""
    wrong = [fault for fault in faults if fault]
    if not wrong:
        return None
    return CheckpointError(
        f"the checkpoint has {', '.join(wrong)}",
        hint="check that the quantization_config of config.json and the weights belong together",
    )


def undivided(stem: str, columns: int, group: int) -> CheckpointError:
    """The error of a matrix whose columns groups do not divide."""
    return CheckpointError(
        f"{stem}.weight has {columns} columns, which groups of {group} do not divide",
        hint="check group_size in the quantization_config of config.json",
    )
