"""Runs a kernel over tensors, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.artifact.launches import Constant
from ingot.targets.cuda import interpreter
from ingot.targets.cuda.interpreter import install, kernel
from ingot.targets.cuda.parameters import leaves

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
}

__all__ = ["install", "kernel", "launch", "run"]


def launch(function: str, grid: tuple[int, ...], **arguments: Tensor | Constant) -> None:
    """Runs "file.function" with tensors as pointers to their first number.

    Other arguments are constants, or 32-bit integers where the kernel declares no constant.
    """
    run(kernel(function), grid, **arguments)


def run(function: Any, grid: tuple[int, ...], **arguments: Tensor | Constant) -> None:
    """The same for a function of Triton's itself."""
    known = {leaf.name for leaf in leaves(function) if leaf.is_constant}
    constants: dict[str, Constant] = {}
    passed: dict[str, tuple[str, int | float]] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            passed[name] = POINTERS[value.dtype], value.data_ptr()
        elif name in known:
            constants[name] = value
        else:
            passed[name] = "i32", int(value)
    whole = (*grid, 1, 1)[:3]
    interpreter.launch(function, (whole[0], whole[1], whole[2]), passed, constants)
