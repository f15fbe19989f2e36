"""Runs single ops through the real generator, compiler and C interface.

A call of an op becomes a plan of one instruction: temporaries in the arena, parameters packed by
the real packer. Units are compiled once per constants, target and flags; the number of rows, the
threads and the values are free at run time.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.plan import (
    DTYPE_BYTES,
    Buffer,
    DType,
    Instruction,
    Limits,
    MemoryPlan,
    Plan,
)
from ingot.artifact.target import Target
from ingot.compiler.cpp.generate import WeightLayout, generate
from ingot.compiler.cpp.toolchain import build
from ingot.compiler.pack import num_elements, pack
from ingot.ops.registry import OPS

LIMITS = Limits(
    max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=512, max_logit_rows=512, page_size=16
)
TARGETS = (
    "cpu:x86-64-v4+avx512_bf16",
    "cpu:x86-64-v4",
    "cpu:x86-64-v3",
    "cpu:portable",
)
WEIGHTS = ("weight", "bias", "inv_freq", "q_norm", "k_norm")
INPUTS = {
    "tokens": ("tokens", ("N",)),
    "positions": ("positions", ("N",)),
    "slots": ("slots", ("N",)),
    "query_start": ("query_start", ("S+1",)),
    "context_lens": ("context_lens", ("S",)),
    "page_table": ("page_table", ("S", "P")),
    "rows": ("logit_rows", ("R",)),
}
CACHES = ("k_cache", "v_cache")
NAMES: Mapping[torch.dtype, DType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
KEY_GROUP = 16


class ModelStruct(ctypes.Structure):
    _fields_ = [
        ("weights", ctypes.POINTER(ctypes.c_void_p)),
        ("caches", ctypes.POINTER(ctypes.c_void_p)),
        ("arena", ctypes.c_void_p),
        ("num_pages", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    ]


class StepStruct(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int32) for n in ("num_tokens", "num_seqs", "num_rows", "page_table_stride")),
        *((name, ctypes.c_void_p) for name, _ in INPUTS.values()),
        ("logits", ctypes.c_void_p),
    ]


def library(plan: Plan, target: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The loaded kernels of a plan."""
    return _load(generate(plan, Target.parse(target)).source, target, flags)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="ingot-kernels-"))


@cache
def _load(source: str, target: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    key = hashlib.sha256(repr((source, target, flags)).encode()).hexdigest()[:16]
    folder = _folder() / key
    folder.mkdir()
    (folder / "step.cpp").write_text(source)
    build(folder, folder / "kernels.so", Target.parse(target), flags)
    lib = ctypes.CDLL(str(folder / "kernels.so"))
    lib.ingot_open.restype = ctypes.c_void_p
    lib.ingot_open.argtypes = [ctypes.POINTER(ModelStruct)]
    lib.ingot_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(StepStruct)]
    lib.ingot_close.argtypes = [ctypes.c_void_p]
    return lib


