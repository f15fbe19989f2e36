"""The kind of target that is an NVIDIA GPU: Triton kernels, compiled ahead of time without one.

What builds plans is imported where it is called, so that names and tools are told at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.formats import DType, Format
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.target import Target
from ingot.targets.cuda.levels import (
    FLOATS,
    LARGEST_HEAD,
    LARGEST_LATENT,
    LARGEST_VALUES,
    LEVELS,
    architecture_of,
    native_target,
)
from ingot.targets.cuda.tools import tools_of
from ingot.targets.cuda.triton_package import find_triton
from ingot.targets.target import Packed, Read, ScaledWeights, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from ingot.ops.scaled import Operand


class CudaKind:
    """See `ingot.targets.target.TargetKind`."""

    name, levels = "cuda", LEVELS
    kernels = "kernels.json"
    dtypes = FLOATS
    largest_head = LARGEST_HEAD
    largest_row, largest_rank = LARGEST_LATENT, LARGEST_VALUES
    has_experts, maps_weights, rounds_rows = True, False, False

    @property
    def rules(self) -> tuple[str, ...]:
        from ingot.targets.cuda.groups import RULES

        return tuple(rule.__name__ for rule in RULES)

    def native(self) -> Target:
        return native_target()

    def tools(self) -> tuple[str | int, ...]:
        return (find_triton().version,)

    def fits(self, columns: int, form: Format) -> bool:
        from ingot.targets.cuda.weights import fits

        return fits(columns, form)

    def packed(self, weight: Buffer, *, multiplied: bool) -> tuple[DType, int]:
        from ingot.targets.cuda.weights import nbytes_of, stored_dtype

        return stored_dtype(weight), nbytes_of(weight)

    def rewrite(self, plan: Plan, fine: Collection[str] = ()) -> Plan:
        from ingot.targets.cuda.rewrite import in_cells, narrow_activations

        return in_cells(narrow_activations(plan))

    def group(
        self, plan: Plan, disable: Collection[str] = ()
    ) -> tuple[Plan, tuple[GroupEntry, ...]]:
        from ingot.targets.cuda.groups import RULES
        from ingot.targets.grouping import group

        return group(plan, [rule for rule in RULES if rule.__name__ not in disable])

    def place(self, plan: Plan) -> Plan:
        from ingot.targets.cuda.weights import is_stack, matrix_bytes
        from ingot.targets.memory import placed
        from ingot.targets.memory_check import check_memory
        from ingot.targets.stacks import with_stacks
        from ingot.targets.work import Work

        stacks = [weight for weight in plan.of_kind("weight") if is_stack(weight)]
        plan = with_stacks(plan, {each.name: matrix_bytes(each) for each in stacks})
        work = [Work(plan, group) for group in plan.kernels]
        plan = placed(plan, [(each.reads, each.writes) for each in work])
        check_memory(plan)
        return plan

    def sources(self, plan: Plan, target: Target) -> Mapping[str, str]:
        from ingot.artifact.launches import encode_launches
        from ingot.targets.cuda.dependent import with_dependents
        from ingot.targets.cuda.generate import generate

        architecture = architecture_of(target)
        launches = with_dependents(generate(plan, architecture), architecture)
        return {"launches.json": encode_launches(launches).decode()}

    def pack(self, path: Path, plan: Plan, read: Read, integers: ScaledWeights) -> None:
        from ingot.targets.cuda.pack import pack

        pack(path, plan, read, integers)

    def unpacked(self, plan: Plan, packed: Packed) -> Weights:
        from ingot.targets.cuda.unpack import unpacked

        return unpacked(packed)

    def unpack_state(self, plan: Plan, state: Buffer, arrays: Sequence[Tensor]) -> Operand:
        from ingot.targets.cuda.unpack import unpack_state

        return unpack_state(state, arrays)

    def try_tools(self, folder: Path, target: Target, anew: bool = False) -> Mapping[str, str]:
        return tools_of(target).versions

    def prepare(self, folder: Path, target: Target) -> None:
        """Every kernel depends on the shapes of the model."""

    def build(self, folder: Path, out: Path, target: Target) -> None:
        from ingot.targets.cuda import toolchain

        toolchain.build(folder, out, target)


KIND = CudaKind()
