"""Protocol of targets, which every kind of machine implements, and the table of kinds.

A target is a value, `ingot.artifact.target.Target`: a kind of machine, a level and features. Its
kind does the work: it says which formats it can compute with, rewrites and groups a plan for
itself, places temporaries, packs weights, and turns the plan into code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ingot.artifact.formats import DType, Format
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.target import Target
from ingot.errors import CodegenError, UsageError
from ingot.targets.levels import Level

if TYPE_CHECKING:
    from torch import Tensor

    from ingot.ops.scaled import Operand, Scaled

Read = Callable[[str], "Tensor"]
Packed = Callable[[str], "Tensor"]  # the bytes of a packed weight by its name in the plan, uint8
Weights = Callable[[Buffer], "Operand"]  # each weight of a plan


class ScaledWeights(Protocol):
    """Gives the model's parameters that are stored in integers."""

    def matrix(self, name: str) -> Scaled:
        """W [O, K]."""
        ...


class TargetKind(Protocol):
    """A kind of machine. One that is derived from this needs no tools unless it says so."""

    name: str
    levels: Mapping[str, Level]  # of its targets; the best come first
    kernels: str  # the file that its code becomes
    dtypes: tuple[str, ...]  # of activations that it computes with
    largest_head: int  # that its kernels of attention take
    largest_row: int  # that those of latent attention take; 0 for none
    largest_rank: int  # of such a row: its columns that are values
    has_experts: bool  # whether it has kernels for mixtures of experts
    maps_weights: bool  # whether they stay in their file, and experts need memory once picked
    rounds_rows: bool  # whether rows become integers before integers multiply them

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of its grouping rules, in order."""
        ...

    def native(self) -> Target:
        """The best target for this host. Raises UsageError where it has no machine of the kind."""
        raise UsageError(
            f"{self.name}:native is not known here", hint=f"Supported: {_spelled(self.name)}."
        )

    def tools(self) -> tuple[str | int, ...]:
        """Changes with what builds on this host, which is looked for and hardly started.

        Raises ToolchainError where there is nothing, and as `run_compiler` does where it does not
        say what it is.
        """
        return ()

    def fits(self, columns: int, form: Format) -> bool:
        """Returns whether its products take rows of so many columns in that format."""
        ...

    def packed(self, weight: Buffer, *, multiplied: bool) -> tuple[DType, int]:
        """The dtype that `pack` gives a weight, and its bytes before they are padded.

        `multiplied` says that a product reads it.
        """
        ...

    def rewrite(self, plan: Plan, fine: Collection[str] = ()) -> Plan:
        """The plan with what this kind rounds on the way: more primitives, no groups.

        `fine` names parameters whose products need finer rows than others.
        """
        ...

    def group(
        self, plan: Plan, disable: Collection[str] = ()
    ) -> tuple[Plan, tuple[GroupEntry, ...]]:
        """The rewritten plan in groups, and how many there are of each kind.

        `disable` names rules to leave out.
        """
        ...

    def place(self, plan: Plan) -> Plan:
        """The grouped plan with every temporary in the arena, and every stack in its tensor."""
        ...

    def sources(self, plan: Plan, target: Target) -> Mapping[str, str]:
        """The source files of a placed plan, by name. Raises CodegenError."""
        ...

    def pack(self, path: Path, plan: Plan, read: Read, integers: ScaledWeights) -> None:
        """Writes the weights of a plan into one safetensors file, from its first byte to its last:
        it is hashed while it grows."""
        ...

    def unpacked(self, plan: Plan, packed: Packed) -> Weights:
        """The weights of a plan as they were packed: what comparisons read."""
        ...

    def unpack_state(self, plan: Plan, state: Buffer, arrays: Sequence[Tensor]) -> Operand:
        """Unpacks a state to [pages, heads, page size, size], by copy, from the bytes of its
        numbers and of its scales as the kernels store them."""
        ...

    def try_tools(self, folder: Path, target: Target, anew: bool = False) -> Mapping[str, str]:
        """Builds as little as possible in an empty folder; what is kept counts if not `anew`.

        Returns what has built it, in words by name. Raises ToolchainError where `build` could not
        build anything for the target.
        """
        return {}

    def prepare(self, folder: Path, target: Target) -> None:
        """Compiles what every model of the target needs, in an empty folder, so that `build` finds
        it in the cache. Runs beside the first stages of a compile; `build` must not rely on it."""
        ...

    def build(self, folder: Path, out: Path, target: Target) -> None:
        """Compiles the sources in a folder into the file `out`. Raises ToolchainError."""
        ...


BUILT_IN = {"cpu": "ingot.targets.cpu.kind", "cuda": "ingot.targets.cuda.kind"}
KINDS: dict[str, str | TargetKind] = {**BUILT_IN}


def kind_of(target: Target) -> TargetKind:
    """The kind of a target. Raises CodegenError for one that is not registered."""
    if target.kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise CodegenError(f"no target is of kind {target.kind!r}", hint=f"Known: {known}.")
    return kind_named(target.kind)


def kind_named(name: str) -> TargetKind:
    """The kind of that name, one of KINDS."""
    found = KINDS[name]
    if isinstance(found, str):
        kind: TargetKind = import_module(found).KIND
        KINDS[name] = kind
        return kind
    return found


def target_named(name: str) -> Target:
    """The target of that name. Raises UsageError for an unknown name."""
    kind, _, rest = name.partition(":")
    level, *features = rest.split("+")
    found = kind_named(kind).levels.get(level) if kind in KINDS else None
    if found is None or not found.features.keys() >= set(features):
        known = "; ".join(_spelled(kind) for kind in KINDS)
        raise UsageError(
            f"unknown target {name!r}", hint=f"Supported: cpu:native, cuda:native, {known}."
        )
    return found.named(kind, level, features)


def _spelled(kind: str) -> str:
    """The names of all targets of a kind, for a message."""
    levels = kind_named(kind).levels
    takes = (f"{kind}:{x} takes +{', +'.join(y.features)}" for x, y in levels.items() if y.features)
    return "; ".join((", ".join(f"{kind}:{level}" for level in levels), *takes))


def level_of(target: Target) -> Level:
    """The row of a target's level. Raises CodegenError for a kind that is not registered."""
    return kind_of(target).levels[target.level]


