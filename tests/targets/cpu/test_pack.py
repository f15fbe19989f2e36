"""The packed file, against a layout written from its definition."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from ingot.artifact.formats import DType, Format
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.spec import Spec
from ingot.errors import InternalError
from ingot.ops.scaled import Scaled
from ingot.targets.cpu import pack as packer
from ingot.targets.cpu.pack import pack, pack_panels
from ingot.targets.cpu.weights import Layout, WeightLayout, num_elements
from tests.targets.sketch import LIMITS, NAMES

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _NoIntegers:
    """No parameter is stored in integers."""

    def matrix(self, name: str) -> Scaled:
        raise KeyError(name)


NO_INTEGERS = _NoIntegers()


def defined_panels(weight: Tensor) -> Tensor:
    """Element by element, as the layout is described."""
    outputs, inputs = weight.shape
    depth = 4 // weight.dtype.itemsize
    steps = math.ceil(inputs / depth)
    packed: list[Tensor] = []
    for first in range(0, outputs, 64):
        width = min(64, math.ceil((outputs - first) / 16) * 16)
        panel = torch.zeros(steps, width, depth, dtype=weight.dtype)
        for column in range(min(width, outputs - first)):
            for k in range(inputs):
                panel[k // depth, column, k % depth] = weight[first + column, k]
        packed.append(panel.flatten())
    return torch.cat(packed)


def layout(name: str, kind: Layout, dtype: DType, *shape: int) -> WeightLayout:
    return WeightLayout(name, kind, Format(dtype), shape)


def plan_of(*weights: WeightLayout, sources: dict[str, tuple[str, ...]] | None = None) -> Plan:
    buffers = tuple(
        Buffer(name=w.name, format=w.format, shape=w.shape, kind="weight",
               sources=(sources or {}).get(w.name, ()))
        for w in weights
    )  # fmt: skip
    return Plan(limits=LIMITS, spec=Spec(), buffers=buffers, instructions=())


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(st.integers(1, 150), st.integers(1, 9), st.sampled_from(list(TORCH.values())))
def test_panels_are_as_defined(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(outputs * 10 + inputs)
    weight = torch.randn(outputs, inputs, generator=rng).to(dtype)
    packed = pack_panels(weight).view(dtype)
    assert torch.equal(packed, defined_panels(weight))
    assert len(packed) == num_elements(layout("w", "panels", NAMES[dtype], outputs, inputs))


@pytest.mark.parametrize("piece_bytes", [1, 10_000, 1 << 20])
def test_a_file_holds_every_weight_aligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(packer, "PIECE_BYTES", piece_bytes)
    rng = torch.Generator().manual_seed(0)
    source = {n: torch.randn(s, 33, generator=rng) for n, s in (("q", 100), ("k", 30), ("v", 7))}
    source["norm"] = torch.randn(33, generator=rng).to(torch.bfloat16)
    source["table"] = torch.randn(70, 33, generator=rng).to(torch.float16)
    weights = (
        layout("norm", "rows", "float32", 33),
        layout("qkv", "panels", "bfloat16", 137, 33),
        layout("table", "rows", "bfloat16", 70, 33),
        layout("f32", "panels", "float32", 100, 33),
    )
    plan = plan_of(*weights, sources={"qkv": ("q", "k", "v"), "f32": ("q",)})
    path = tmp_path / "w.safetensors"
    pack(path, plan, weights, source.__getitem__, NO_INTEGERS)

    stacked = torch.cat([source["q"], source["k"], source["v"]]).to(torch.bfloat16)
    expected = {
        "norm": source["norm"].float(),
        "qkv": defined_panels(stacked),
        "table": source["table"].to(torch.bfloat16).flatten(),
        "f32": defined_panels(source["q"]),
    }
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == sorted(expected)
        for name, tensor in expected.items():
            stored = file.get_tensor(name)
            assert stored.dtype == tensor.dtype
            assert torch.equal(stored[: len(tensor)], tensor), name
            assert not stored[len(tensor) :].any()
            assert stored.numel() * stored.element_size() % 64 == 0
    size = int.from_bytes(path.read_bytes()[:8], "little")
    assert (8 + size) % 64 == 0


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    weight = layout("w", "panels", "bfloat16", 130, 64)
    value = torch.randn(130, 64, generator=torch.Generator().manual_seed(0))
    for name in ("a", "b"):
        pack(tmp_path / name, plan_of(weight), (weight,), lambda _: value, NO_INTEGERS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_source_of_the_wrong_shape_is_noticed(tmp_path: Path) -> None:
    weight = layout("w", "panels", "float32", 130, 64)
    with pytest.raises(InternalError, match="weight w has 129 rows, not 130"):
        pack(
            tmp_path / "w", plan_of(weight), (weight,), lambda _: torch.zeros(129, 64), NO_INTEGERS
        )


def test_sources_are_read_one_at_a_time(tmp_path: Path) -> None:
    """What an earlier read gave may be dropped; the packer looks at it late, never after `pack`."""
    order: list[str] = []
    value = torch.from_numpy(np.ones((64, 64), np.float32))

    def read(name: str) -> Tensor:
        order.append(name)
        return value

    weights = tuple(layout(n, "panels", "float32", 64, 64) for n in "ab")
    pack(tmp_path / "w", plan_of(*weights), weights, read, NO_INTEGERS)
    assert order == ["a", "b"]