def aligned(nbytes: int, fill: int = 0) -> np.ndarray:
    """Bytes that start at a multiple of 64."""
    raw = np.full(nbytes + 64, fill, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def pack_keys(keys: Tensor) -> Tensor:
    """[pages, Hk, page size, D] -> the kernels' order, [.., groups, D / depth, 16, depth]."""
    pages, heads, page_size, size = keys.shape
    depth = 4 // keys.dtype.itemsize
    grouped = keys.view(pages, heads, page_size // KEY_GROUP, KEY_GROUP, size // depth, depth)
    return grouped.transpose(3, 4).contiguous()


def unpack_keys(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of pack_keys."""
    pages, heads, page_size, size = shape
    depth = 4 // packed.dtype.itemsize
    grouped = packed.view(pages, heads, page_size // KEY_GROUP, size // depth, KEY_GROUP, depth)
    return grouped.transpose(3, 4).reshape(shape)


def tensor_bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor, not a copy."""
    if tensor.numel() == 0:  # torch gives an empty tensor a stride of 0 and refuses the view
        return np.empty(0, np.uint8)
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


@dataclass
class Memory:
    """A model's buffers, as the runtime would hold them."""

    weights: list[np.ndarray]
    caches: list[np.ndarray]
    arena: np.ndarray
    num_pages: int = 1

    def run(
        self,
        lib: ctypes.CDLL,
        inputs: Mapping[str, Tensor],
        threads: int,
        logits: np.ndarray | None = None,
    ) -> None:
        """One step in a model opened for it."""
        model = ModelStruct(
            _pointers(self.weights),
            _pointers(self.caches),
            self.arena.ctypes.data,
            self.num_pages,
            threads,
        )
        arrays = {n: t.to(torch.int32).contiguous().numpy() for n, t in inputs.items()}
        step = StepStruct(
            num_tokens=_length(arrays, "tokens", "positions", "slots"),
            num_seqs=_length(arrays, "context_lens"),
            num_rows=_length(arrays, "logit_rows"),
            page_table_stride=arrays["page_table"].shape[1] if "page_table" in arrays else 0,
            logits=0 if logits is None else logits.ctypes.data,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        handle = lib.ingot_open(ctypes.byref(model))
        assert handle, "ingot_open gave no model"
        try:
            assert lib.ingot_run(handle, ctypes.byref(step)) == 0
        finally:
            lib.ingot_close(handle)


def _pointers(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


def _length(arrays: Mapping[str, np.ndarray], *names: str) -> int:
    return max((len(arrays[n]) for n in names if n in arrays), default=0)


def packed_weights(
    layouts: tuple[WeightLayout, ...], plan: Plan, values: Mapping[str, Tensor]
) -> list[np.ndarray]:
    """Weights as the packer writes them."""
    path = _folder() / "weights.safetensors"
    pack(path, plan, layouts, lambda name: values[name])
    raw = np.fromfile(path, dtype=np.uint8)
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    packed = []
    for layout in layouts:
        nbytes = -(-num_elements(layout) * DTYPE_BYTES[layout.dtype] // 64) * 64
        packed.append(aligned(nbytes))
        packed[-1][:] = raw[start : start + nbytes]
        start += nbytes
    return packed


def plan_of(op: str, arguments: Mapping[str, object]) -> Plan:
    """A plan of one instruction that makes that call; tensors have the graph's leading 1."""
    buffers: list[Buffer] = []
    inputs: dict[str, str] = {}
    offset = 0

    def arena(name: str, tensor: Tensor, rows: str) -> None:
        nonlocal offset
        dtype, shape = NAMES[tensor.dtype], (rows, *tensor.shape[2:])
        buffers.append(Buffer(name=name, dtype=dtype, shape=shape, kind="arena", offset=offset))
        nbytes = DTYPE_BYTES[dtype] * math.prod(map(LIMITS.bound, shape))
        offset += -(-nbytes // 64) * 64

    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            continue
        inputs[name] = INPUTS[name][0] if name in INPUTS else name
        if name in INPUTS:
            buffers.append(
                Buffer(name=INPUTS[name][0], dtype="int32", shape=INPUTS[name][1], kind="input")
            )
        elif name in CACHES:
            buffers.append(
                Buffer(
                    name=name, dtype=NAMES[value.dtype], shape=(0, *value.shape[1:]), kind="cache"
                )
            )
        elif name in WEIGHTS:
            buffers.append(
                Buffer(
                    name=name,
                    dtype=NAMES[value.dtype],
                    shape=tuple(value.shape),
                    kind="weight",
                    sources=(name,),
                )
            )
        else:
            arena(name, value, "N")
    results = OPS[op].empty_results(**arguments)
    outputs = {n: n for n in OPS[op].outputs} if results else {}
    for name, result in zip(outputs, results, strict=True):
        arena(name, result, "R" if op == "select_rows" else "N")
    attrs = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, (bool, int, float, str))
    }
    return Plan(
        limits=LIMITS,
        buffers=tuple(buffers),
        instructions=(
            Instruction(op=op, inputs=inputs, outputs=outputs, attrs=attrs, origin="test"),
        ),
        memory=MemoryPlan(arena_bytes=offset, slots=()),
    )


def run_op(
    op: str,
    arguments: Mapping[str, object],
    target: str,
    *,
    threads: int = 2,
    flags: tuple[str, ...] = (),
) -> tuple[Tensor, ...]:
    """The kernel's results of a call, then the caches it was given as it left them."""
    plan = plan_of(op, arguments)
    tensors = {n: t for n, t in arguments.items() if isinstance(t, Tensor)}
    layouts = generate(plan, Target.parse(target)).weights
    arena = aligned(plan.memory.arena_bytes, fill=0xFF)  # NaN: nothing may rely on zeros
    for buffer in plan.of_kind("arena"):
        if buffer.name in tensors:
            data = tensor_bytes(tensors[buffer.name])
            arena[buffer.offset : buffer.offset + data.nbytes] = data
    caches = []
    for buffer in plan.of_kind("cache"):
        value = tensors[buffer.name]
        data = tensor_bytes(pack_keys(value) if buffer.name == "k_cache" else value)
        caches.append(aligned(data.nbytes))
        caches[-1][:] = data
    inputs = {
        INPUTS[n][0]: t.view(-1) if n != "page_table" else t
        for n, t in tensors.items()
        if n in INPUTS
    }
    rows = next(
        (
            t.shape[1]
            for n, t in tensors.items()
            if n not in INPUTS and n not in CACHES and n not in WEIGHTS
        ),
        None,
    )
    if rows is not None:
        inputs.setdefault("tokens", torch.zeros(rows))
    memory = Memory(packed_weights(layouts, plan, tensors), caches, arena)
    memory.run(library(plan, target, flags), inputs, threads)
    return (
        *(
            _read(arena, plan.buffer(n), r)
            for n, r in zip(OPS[op].outputs, OPS[op].empty_results(**arguments), strict=False)
        ),
        *(
            _read_cache(c, tensors[b.name], b.name)
            for c, b in zip(caches, plan.of_kind("cache"), strict=True)
        ),
    )


def _read(arena: np.ndarray, buffer: Buffer, like: Tensor) -> Tensor:
    result = torch.empty(like.shape, dtype=like.dtype)
    raw = tensor_bytes(result)
    raw[:] = arena[buffer.offset : buffer.offset + raw.nbytes]
    return result


def _read_cache(raw: np.ndarray, like: Tensor, name: str) -> Tensor:
    values = torch.from_numpy(raw.copy()).view(like.dtype)
    shape = tuple(like.shape)
    return unpack_keys(values, shape) if name == "k_cache" else values.view(shape)
