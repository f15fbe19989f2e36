"""Runs generated units through their C interface, as the runtime does."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import IO, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.host import host_flags
from ingot.artifact.programs import STEP
from ingot.artifact.select import ABI
from ingot.artifact.target import Target
from ingot.targets.cpu.generate import step_sources
from ingot.targets.cpu.toolchain import build, compile_once
from ingot.targets.target import requires, target_named
from tests.support.made_once import made_once, shared_folder

T = TypeVar("T")
Sources = tuple[tuple[str, str], ...]  # file names and texts

# What builds a feature for a host that lacks it: flags, and what the host has to have instead.
STAND_INS = {
    "avx_vnni": (("-mno-avxvnni", "-mavx512vnni", "-mavx512vl"), {"avx512_vnni", "avx512vl"}),
    "amx_bf16": (("-DINGOT_EMULATES_AMX",), set[str]()),
    "amx_int8": (("-DINGOT_EMULATES_AMX",), set[str]()),
}


def runnable(*names: str) -> tuple[str, ...]:
    """Those of the targets that this host can run, if with stand-ins."""
    return tuple(name for name in names if all(map(_has_stand_in, _lacking(name))))


def encoding(target: str) -> tuple[str, ...]:
    """Flags after the target's, so that this host can run what is built."""
    return tuple(flag for feature in sorted(_lacking(target)) for flag in STAND_INS[feature][0])


def _lacking(target: str) -> frozenset[str]:
    return requires(target_named(target)) - host_flags()


def _has_stand_in(feature: str) -> bool:
    return feature in STAND_INS and STAND_INS[feature][1] <= host_flags()


# Every level of instructions, the best first.
TARGETS = runnable(
    *("cpu:x86-64-v4+amx_bf16", "cpu:x86-64-v4+avx512_bf16", "cpu:x86-64-v4", "cpu:x86-64-v3"),
    "cpu:portable",
)
INPUTS = tuple(array.name for array in STEP.inputs_for("paged"))
KEY_GROUP = 16
KEY_DEPTHS = {torch.float32: 1, torch.bfloat16: 2, torch.int8: 4}
VALUE_DEPTHS = KEY_DEPTHS | {torch.int8: 1}


class ModelStruct(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.POINTER(ctypes.c_void_p)),
        ("caches", ctypes.POINTER(ctypes.c_void_p)),
        ("arena", ctypes.c_void_p),
        ("num_pages", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("watches_host", ctypes.c_int32),
    )


class StepStruct(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int32) for n in ("num_tokens", "num_seqs", "num_rows", "page_table_stride")),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("inputs", "outputs")),
    )


def step_struct(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], **sizes: int
) -> StepStruct:
    """A step; whoever calls keeps the arrays alive."""
    return StepStruct(inputs=_pointers(inputs), outputs=_pointers(outputs), **sizes)


@cache
def workers() -> ProcessPoolExecutor:
    """Two workers at once, while tests run.

    They are processes, so that no build sees what a test patches meanwhile.
    """
    return ProcessPoolExecutor(2, get_context("spawn"), _end_with_tests)


def _end_with_tests() -> None:
    """A worker whose tests were killed would wait for ever."""

    def watch() -> None:
        tests = parent_process()
        assert tests is not None
        tests.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Ahead(Generic[T]):
    """What a worker builds once it is free, or whoever asks for the result before that."""

    build: Callable[[], T]
    by_worker: Future[T]

    def result(self) -> T:
        return self.build() if self.by_worker.cancel() else self.by_worker.result()


def ahead(function: Callable[..., T], *args: object) -> Ahead[T]:
    """Builds `function(*args)`, which takes no time if it is built already."""
    build = partial(function, *args)
    return Ahead(build, workers().submit(build))


def sources_of(generated: Mapping[str, str]) -> Sources:
    return tuple(sorted(generated.items()))


def step_of(target: str, body: str, **sizes: int) -> Sources:
    """A step with that body, which calls no kernels."""
    names = ("num_kernels", "num_weights", "num_caches", "arena_bytes", "vocabulary")
    sizes = dict.fromkeys(names, 0) | sizes
    values = {"target": target, "body": body, "abi": ABI, "plan": 0, "sequences": ""}
    return sources_of(step_sources(**values, **sizes))


def write_sources(place: Path, sources: Sources) -> None:
    for name, text in sources:
        (place / name).write_text(text)


