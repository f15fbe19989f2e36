"""A call: the launch of a kernel before kernels are numbered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ingot.artifact.launches import Constant, Extent, Grid, KernelSpec, LaunchArgument
from ingot.targets.cuda.operands import Operands, Pointer, Size
from ingot.targets.work import Work

ALIGNMENT = 16  # bytes: what a thread loads at once
DEPENDENT = "DEPENDENT"  # says to a function that takes it whether its kernel is dependent
ONE = Extent()


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel for steps whose `size` is at most `most`; an empty size fits every step.

    Attributes:
        function: its file and name, such as "product.multiply".
        constants: the arguments that are known when it is built.
        fused: whether a product and a sum may become one operation, with one rounding.
    """

    function: str
    constants: Mapping[str, Constant]
    grid: Grid
    size: str = ""
    most: int = 0
    num_warps: int = 4
    num_stages: int = 3
    fused: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """A launch: what it passes, by the names of the kernel's arguments, and the kernels for it.

    `workspace_bytes`: how much of the workspace it uses, from its beginning on.
    """

    arguments: Mapping[str, Pointer | Size]
    choices: tuple[Choice, ...]
    workspace_bytes: int = 0

    @property
    def passed(self) -> tuple[LaunchArgument, ...]:
        return tuple(each.argument for each in self.arguments.values())

    def spec(self, choice: Choice) -> KernelSpec:
        """Spec that one of its kernels is built from."""
        pointers = {n: each for n, each in self.arguments.items() if isinstance(each, Pointer)}
        return KernelSpec(
            function=choice.function,
            arguments=tuple((name, each.type) for name, each in self.arguments.items()),
            constants=choice.constants,
            unaligned=tuple(n for n, p in pointers.items() if p.argument.offset % ALIGNMENT),
            num_warps=choice.num_warps,
            num_stages=choice.num_stages,
            fused=choice.fused,
        )


# The calls that carry out a kernel of the plan, in order. Raises CodegenError.
Emit = Callable[[Operands, Work], Sequence[Call]]
