"""Tiny kernels, built for every architecture once a test run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import (
    BuiltLaunches,
    KernelSpec,
    Launches,
    decode_built,
    encode_launches,
)
from ingot.artifact.target import Target
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.triton_package import find_assembler, find_triton
from tests.support.made_once import made_once

PACKAGE = "tests.targets.cuda.tiny_kernels"
# Those that the tools of this Triton know: of 3.6 and 3.7 neither the older assembler nor the
# disassembler know sm_103.
OLDER = find_assembler(find_triton()).cuda
TARGETS = tuple(
    Target("cuda", level)
    for level, architecture in ARCHITECTURES.items()
    if architecture.cuda <= OLDER
)
DOUBLE = KernelSpec(
    function="small.double",
    arguments=(("x", "*bf16"), ("out", "*fp32"), ("N", "i32")),
    constants={"BLOCK": 1024},
)


def product(
    function: str = "gated.multiply",
    *,
    rows: int = 64,
    columns: int = 128,
    dtype: str = "bf16",
    unaligned: tuple[str, ...] = (),
    num_warps: int = 4,
    num_stages: int = 4,
) -> KernelSpec:
    """A product, by tiles of so many rows and columns of its weights."""
    pointers = (("w", f"*{dtype}"), ("x", f"*{dtype}"), ("out", "*fp32"))
    return KernelSpec(
        function=function,
        arguments=(*pointers, ("M", "i32")),
        constants={"K": 2048, "BN": rows, "BM": 16, "BK": columns},
        unaligned=unaligned,
        num_warps=num_warps,
        num_stages=num_stages,
    )


ATTEND = KernelSpec(
    function="gated.attend",
    arguments=(*((name, "*bf16") for name in "qkv"), ("out", "*bf16"), ("KEYS", "i32")),
    constants={"D": 128, "BM": 16, "BN": 64},
)
HALF_ATTEND = replace(
    ATTEND,
    arguments=tuple((name, kind.replace("bf16", "fp16")) for name, kind in ATTEND.arguments),
)
CROWDED = KernelSpec(
    function="gated.crowded",
    arguments=(("x", "*bf16"), ("out", "*fp32"), ("N", "i32")),
    constants={"BLOCK": 4096},
    num_warps=1,
)
# Some as they should be, and those that are spelled badly on purpose.
KERNELS: Mapping[str, KernelSpec] = {
    "product": product(),
    "attention": ATTEND,
    "float16 product": product(dtype="fp16"),
    "float16 attention": HALF_ATTEND,
    "half sums": product("gated.half_sums", dtype="fp16"),
    "not ahead": product(num_stages=1),
    "unaligned": product(unaligned=("w",)),
    "tokens left": product("gated.tokens_left", rows=32),
    "no matrix": DOUBLE,
    "crowded": CROWDED,
    "few bytes": product(columns=16, num_warps=16, num_stages=2),
}


def launches(*specs: KernelSpec) -> Launches:
    return Launches(kernels=specs, launches=())


def written(folder: Path, *specs: KernelSpec) -> Path:
    """The folder, made, with a `launches.json` that lists kernels and no launch of them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / toolchain.LAUNCHES).write_bytes(encode_launches(launches(*specs)))
    return folder


def built(folder: Path, *specs: KernelSpec, target: Target = TARGETS[1]) -> BuiltLaunches:
    """What the toolchain makes of kernels, in a folder that need not be there."""
    toolchain.build(written(folder, *specs), folder / "kernels.json", target, PACKAGE)
    return decode_built((folder / "kernels.json").read_bytes())


@cache
def all_built(target: Target) -> tuple[Path, BuiltLaunches]:
    """All KERNELS for a target, and the folder that they lie in."""
    place = made_once(
        f"tiny-{target.level}", lambda folder: built(folder, *KERNELS.values(), target=target)
    )
    return place, decode_built((place / "kernels.json").read_bytes())
