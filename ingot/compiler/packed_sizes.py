"""How large the file of weights will be, told from a model's blueprint. No torch.

The front end has no say in it but for linears that read the same rows, which it stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ingot.artifact.formats import Format, Storage
from ingot.artifact.plan import Buffer, aligned
from ingot.artifact.target import Target
from ingot.artifact.tensors import ALIGNMENT, PAGE, header, in_file
from ingot.compiler.quantization.storage import refused_groups
from ingot.models.blueprint import Blueprint, Shape
from ingot.passes.stacked_name import stacked_name
from ingot.targets.target import TargetKind, all_fit


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
        """Whether a token needs only some of its experts."""
        return 0 < self.picks < self.shape[0]

    @property
    def is_matrix(self) -> bool:
        """Whether it is stored in the dtype of the model, or in integers."""
        return not self.exact and (self.multiplied or (self.outer and len(self.shape) == 2))


def weights_of(blueprint: Blueprint) -> list[PlannedWeight]:
    """The weights that the plan of a model will have, in its order."""
    constants = [
        PlannedWeight(_join(path, name), shape, ())
        for path, part in blueprint.modules()
        for name, shape in part.constants.items()
    ]
    return [*_weights(blueprint, ""), *constants]


def _weights(part: Blueprint, path: str) -> Iterator[PlannedWeight]:
    yield from _stacked([(path, part)])
    groups = {name: group for group in part.stacked for name in group}
    for name, child in part.parts.items():
        group = groups.get(name)
        if group is None:
            yield from _weights(child, _join(path, name))
        elif name == group[0]:
            yield from _stacked([(_join(path, n), part.parts[n]) for n in group])


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


def choose_formats(
    weights: Iterable[PlannedWeight],
    dtype: str,
    base: Storage | None,
    int8: Storage,
    targets: Sequence[Target],
) -> dict[str, Format]:
    """How each weight is stored where no `--keep` says otherwise.

    Raises UsageError, as a compile does, where the rows of matrices do not suit `base` or `int8`.
    """
    matrices = [weight for weight in weights if weight.is_matrix]
    if base is not None:
        refuse_misfits([w for w in matrices if not w.plain], base, int8, targets)
    formats = {weight.name: Format("float32") for weight in weights}
    for weight in matrices:
        storage = None if weight.plain else base and (int8 if weight.outer else base)
        plain = Format(dtype)  # type: ignore[arg-type]
        formats[weight.name] = storage.of(weight.shape[-1]) if storage else plain
    return formats


def kept_formats(
    weights: Iterable[PlannedWeight], kept: Mapping[str, Storage]
) -> dict[str, Format]:
    """How the weights are stored whose parts a checkpoint stores in integers, all of them alike."""
    found = {}
    for weight in weights:
        storage = {kept.get(source) for source in weight.sources}
        if len(storage) == 1 and (stored := storage.pop()):
            found[weight.name] = stored.of(weight.shape[-1])
    return found


def refuse_misfits(
    matrices: Sequence[PlannedWeight], base: Storage, int8: Storage, targets: Sequence[Target]
) -> None:
    """Raises UsageError that names all matrices whose rows do not suit their storage."""
    storage = {name: int8 if w.outer else base for w in matrices for name in w.sources}
    columns = {name: w.shape[-1] for w in matrices for name in w.sources}
    merged = {name: w.sources for w in matrices for name in w.sources}

    def alike(wrong: Sequence[str]) -> dict[str, None]:
        return dict.fromkeys((*wrong, *(other for name in wrong for other in merged[name])))

    refused = refused_groups(storage, columns, base, partial(all_fit, targets), alike)
    if refused:
        raise refused


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
