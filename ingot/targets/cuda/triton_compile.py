"""The one place that calls Triton's compiler. Triton 3.6 to 3.9 are called alike."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ingot.artifact.launches import KernelSpec
from ingot.targets.cuda.call import ALIGNMENT, DEPENDENT
from ingot.targets.cuda.compiled import Compiled
from ingot.targets.cuda.parameters import bound, defaults, leaves

THREADS_OF_A_WARP = 32


def compile_kernel(spec: KernelSpec, package: str, architecture: int) -> Compiled:
    """A kernel of a package of kernels, built. Raises whatever Triton raises."""
    source = _source(_function(spec, package), spec)
    target = GPUTarget("cuda", architecture, THREADS_OF_A_WARP)
    built: Any = triton.compile(source, target=target, options=_options(spec))
    told = built.metadata
    return Compiled(
        cubin=built.asm["cubin"],
        shared_bytes=told.shared,
        scratch_bytes=told.global_scratch_size + told.profile_scratch_size,
        programs=told.num_ctas,
    )


def _function(spec: KernelSpec, package: str) -> Any:
    """The Triton function. Raises ValueError if it takes other arguments than the spec gives."""
    file, _, name = spec.function.rpartition(".")
    function = getattr(import_module(f"{package}.{file}"), name)
    passed, constants = [name for name, _ in spec.arguments], _constants(function, spec)
    names = [leaf.name for leaf in leaves(function)]
    takes = [name for name in names if name not in constants]
    unknown = sorted(set(constants) - set(names))
    if passed != takes or unknown:
        raise ValueError(f"it takes {takes}, and is passed {passed}; unknown constants: {unknown}")
    return function


def _constants(function: Any, spec: KernelSpec) -> dict[str, Any]:
    """All of them: those of the spec, those that have a default, and DEPENDENT.

    A function that can wait for the launch before it takes the last.
    """
    given = {**defaults(function), **spec.constants}
    if spec.dependent or DEPENDENT in function.arg_names:
        given[DEPENDENT] = spec.dependent
    return {name: value for name, value in given.items() if name not in dict(spec.arguments)}


def _source(function: Any, spec: KernelSpec) -> Any:
    types, constants = dict(spec.arguments), _constants(function, spec)
    paths = {leaf.name: leaf.path for leaf in leaves(function)}
    aligned = [n for n, kind in types.items() if kind[0] == "*" and n not in spec.unaligned]
    return ASTSource(
        function,
        bound(function, dict.fromkeys(constants, "constexpr") | types),
        {paths[name]: value for name, value in constants.items()},
        {paths[name]: [["tt.divisibility", ALIGNMENT]] for name in aligned},
    )


def _options(spec: KernelSpec) -> dict[str, Any]:
    # Whether products and sums are fused is always said: Triton's default changes with the version.
    return {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        "enable_fp_fusion": spec.fused,
    }
