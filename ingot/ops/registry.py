"""The registry of ops: a reference, a fake and a tolerance for every primitive.

Every op is `torch.ops.ingot.<name>`, runs its reference on any device and traces through its fake
with meta tensors and symbolic shapes. `OPS[name]` gives the same functions to tests, the
interpreter and targets without a call through the dispatcher. What an op is stands in its traits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.traits import TRAITS, Traits


class Args(SimpleNamespace):
    """The arguments of one call by name, as the op's reference names them, defaults included."""


Record = Callable[[Args], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class KernelTolerance:
    """Bounds of a kernel against the reference: |got - ref| <= atol + rtol * |ref|."""

    rtol: float
    atol: float


# Attributes by which an op rounds on the way, and not its result alone.
ROUNDS = frozenset({"rounds_queries"})

DEFAULT_TOLERANCE: Mapping[torch.dtype, KernelTolerance] = {
    torch.float32: KernelTolerance(1e-5, 1e-5),  # reassociated sums of a few thousand terms
    torch.bfloat16: KernelTolerance(
        8e-3, 1e-4
    ),  # one rounding may fall to the other neighbour: 2^-7
    torch.float16: KernelTolerance(1e-3, 1e-4),  # the same: 2^-10
    torch.int32: KernelTolerance(0.0, 0.0),
    torch.int8: KernelTolerance(0.0, 1.0),  # a value may round to its neighbour
    torch.int16: KernelTolerance(1e-5, 1.0),  # and be off by as much as the number itself
}


@dataclass(frozen=True, kw_only=True)
class Op:
    """One primitive that PyTorch can run. Its signature stands once, in the reference.

    reference       plain PyTorch; its signature is the schema, its body the meaning
    fake            empty tensors with the shape and dtype of a call's results
    tolerance       of kernels against the reference, by dtype of the result
    record          shape of what it keeps of a sequence, by a call; None: it keeps nothing
    """

    name: str
    reference: Callable[..., Any]
    fake: Callable[[Args], Any]
    tolerance: Mapping[torch.dtype, KernelTolerance]
    record: Record | None = None

    @property
    def traits(self) -> Traits:
        return TRAITS[self.name]

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The callable that graphs hold as a node's target."""
        overload: torch._ops.OpOverload = getattr(torch.ops.ingot, self.name).default
        return overload

    @cached_property
    def signature(self) -> inspect.Signature:
        """Parameters of the op."""
        return inspect.signature(self.reference)

    def bind(self, *args: Any, **kwargs: Any) -> Args:
        """The arguments of a call by name; a TypeError where it is no valid call."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return Args(**bound.arguments)


OPS: dict[str, Op] = {}

_LIBRARY: Any = torch.library.Library("ingot", "DEF")


def register(
    name: str,
    reference: Callable[..., Any],
    fake: Callable[[Args], Any],
    *,
    tolerance: Mapping[torch.dtype, KernelTolerance] = DEFAULT_TOLERANCE,
    record: Record | None = None,
) -> Op:
    """Declares a primitive to PyTorch and enters it into `OPS`; see `Op`.

    `Library.define` rather than `custom_op`: a call costs 5 us instead of 20, and no autograd
    key is registered for graphs that are never differentiated.
    """
    op = Op(name=name, reference=reference, fake=fake, tolerance=tolerance, record=record)
    schema = torch.library.infer_schema(reference, mutates_args=op.traits.mutates)
    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"ingot::{name}", lambda *args, **kwargs: fake(op.bind(*args, **kwargs)), lib=_LIBRARY
    )
    OPS[name] = op
    return op


def rounded(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Adds a last argument to a reference: `out_dtype`, to which it rounds its result."""
    plain = inspect.signature(reference, eval_str=True)
    out_dtype = inspect.Parameter(
        "out_dtype",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=torch.float32,
        annotation=torch.dtype,
    )
    signature = plain.replace(parameters=[*plain.parameters.values(), out_dtype])

    @wraps(reference)
    def narrowed(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        dtype = given.arguments.pop("out_dtype", out_dtype.default)
        return reference(*given.args, **given.kwargs).to(dtype)

    narrowed.__signature__ = signature  # type: ignore[attr-defined]
    return narrowed


def like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An empty tensor with the shape of x."""
    return x.new_empty(x.shape, dtype=dtype)
