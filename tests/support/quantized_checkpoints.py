"""Writes tiny checkpoints in the quantized layouts of other programs, from integers that are known.

Each writer packs by loops that follow the layout's own documents, so that it has nothing in common
with what reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that nibble j of a word holds, from low to high
# e2m1: the number of each code of four bits.
FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Known:
    """A matrix in integers: unsigned `codes` [O, K], `zeros` and `scales` [O, K / group]. Column k
    is in the group `groups[k]`."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    bits: int
    groups: Tensor

    @property
    def group(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def order(self) -> Tensor:
        """The columns, those of a group as neighbours."""
        return self.groups.argsort(stable=True)

    def numbers(self) -> Tensor:
        """What the integers stand for, float32 [O, K]."""
        wide = [t[:, self.groups] for t in (self.zeros, self.scales.float())]
        return (self.codes - wide[0]).float() * wide[1]


Tensors = dict[str, Tensor]
# A matrix's tensors by the ends of their names.
Write = Callable[[Known], Tensors]


@dataclass(frozen=True)
class Layout:
    """A layout: its writer, its quantization_config, and the integers that it can hold."""

    write: Write
    config: Mapping[str, Any]
    bits: int = 4
    symmetric: bool = True
    group: int = GROUP  # 0: a whole row
    lowest: int = 0  # of codes and of zeros that differ
    ordered: bool = False  # columns are in any group, in the same for matrices of one module


def draw(layout: Layout, like: Tensor, rng: torch.Generator) -> Known:
    """Integers for a matrix of that shape, whose numbers are about as large as a model's."""
    rows, columns = like.shape
    middle = 1 << (layout.bits - 1)
    groups = columns // (layout.group or columns)
    codes = torch.randint(layout.lowest, 2 * middle, (rows, columns), generator=rng)
    codes[0, :2] = torch.tensor([layout.lowest, 2 * middle - 1])
    if layout.symmetric:
        zeros = torch.full((rows, groups), middle)
    else:
        zeros = torch.randint(layout.lowest, 2 * middle - 1, (rows, groups), generator=rng)
        zeros[0, 0] = layout.lowest
    scales = torch.rand(rows, groups, generator=rng) * 0.04 / middle + 0.01 / middle
    of_columns = torch.arange(columns) // (layout.group or columns)
    if layout.ordered:
        of_columns = of_columns[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
    return Known(codes, zeros, scales.bfloat16().half(), layout.bits, of_columns)


def rewrite(model_dir: Path, layout: Layout, seed: int = 0) -> dict[str, Known]:
    """Stores the matrices of the layers of a model in a layout; returns what they are now."""
    rng = torch.Generator().manual_seed(seed)
    path = model_dir / "model.safetensors"
    tensors, known = load_file(path), {}
    for name in sorted(tensors):
        if ".layers." in name and name.endswith("_proj.weight"):
            known[name] = draw(layout, tensors.pop(name), rng)
            for end, tensor in layout.write(known[name]).items():
                tensors[name.removesuffix(".weight") + end] = tensor.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    set_config(model_dir, layout.config)
    return known


def set_config(model_dir: Path, quantization: Mapping[str, Any] | None) -> None:
    """Gives a model's config.json that quantization_config, or takes it away."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": quantization}
    if quantization is None:
        del config["quantization_config"]
    path.write_text(json.dumps(config))


def plain(model_dir: Path, known: Mapping[str, Known]) -> None:
    """Stores the numbers instead: the same model in float32, which any program reads."""
    path = model_dir / "model.safetensors"
    tensors = load_file(path) | {name: each.numbers() for name, each in known.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def words(codes: Tensor, bits: int) -> Tensor:
    """Integers [n, m] -> int32 [n / (32 / bits), m]: the first of each run in the lowest bits."""
    each = 32 // bits
    out = torch.zeros(-(-codes.shape[0] // each), codes.shape[1], dtype=torch.int64)
    for row in range(codes.shape[0]):
        out[row // each] |= codes[row].long() << bits * (row % each)
    return torch.where(out >= 1 << 31, out - (1 << 32), out).int()


def gptq(known: Known, *, less: int = 1) -> Tensors:
    """AutoGPTQ's pack: columns of W^T, and zeros less one in version 1."""
    return {
        ".qweight": words(known.codes.T, known.bits),
        ".qzeros": words(known.zeros - less, known.bits).T,
        ".scales": known.scales.T,
        ".g_idx": known.groups.int(),
    }


def awq(known: Known) -> Tensors:
    """AutoAWQ's gemm: eight outputs in a word, in an order of its own."""

    def packed(codes: Tensor) -> Tensor:
        by_eight = codes.T.reshape(codes.shape[1], -1, 8)[..., list(AWQ_ORDER)]
        return words(by_eight.reshape(codes.shape[1], -1).T, 4).T

    return {
        ".qweight": packed(known.codes),
        ".qzeros": packed(known.zeros),
        ".scales": known.scales.T,
    }


def pack_quantized(known: Known) -> Tensors:
    """compressed-tensors: rows of W, and zeros packed along the rows."""
    rows, columns = known.codes.shape
    found = {
        ".weight_packed": words(known.codes.T, known.bits).T,
        ".weight_scale": known.scales.bfloat16(),
        ".weight_shape": torch.tensor([rows, columns]),
    }
    if (known.groups.diff() < 0).any():
        found[".weight_g_idx"] = known.groups.int()
    if (known.zeros != 1 << (known.bits - 1)).any():
        found[".weight_zero_point"] = words(known.zeros, known.bits)
    return found


def int_quantized(known: Known) -> Tensors:
    """compressed-tensors: int8 as it is."""
    return {
        ".weight": (known.codes - 128).to(torch.int8),
        ".weight_scale": known.scales.bfloat16(),
        ".input_scale": torch.ones(1),
    }


def scheme(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one group."""
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True} | more
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def _gptq(
    bits: int = 4,
    group: int = GROUP,
    *,
    sym: bool = True,
    v2: bool = False,
    lowest: int = 0,
    ordered: bool = False,
) -> Layout:
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group or -1,
        "sym": sym,
        "desc_act": ordered,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }
    write = partial(gptq, less=0 if v2 else 1)
    return Layout(write, config, bits, sym, group, lowest, ordered)


def _packed(
    bits: int = 4, group: int = GROUP, *, symmetric: bool = True, ordered: bool = False
) -> Layout:
    strategy = "group" if group else "channel"
    more = {"group_size": group} if group else {}
    more |= {"actorder": "group"} if ordered else {}
    config = scheme(bits, strategy, symmetric=symmetric, **more)
    config |= {"format": "pack-quantized"}
    return Layout(pack_quantized, config, bits, symmetric, group, ordered=ordered)


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
_INT8 = scheme(8, "channel") | {"format": "int-quantized"}
LAYOUTS: dict[str, Layout] = {
    "gptq": _gptq(),
    "gptq-v2": _gptq(v2=True),
    "gptq-8bit": _gptq(8),
    "gptq-2bit": _gptq(2),
    "gptq-channel": _gptq(group=0),
    "gptq-ordered": _gptq(ordered=True),
    "gptq-ordered-zeros": _gptq(sym=False, v2=True, ordered=True),
    "gptq-zeros": _gptq(sym=False, v2=True),
    "gptq-zeros-v1": _gptq(sym=False, lowest=1),
    "gptq-narrow": _gptq(group=16, sym=False, v2=True),
    "awq": Layout(awq, _AWQ | {"version": "gemm"}, symmetric=False),
    "pack-quantized": _packed(),
    "pack-quantized-zeros": _packed(symmetric=False),
    "pack-quantized-ordered": _packed(symmetric=False, ordered=True),
    "pack-quantized-channel": _packed(8, 0),
    "int-quantized": Layout(int_quantized, _INT8, bits=8, group=0),
}
