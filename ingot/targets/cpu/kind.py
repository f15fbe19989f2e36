"""The kind of target that is a CPU: C++ for one level of instructions, compiled ahead of time.

What builds plans is imported where it is called, so that names and tools are told at once.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.formats import DType, Format
from ingot.artifact.host import host_flags
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.compilers import identity, version_line
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.levels import LEVELS, native_target
from ingot.targets.cpu.limits import MAX_HEAD_SIZE, MAX_LATENT_SIZE
from ingot.targets.cpu.toolchain import compile_once
from ingot.targets.target import Packed, Read, ScaledWeights, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from ingot.ops.scaled import Operand


class CpuKind:
    """See `ingot.targets.target.TargetKind`."""

    name, levels = "cpu", LEVELS
    kernels = "kernels.so"
    dtypes = ("float32", "bfloat16")
    largest_head = MAX_HEAD_SIZE
    largest_row = largest_rank = MAX_LATENT_SIZE
    has_experts = maps_weights = rounds_rows = True

    @property
    def rules(self) -> tuple[str, ...]:
        from ingot.targets.cpu.groups import RULES

        return tuple(rule.__name__ for rule in RULES)

    def native(self) -> Target:
        return native_target(host_flags())

    def tools(self) -> tuple[str | int, ...]:
        return identity(toolchain.find_compiler())

    def fits(self, columns: int, form: Format) -> bool:
        from ingot.targets.cpu.weights import fits

        return fits(columns, form)

    def packed(self, weight: Buffer, *, multiplied: bool) -> tuple[DType, int]:
        from ingot.targets.cpu.weights import layout_of, num_bytes, stored_dtype

        layout = layout_of(weight, multiplied=multiplied)
        return stored_dtype(layout), num_bytes(layout)

    def rewrite(self, plan: Plan, fine: Collection[str] = ()) -> Plan:
        from ingot.targets.cpu.rewrite import round_activations, round_queries

        return round_queries(round_activations(plan, fine))

    def group(
        self, plan: Plan, disable: Collection[str] = ()
    ) -> tuple[Plan, tuple[GroupEntry, ...]]:
        from ingot.targets.cpu.groups import RULES
        from ingot.targets.grouping import group

        return group(plan, [rule for rule in RULES if rule.__name__ not in disable])

    def place(self, plan: Plan) -> Plan:
        from ingot.targets.cpu.generate import weight_layouts
        from ingot.targets.cpu.weights import with_stacks
        from ingot.targets.cpu.work import lasting_reads, work_of
        from ingot.targets.memory import placed
        from ingot.targets.memory_check import check_memory

        plan = with_stacks(plan, weight_layouts(plan))
        work = work_of(plan)  # threads may still read what kernels before this one have read
        writes = (kernel.writes for kernel in work)
        plan = placed(plan, [*zip(lasting_reads(work), writes, strict=True)])
        check_memory(plan)
        return plan

    def sources(self, plan: Plan, target: Target) -> Mapping[str, str]:
        from ingot.targets.cpu.generate import generate

        return generate(plan, target)

    def pack(self, path: Path, plan: Plan, read: Read, integers: ScaledWeights) -> None:
        from ingot.targets.cpu.generate import weight_layouts
        from ingot.targets.cpu.pack import pack

        pack(path, plan, weight_layouts(plan), read, integers)

    def unpacked(self, plan: Plan, packed: Packed) -> Weights:
        from ingot.targets.cpu.unpack import unpacked

        return unpacked(plan, packed)

    def unpack_state(self, plan: Plan, state: Buffer, arrays: Sequence[Tensor]) -> Operand:
        from ingot.targets.cpu.unpack import unpack_state

        return unpack_state(plan, state, arrays)

    def try_tools(self, folder: Path, target: Target, anew: bool = False) -> Mapping[str, str]:
        compile_unit = toolchain.compile_unit if anew else compile_once
        toolchain.try_tools(folder, target, compile_unit)
        command = toolchain.find_compiler()
        shown = shlex.join(command)
        try:
            return {"command": shown, "version": version_line(command)}
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{shown} --version: {error}") from error

    def prepare(self, folder: Path, target: Target) -> None:
        from ingot.targets.cpu.functions import INTERFACE

        for name, text in INTERFACE.items():
            (folder / name).write_text(text)
            compile_once(folder / name, folder / "unit.o", target)

    def build(self, folder: Path, out: Path, target: Target) -> None:
        toolchain.build(folder, out, target, compile_unit=compile_once)


KIND = CpuKind()
