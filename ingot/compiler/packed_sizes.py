"""Size of the file of weights, computed from a model's blueprint. No torch.

The front end has no say in it but for linears that read the same rows, which it stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingot.artifact.formats import DType, Format, Storage
from ingot.artifact.plan import Buffer, aligned
from ingot.artifact.tensors import ALIGNMENT, PAGE, header, in_file
from ingot.compiler.quantization.choose import Matrix, agreed
from ingot.models.blueprint import Blueprint, Shape
from ingot.passes.stacked_name import stacked_name
from ingot.targets.target import TargetKind


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """A weight of the plan: its name and shape, and the parameters that it is stacked from.

    `multiplied`, `plain`, `outer`, `exact` and `picks` are as in `Blueprint`. A stack has three
    dimensions.
    """

    name: str
    shape: Shape
    sources: tuple[str, ...]
    multiplied: bool = False
    plain: bool = False
    outer: bool = False
    exact: bool = False
    picks: int = 0

    @property
    def is_stack(self) -> bool:
        return len(self.shape) == 3

    @property
    def is_picked(self) -> bool:
        """True if a token needs only some of its experts."""
        return 0 < self.picks < self.shape[0]

    @property
    def is_matrix(self) -> bool:
        """True if it is stored in the dtype of the model, or in integers."""
        return not self.exact and (self.multiplied or (self.outer and len(self.shape) == 2))


def weights_of(
    blueprint: Blueprint, kept: Mapping[str, Storage] | None = None
) -> list[PlannedWeight]:
    """The weights that the plan of a model will have, in its order. `kept` says how parameters are
    stored that their checkpoint has in integers: what differs is not made one."""
    constants = [
        PlannedWeight(_join(path, name), shape, ())
        for path, part in blueprint.modules()
        for name, shape in part.constants.items()
    ]
    return [*_weights(blueprint, "", kept or {}), *constants]


def _weights(part: Blueprint, path: str, kept: Mapping[str, Storage]) -> Iterator[PlannedWeight]:
    yield from _stacked([(path, part)])
    groups = {name: group for group in part.stacked for name in group}
    for name, child in part.parts.items():
        group = groups.get(name)
        if group is None:
            yield from _weights(child, _join(path, name), kept)
        elif name == group[0]:
            alike: dict[Storage | None, list[tuple[str, Blueprint]]] = {}
            for n in group:
                stored = kept.get(_join(path, f"{n}.weight"))
                alike.setdefault(stored, []).append((_join(path, n), part.parts[n]))
            for modules in alike.values():
                yield from _stacked(modules)


def _stacked(modules: Sequence[tuple[str, Blueprint]]) -> Iterator[PlannedWeight]:
    """The parameters of modules that are made one; of a single one as they are."""
    _, first = modules[0]
    most = max(map(len, first.shapes.values()), default=0)
    for name, (rows, *rest) in first.shapes.items():
        names = [_join(path, name) for path, _ in modules]
        rows = sum(part.shapes[name][0] for _, part in modules)
        yield PlannedWeight(
            name=stacked_name(names) if len(names) > 1 else names[0],
            shape=(rows, *rest),
            sources=tuple(names),
            multiplied=first.multiplied and bool(rest) and 1 + len(rest) == most,
            plain=first.plain,
            outer=first.outer,
            exact=first.exact,
            picks=first.picks,
        )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def matrices_of(weights: Iterable[PlannedWeight]) -> dict[str, Matrix]:
    """The parameters among them that may be stored in integers, by their names."""
    return {
        name: Matrix(
            columns=weight.shape[-1],
            reads=weight.name,
            is_head=weight.outer and weight.multiplied,
            is_outer=weight.outer,
            is_stack=weight.is_stack,
        )
        for weight in weights
        if weight.is_matrix and not weight.plain
        for name in weight.sources
    }


def formats_of(
    weights: Iterable[PlannedWeight], storage: Mapping[str, Storage], dtype: DType
) -> dict[str, Format]:
    """The format of each weight, given how parameters are stored that become integers.

    Raises UsageError, as a compile does, for parameters that become one weight and are stored in
    different ways.
    """
    formats = {}
    for weight in weights:
        stored = agreed(weight.name, weight.sources, storage)
        plain = Format(dtype if weight.is_matrix else "float32")
        formats[weight.name] = stored.of(weight.shape[-1]) if stored else plain
    return formats


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Bytes of a file of weights, and of the experts in it of which a step reads what it picks."""

    whole: int
    picked: int


def file_sizes(
    kind: TargetKind, weights: Iterable[PlannedWeight], formats: Mapping[str, Format]
) -> FileSizes:
    """The sizes of the file of weights that a kind of target gets."""
    packed, stacks, picked = {}, list[str](), list[str]()
    for weight in weights:
        stacks += [weight.name] if weight.is_stack else []
        picked += [weight.name] if weight.is_picked else []
        buffer = Buffer(
            name=weight.name, format=formats[weight.name], shape=weight.shape, kind="weight"
        )
        packed[weight.name] = kind.packed(buffer, multiplied=weight.multiplied)
    tensors = in_file(packed, stacks)
    begin = len(header(tensors, PAGE if stacks else ALIGNMENT))
    return FileSizes(
        begin + sum(aligned(nbytes) for _, nbytes in tensors.values()),
        sum(packed[name][1] for name in picked),
    )
