"""Runs kernels on the host, in Triton's interpreter: for tests, and for the simulated device.

All that is internal to Triton is named here and nowhere else. `TRITON_INTERPRET=1` must be set
before the first kernel file is imported. Kernels are read from `ingot/targets/cuda/kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import Constant
from ingot.targets.cuda.parameters import bound, defaults

KERNELS = "ingot.targets.cuda.kernels"
Check = Callable[[npt.NDArray[np.uint64], int], None]
ARITHMETIC = {"create_fadd": np.add, "create_fsub": np.subtract, "create_fmul": np.multiply}
NUMBERS: Mapping[str, Any] = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}


@cache
def install() -> None:
    """Corrects how Triton's interpreter treats bfloat16, for the whole process.

    The interpreter keeps a bfloat16 as the 16 bits of an integer. Without this, sums and products
    are those of such integers, and casts cut off digits. Dot products are summed in float64, so
    that the shape of a tile does not show in their bits.
    """
    interpreter = _interpreter()
    # Triton wraps its whole language anew for every call of a device function.
    interpreter.InterpretedFunction.__call__ = _call
    # It computes checks of overflow, too, which it then drops since nothing is debugged.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    builder = interpreter.InterpreterBuilder
    builder.get_bf16 = _constant  # which it lacks before 3.9
    builder.create_dot = _dot
    builder.cast_impl = _cast
    builder.create_splat = _splat
    builder.create_masked_load = _watched(builder.create_masked_load, mask=0)
    builder.create_masked_store = _watched(builder.create_masked_store, mask=1)
    for name, operator in ARITHMETIC.items():
        setattr(builder, name, _rounded(getattr(builder, name), operator))


def kernel(name: str) -> Any:
    """The Triton function of that name, "file.function"."""
    file, function = name.split(".")
    return getattr(import_module(f"{KERNELS}.{file}"), function)


def launch(
    function: Any,
    grid: tuple[int, int, int],
    arguments: Mapping[str, tuple[str, int | float]],
    constants: Mapping[str, Constant],
    check: Check | None = None,
) -> None:
    """Runs a kernel over the memory of this process.

    Args:
        function: as `kernel` gives it.
        grid: programs in each dimension.
        arguments: of each run-time argument its type in Triton, such as "*bf16" or "i32", and its
            value; an address for a pointer.
        constants: of every other argument that has no default.
        check: is given the addresses that the kernel is about to read or write, uint64, and how
            many bytes lie at each.
    """
    install()
    _Watched.check = check
    interpreter = _interpreter()
    passed = {name: _tensor(*argument) for name, argument in arguments.items()}
    given = bound(function, defaults(function) | dict(constants) | passed)
    body = function.rewrite()
    # Once for our kernels, and once for Triton's own functions, which use another module.
    users = (function.fn, _language().standard.zeros.fn)
    scopes = [interpreter._patch_lang(user) for user in users]
    try:
        interpreter.interpreter_builder.set_grid_dim(*grid)
        with np.errstate(all="ignore"), catch_warnings():  # a card does not warn
            simplefilter("ignore", RuntimeWarning)
            for x, y, z in product(*map(range, grid)):
                interpreter.interpreter_builder.set_grid_idx(x, y, z)
                body(**given)
    finally:
        for scope in reversed(scopes):
            scope.restore()
        _Watched.check = None


class _Watched:
    """Holder of the check of the addresses that kernels read and write."""

    check: Check | None = None


def _watched(access: Any, mask: int) -> Any:
    """A load or a store of the interpreter; `mask` is the place of its mask after the pointers."""

    def watched(builder: Any, pointers: Any, *rest: Any) -> Any:
        if _Watched.check is not None:
            width = pointers.get_element_ty().primitive_bitwidth // 8
            _Watched.check(pointers.data[np.asarray(rest[mask].data, bool)], width)
        return access(builder, pointers, *rest)

    return watched


def _call(function: Any, *arguments: Any, **named: Any) -> Any:
    return function.rewrite()(*arguments, **named)


def _interpreter() -> Any:
    return import_module("triton.runtime.interpreter")


def _language() -> Any:
    return import_module("triton.language")


def _tensor(type_name: str, value: int | float) -> Any:
    language = _language()
    if type_name.startswith("*"):
        kind = language.pointer_type(language.str_to_ty(type_name[1:], None))
        data = np.array([value], np.uint64)
    else:
        kind, data = language.str_to_ty(type_name, None), np.array([value], NUMBERS[type_name])
    return language.tensor(_interpreter().TensorHandle(data, kind), kind)


def _widened(handle: Any) -> Any:
    """Its numbers; those of bfloat16 as float32."""
    if handle.dtype.scalar != _language().bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _narrowed(numbers: Any) -> Any:
    """The bits of numbers rounded to bfloat16, halves to even."""
    wide = np.ascontiguousarray(numbers, np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, rounded).astype(np.uint16)


def _constant(builder: Any, value: float) -> Any:
    """A number of the source as a bfloat16."""
    return _interpreter().TensorHandle(_narrowed([value]), _language().bfloat16)


def _rounded(plain: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on two operands; of bfloat16 in float32, then rounded."""

    def operate(builder: Any, left: Any, right: Any) -> Any:
        kind = left.dtype.scalar
        if kind != _language().bfloat16:
            return plain(builder, left, right)
        result = operator(_widened(left), _widened(right))
        return _interpreter().TensorHandle(_narrowed(result), kind)

    return operate


def _dot(builder: Any, a: Any, b: Any, start: Any, *_: Any) -> Any:
    left, right = (_widened(each).astype(np.float64) for each in (a, b))
    total = np.matmul(left, right).astype(start.data.dtype) + start.data
    return _interpreter().TensorHandle(total, start.dtype.scalar)


def _splat(builder: Any, kind: Any, source: Any) -> Any:
    """A number everywhere; one that tells whether something holds stays a bool."""
    interpreter, target = _interpreter(), kind.scalar
    filled = np.full(kind.shape, source.data.reshape(-1)[0], interpreter._get_np_dtype(target))
    return interpreter.TensorHandle(filled, target)


def _cast(builder: Any, source: Any, kind: Any) -> Any:
    interpreter, target = _interpreter(), kind.scalar
    if target == _language().bfloat16:
        same = source.dtype.scalar == target
        data = source.data if same else _narrowed(_widened(source))
    else:
        data = _widened(source).astype(interpreter._get_np_dtype(target))
    return interpreter.TensorHandle(data, target)