def compile_in_turn(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """`compile_once`, by no more compilers at once than there are processors.

    Workers of all test processes ask for the largest units at once, and a compiler may only take
    five minutes.
    """
    with ExitStack() as turns:
        names = [shared_folder() / f"compiler-{n}" for n in range(os.cpu_count() or 1)]
        files = [turns.enter_context(name.open("w")) for name in names]
        if not any(map(_is_taken, files)):
            fcntl.flock(files[os.getpid() % len(files)], fcntl.LOCK_EX)
        compile_once(source, out, target, flags)


def _is_taken(turn: IO[str]) -> bool:
    """Takes a turn if it is free."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def build_library(sources: Sources, target: str, more: tuple[str, ...] = ()) -> Path:
    """The library that generated sources become with more flags, built once a test run."""

    def compiled(place: Path) -> None:
        write_sources(place, sources)
        flags = (*encoding(target), *more)
        build(place, place / "kernels.so", target_named(target), flags, compile_in_turn)

    content = hashlib.sha256(f"{target}{more}\n{sources}".encode()).hexdigest()
    return made_once(f"unit-{content}", compiled) / "kernels.so"


@cache
def built(sources: Sources, target: str, more: tuple[str, ...] = ()) -> Ahead[Path]:
    """The same, ahead of its use."""
    return ahead(build_library, sources, target, more)


@cache
def load(sources: Sources, target: str, more: tuple[str, ...] = ()) -> ctypes.CDLL:
    """That library; each is loaded once a session."""
    lib = ctypes.CDLL(str(built(sources, target, more).result()))
    lib.ingot_open.restype = ctypes.c_void_p
    lib.ingot_open.argtypes = [ctypes.POINTER(ModelStruct)]
    lib.ingot_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(StepStruct)]
    lib.ingot_submit.argtypes = [ctypes.c_void_p, ctypes.POINTER(StepStruct)]
    lib.ingot_wait.argtypes = [ctypes.c_void_p]
    lib.ingot_close.argtypes = [ctypes.c_void_p]
    return lib


def aligned_bytes(nbytes: int, fill: int = 0) -> np.ndarray:
    """Bytes that start at a multiple of 64."""
    raw = np.full(nbytes + 64, fill, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def tensor_bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, shared with it where it is contiguous."""
    if tensor.numel() == 0:  # torch gives an empty tensor a stride of 0 and refuses the view
        return np.empty(0, np.uint8)
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


def offset(keys: Tensor) -> Tensor:
    """Bytes of value + 128, and the other way round; other formats stay."""
    return keys ^ -128 if keys.dtype == torch.int8 else keys


def pack_cache(name: str, cache: Tensor) -> Tensor:
    """[pages, Hk, page size, D] -> the kernels' order; scales lie as they are.

    Keys: [.., page size / 16, D / depth, 16, depth], in int8 as bytes of value + 128; values:
    [.., page size / depth, D, depth]; rows that are both, their scales, and records [slots, ..] as
    they are.
    """
    if cache.dim() == 3 or cache.shape[-1] == 1 or name.endswith("latent_cache"):
        return cache
    pages, heads, page_size, size = cache.shape
    if name.endswith("k_cache"):
        depth = KEY_DEPTHS[cache.dtype]
        cache = offset(cache)
        grouped = cache.view(pages, heads, page_size // KEY_GROUP, KEY_GROUP, size // depth, depth)
    else:
        depth = VALUE_DEPTHS[cache.dtype]
        grouped = cache.view(pages, heads, page_size // depth, depth, size)
    return grouped.transpose(3, 4).contiguous()


def unpack_cache(name: str, packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of pack_cache."""
    if len(shape) == 3 or shape[-1] == 1 or name.endswith("latent_cache"):
        return packed.view(tuple(shape))
    pages, heads, page_size, size = shape
    if name.endswith("k_cache"):
        depth = KEY_DEPTHS[packed.dtype]
        packed = offset(packed)
        inner = (page_size // KEY_GROUP, size // depth, KEY_GROUP, depth)
    else:
        depth = VALUE_DEPTHS[packed.dtype]
        inner = (page_size // depth, size, depth)
    return packed.view(pages, heads, *inner).transpose(3, 4).reshape(tuple(shape))


@dataclass
class Memory:
    """A model's buffers, as the runtime holds them, and the names of the inputs of its steps."""

    weights: list[np.ndarray]
    caches: list[np.ndarray]
    arena: np.ndarray
    num_pages: int
    logits: np.ndarray
    inputs: tuple[str, ...] = INPUTS

    def run(self, lib: ctypes.CDLL, inputs: Mapping[str, Tensor], threads: int) -> None:
        """One step, in a model that is opened for it."""
        model = ModelStruct(
            _pointers(self.weights),
            _pointers(self.caches),
            self.arena.ctypes.data,
            self.num_pages,
            threads,
        )
        arrays = {n: inputs[n].to(torch.int32).contiguous().numpy() for n in self.inputs}
        step = step_struct(
            [*arrays.values()],
            [self.logits],
            num_tokens=len(arrays["tokens"]),
            num_seqs=len(arrays["page_table"]),
            num_rows=len(arrays["logit_rows"]),
            page_table_stride=arrays["page_table"].shape[1],
        )
        handle = lib.ingot_open(ctypes.byref(model))
        assert handle, "ingot_open gave no model"
        try:
            assert lib.ingot_run(handle, ctypes.byref(step)) == 0
        finally:
            lib.ingot_close(handle)


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