def requires(target: Target) -> frozenset[str]:
    """The flags that a host must have for a target; see `host_flags`."""
    level = level_of(target)
    return level.flags | level.with_implied(target.features)


def all_fit(targets: Collection[Target], columns: int, form: Format) -> bool:
    """Returns whether products of all targets take rows of so many columns in that format."""
    return all(kind_of(target).fits(columns, form) for target in targets)


def all_compute(targets: Collection[Target], dtype: str) -> bool:
    """Returns whether all targets compute with activations of that dtype."""
    return all(dtype in kind_of(target).dtypes for target in targets)


def check_activations(targets: Collection[Target], dtype: str) -> None:
    """Raises UsageError for targets that do not compute with activations of that dtype."""
    wrong = [target for target in targets if not all_compute([target], dtype)]
    if not wrong:
        return
    common = [d for d in kind_of(wrong[0]).dtypes if all_compute(targets, d)]
    able = [
        f"{name}:{level}"
        for name in KINDS
        for level in kind_named(name).levels
        if all_compute([Target(name, level)], dtype)
    ]
    raise UsageError(
        f"{', '.join(target.name for target in wrong)} cannot compute in {dtype}",
        hint=f"All of the targets compute in {' and '.join(common) or 'no dtype'}. "
        f"In {dtype} compute {', '.join(able) or 'none'}.",
    )


def register(kind: TargetKind) -> None:
    """Adds a kind of machine, or replaces one."""
    KINDS[kind.name] = kind
