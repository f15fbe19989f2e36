"""Operands of kernels: addresses of the buffers of a plan, and sizes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import WORKSPACE, LaunchArgument
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.errors import CodegenError
from ingot.targets.work import where

TYPES: Mapping[str, str] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float64": "fp64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",  # two zeros, or multipliers
    "int8": "i8",
    "int4": "u8",  # two numbers a byte
}


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address, and the dtype of what lies there."""

    argument: LaunchArgument
    dtype: str

    @property
    def type(self) -> str:
        """Its type in Triton."""
        return f"*{TYPES[self.dtype]}"

    def at(self, nbytes: int) -> Pointer:
        """The address so many bytes further on."""
        return replace(self, argument=replace(self.argument, offset=self.argument.offset + nbytes))


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the step, passed as a 32-bit integer: a symbol, MOST_ROWS or MOST_KEYS."""

    symbol: str

    @property
    def argument(self) -> LaunchArgument:
        return LaunchArgument(size=self.symbol)

    @property
    def type(self) -> str:
        return "i32"


@dataclass(frozen=True, slots=True)
class RowsOperand:
    """A buffer of rows: where its first number lies, and how many numbers lie between rows."""

    buffer: Buffer
    pointer: Pointer
    stride: int

    @property
    def columns(self) -> int:
        """Numbers of a row, its heads included."""
        return self.buffer.columns

    @property
    def symbol(self) -> str:
        """The symbol that counts its rows."""
        return str(self.buffer.shape[0])


def workspace(dtype: str = "float32", offset: int = 0) -> Pointer:
    """Memory that lives during one group, from a byte on."""
    return Pointer(LaunchArgument(buffer=WORKSPACE, offset=offset), dtype)


@dataclass(frozen=True)
class Operands:
    """Looks up buffers of a plan, whose launches are for an architecture."""

    plan: Plan
    architecture: Architecture = ARCHITECTURES["sm_90"]

    def buffer(self, instruction: Instruction, argument: str) -> Buffer:
        """The buffer bound to an argument or a result of an instruction. Raises CodegenError."""
        name = instruction.inputs.get(argument) or instruction.outputs.get(argument)
        if name is None:
            raise CodegenError(f"{where(instruction)} has no operand {argument!r}")
        return self.plan.buffer(name)

    def rows(self, instruction: Instruction, argument: str) -> RowsOperand:
        """A temporary, a view of one, an input or an output, as rows."""
        buffer = self.buffer(instruction, argument)
        return self.rows_of(buffer)

    def rows_of(self, buffer: Buffer) -> RowsOperand:
        root = self.plan.root(buffer.name)
        offset, stride = 0, buffer.columns
        if buffer.kind == "view":
            offset, stride = stored_bytes(buffer.dtype, buffer.offset), buffer.row_stride
        return RowsOperand(
            buffer, Pointer(LaunchArgument(buffer=root.name, offset=offset), buffer.dtype), stride
        )

    def weight(self, instruction: Instruction, argument: str) -> Pointer | None:
        """A weight that is stored as numbers; None for one that the model does not have."""
        if argument not in instruction.inputs:
            return None
        buffer = self.buffer(instruction, argument)
        return Pointer(LaunchArgument(buffer=buffer.name), buffer.dtype)

    def state(self, instruction: Instruction, argument: str) -> tuple[Pointer, Pointer | None]:
        """The numbers of a state, and their scales if it has some."""
        buffer = self.buffer(instruction, argument)
        numbers = Pointer(LaunchArgument(buffer=buffer.name), buffer.dtype)
        if not buffer.format.is_scaled:
            return numbers, None
        return numbers, Pointer(LaunchArgument(buffer=buffer.name, array=1), buffer.format.scale)
