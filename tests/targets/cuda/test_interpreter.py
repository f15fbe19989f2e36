"""Triton's interpreter computes with bfloat16 as torch does, once it is corrected."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch
import triton.runtime.interpreter as original
from torch import Tensor

from ingot.targets.cuda.interpreter import ARITHMETIC
from tests.targets.cuda import arithmetic
from tests.targets.cuda.interpreter import install, run

SIZE = 32
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def uncorrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter as Triton ships it."""
    install()
    fresh = _second_copy()
    for name in ("create_dot", "cast_impl", *ARITHMETIC):
        monkeypatch.setattr(
            original.InterpreterBuilder, name, getattr(fresh.InterpreterBuilder, name)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot(dtype: torch.dtype) -> None:
    a, b = drawn(1, dtype), drawn(2, dtype)
    torch.testing.assert_close(dot(a, b), a.float() @ b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", [*DTYPES, torch.int8])
@pytest.mark.parametrize("target", DTYPES)
def test_cast(source: torch.dtype, target: torch.dtype) -> None:
    x = (50 * drawn(3, torch.float32)).to(source).flatten()
    assert torch.equal(cast(x, target), x.to(target))


def test_cast_of_what_is_no_number() -> None:
    x = torch.full((SIZE,), torch.nan)
    assert cast(x, torch.bfloat16).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic(dtype: torch.dtype) -> None:
    x, y = (drawn(seed, dtype).flatten() for seed in (4, 5))
    assert torch.equal(combine(x, y), (x - 0.5) * y + x)


@pytest.mark.usefixtures("uncorrected")
def test_uncorrected_arithmetic_is_wrong() -> None:
    x, y = (drawn(seed, torch.bfloat16).flatten() for seed in (4, 5))
    assert not torch.equal(combine(x, y), (x - 0.5) * y + x)


@pytest.mark.usefixtures("uncorrected")
def test_uncorrected_dot_is_wrong() -> None:
    a, b = drawn(1, torch.bfloat16), drawn(2, torch.bfloat16)
    assert not torch.allclose(dot(a, b), a.float() @ b.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("uncorrected")
def test_uncorrected_cast_is_wrong() -> None:
    x = drawn(3, torch.float32).flatten()
    assert not torch.equal(cast(x, torch.bfloat16), x.to(torch.bfloat16))


def drawn(seed: int, dtype: torch.dtype) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, SIZE, generator=rng).to(dtype)


def dot(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(SIZE, SIZE)
    run(arithmetic.dot, (1,), a=a, b=b, out=out, SIZE=SIZE)
    return out


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    run(arithmetic.cast, (1,), x=x, out=out, SIZE=x.numel())
    return out


def combine(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    run(arithmetic.combine, (1,), x=x, y=y, out=out, SIZE=x.numel())
    return out


def _second_copy() -> ModuleType:
    """The module of Triton's, imported anew."""
    assert original.__file__ is not None
    spec = importlib.util.spec_from_file_location(original.__name__, original.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
