"""The kind of target that is an NVIDIA GPU: Triton kernels, compiled ahead of time without one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.formats import DType, Format
from ingot.artifact.launches import encode_launches
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.target import NAMES, Target
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.architectures import architecture_of
from ingot.targets.cuda.dependent import with_dependents
from ingot.targets.cuda.generate import generate
from ingot.targets.cuda.groups import RULES
from ingot.targets.cuda.head_parts import LARGEST_HEAD, LARGEST_LATENT, LARGEST_VALUES
from ingot.targets.cuda.memory import with_memory
from ingot.targets.cuda.operands import FLOATS
from ingot.targets.cuda.weights import fits, is_stack, matrix_bytes, nbytes_of, stored_dtype
from ingot.targets.grouping import group
from ingot.targets.stacks import with_stacks
from ingot.targets.target import Packed, Read, ScaledWeights, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from ingot.ops.scaled import Operand


class CudaKind:
    """See `ingot.targets.target.TargetKind`."""

    name = layout = "cuda"
    names = NAMES["cuda"]
    kernels = "kernels.json"
    dtypes = FLOATS
    largest_head = LARGEST_HEAD
    largest_row, largest_rank = LARGEST_LATENT, LARGEST_VALUES
    has_experts, maps_weights = True, False
    rules = tuple(rule.__name__ for rule in RULES)

    def fits(self, columns: int, form: Format) -> bool:
        return fits(columns, form)

    def packed(self, weight: Buffer, *, multiplied: bool) -> tuple[DType, int]:
        return stored_dtype(weight), nbytes_of(weight)

    def rewrite(self, plan: Plan) -> Plan:
        from ingot.targets.cuda.rewrite import narrow_activations

        return narrow_activations(plan)

    def group(
        self, plan: Plan, disable: Collection[str] = ()
    ) -> tuple[Plan, tuple[GroupEntry, ...]]:
        return group(plan, [rule for rule in RULES if rule.__name__ not in disable])

    def place(self, plan: Plan) -> Plan:
        stacks = [weight for weight in plan.of_kind("weight") if is_stack(weight)]
        return with_memory(with_stacks(plan, {each.name: matrix_bytes(each) for each in stacks}))

    def sources(self, plan: Plan, target: Target) -> Mapping[str, str]:
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

    def try_tools(self, folder: Path, target: Target) -> None:
        toolchain.try_tools(folder, target)

    def prepare(self, folder: Path, target: Target) -> None:
        """Every kernel depends on the shapes of the model."""

    def build(self, folder: Path, out: Path, target: Target) -> None:
        toolchain.build(folder, out, target)


KIND = CudaKind()
