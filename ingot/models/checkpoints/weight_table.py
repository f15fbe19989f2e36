"""Finds the tensor of a checkpoint that each parameter of a module is read from.

A family's tables say which. Every tensor of the checkpoint must be the source of a parameter, a
copy of a tied tensor, or listed as unused; any other tensor is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import product

from ingot.errors import CheckpointError, OnFault, listed, raise_fault
from ingot.models.blueprint import Shape
from ingot.models.checkpoints.checkpoint_files import DTYPE_NAMES
from ingot.models.checkpoints.formats.cache_scales import cache_scales
from ingot.models.checkpoints.formats.quantized import EncodedTensor, QuantizedTensor
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.checkpoints.sources import (
    AnySource,
    SourcePiece,
    Totaled,
    laid_out,
    pieces_of,
    shaped_as,
    sources_of,
)
from ingot.models.family import Family, Weights
from ingot.models.foreign.config import AnyConfig
from ingot.models.templates import BEYOND, expand, fill
from ingot.models.weight_rules import Decays, Entry, Join, Products, Rows, Rule, Stack, Sums, Totals

BIAS = ".bias"
BASE = "model."  # in front of all parameters but those of the head
# What stands in front of all names of a model that was saved as a part of another.
AROUND = ("", "language_model.", "transformer.", f"{BASE}language_model.", BASE)
Pieces = Mapping[str, Sequence[SourcePiece]]  # of every parameter


def resolve_sources(
    infos: Mapping[str, TensorInfo],
    config: AnyConfig,
    shapes: Mapping[str, Shape],
    on_fault: OnFault = raise_fault,
    *,
    whole: bool = True,
) -> tuple[dict[str, AnySource], dict[str, str]]:
    """The source of every parameter, and the stored copies of tied tensors (original -> copy).

    Args:
        infos: the tensors of the checkpoint; shapes: the parameters of the module.
        on_fault: gets the CheckpointError for tensors that are missing or left over, then those for
            tensors of a wrong dtype, misshapen ones, and copies that differ. If it returns, sources
            that are missing have no entry.
        whole: all files of the checkpoint could be read, so what is not in infos is missing.
    """
    family = config.family
    infos = respelled(family, infos, shapes, on_fault)
    table = {**family.weights_of(config), **sources_of_modules(config)}
    pieces = {name: _lookup(table, name, shape, infos) for name, shape in shapes.items()}
    layout = laid_out(piece for own in pieces.values() for piece in own)
    copies = _find_copies(family, config, infos)
    needed = set(layout.shapes)
    missing = sorted(needed - infos.keys()) if whole else []
    idle = idle_biases(infos, needed) | set(cache_scales(infos))
    used = needed | set(copies.values()) | idle
    extra = _left_over(family, config, infos, used)
    hint = _hint_on_experts([*missing, *extra], pieces, shapes) or _hint_on_family(family)
    _check_names(missing, extra, hint, on_fault)
    read = _shaped(infos, layout.shapes, pieces)
    sources = sources_of(pieces, layout, shapes, read)
    _check_dtypes(read.values(), on_fault)
    _check_alike(sources, on_fault)
    _check_shapes(read, layout.shapes, on_fault)
    _check_copies({infos[original]: infos[copy] for original, copy in copies.items()}, on_fault)
    return sources, {infos[original].name: infos[copy].name for original, copy in copies.items()}


def sources_of_modules(config: AnyConfig) -> dict[str, Entry]:
    """Where the layers of a head are that lie in files of their own."""
    head = config.head
    return {
        f"head.{index}.dense.{{kind}}": f"{layer.source}.{{kind}}"
        for index, layer in enumerate(head.layers if head else ())
        if layer.source
    }


def _shaped(
    infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], pieces: Pieces
) -> dict[str, TensorInfo]:
    """The tensors that are read, in the shapes that pieces take them in."""
    flat = {piece.tensor for own in pieces.values() for piece in own if piece.rule.flat}
    return {
        name: shaped_as(infos[name], shape, flat=name in flat)
        for name, shape in shapes.items()
        if name in infos
    }


def idle_biases(infos: Mapping[str, TensorInfo], needed: Set[str]) -> set[str]:
    """Biases of quantized matrices that the model has no parameter for, by the names in `infos`.

    Some programs write one for every matrix, of zeros.
    """
    return {
        name
        for name in infos.keys() - needed
        if name.endswith(BIAS)
        and isinstance(infos.get(name.removesuffix(BIAS) + ".weight"), QuantizedTensor)
    }


def quantized_sources(sources: Mapping[str, AnySource]) -> dict[str, QuantizedTensor]:
    """The parameters that a checkpoint stores quantized, and the matrix that each is in; of experts
    the first of theirs, which all are stored like."""
    return {
        name: source.info
        for name, source in sources.items()
        if isinstance(source.info, QuantizedTensor)
    }


def _lookup(
    table: Weights, name: str, shape: Shape, infos: Mapping[str, TensorInfo]
) -> tuple[SourcePiece, ...]:
    """The pieces of a parameter by the table; the tensor of its name where the table is silent."""
    for template, entry in table.items():
        if match := expand(template).fullmatch(name):
            rules = entry if isinstance(entry, tuple) else (entry,)
            ways = [pieces_of(_filled(rule, match), shape) for rule in rules]
            there = (way for way in ways if any(piece.tensor in infos for piece in way))
            return tuple(_as_stored(piece, infos) for piece in next(there, ways[0]))
    return pieces_of(Rows(name), shape)


def _as_stored(piece: SourcePiece, infos: Mapping[str, TensorInfo]) -> SourcePiece:
    """A piece whose tensor may be quantized: formats say where outputs lie, and those have them
    first."""
    if not isinstance(infos.get(piece.tensor), EncodedTensor):
        return piece
    return replace(piece, rule=replace(piece.rule, transposed=False))


def _filled(entry: Entry, match: re.Match[str]) -> Rule:
    """A rule for the parameter that its template has matched."""

    def filled(rule: Rows) -> Rows:
        return replace(rule, source=fill(rule.source, match))

    if isinstance(entry, Stack):
        return Stack(tuple(map(filled, entry.parts)))
    if isinstance(entry, Join):
        return replace(entry, parts=tuple(part and filled(part) for part in entry.parts))
    if isinstance(entry, Sums):
        return replace(entry, outer=filled(entry.outer), inner=filled(entry.inner))
    if isinstance(entry, Products):
        table, matrix, bias, *norm = map(filled, entry.parts)
        return replace(entry, table=table, matrix=matrix, bias=bias, norm=tuple(norm))
    if isinstance(entry, Decays):
        return Decays(filled(entry.rows))
    if isinstance(entry, Totals):
        return Totals(tuple(map(filled, entry.parts)))
    return filled(Rows(entry) if isinstance(entry, str) else entry)


def _find_copies(
    family: Family, config: AnyConfig, infos: Mapping[str, TensorInfo]
) -> dict[str, str]:
    if not config.tie_embeddings:
        return {}
    return {
        original: copy
        for copy, original in family.tied.items()
        if copy in infos and original in infos
    }


def _left_over(
    family: Family, config: AnyConfig, infos: Mapping[str, TensorInfo], used: set[str]
) -> list[str]:
    unused = [expand(template) for template in family.unused]
    return sorted(
        infos[name].name
        for name in infos.keys() - used
        if not any(_is_unused(pattern.fullmatch(name), config) for pattern in unused)
    )


def _is_unused(match: re.Match[str] | None, config: AnyConfig) -> bool:
    if match is None:
        return False
    layer = match.groupdict().get(BEYOND)
    return layer is None or 0 <= int(layer) - config.num_layers < config.mtp_layers


def _check_names(missing: list[str], extra: list[str], hint: str, on_fault: OnFault) -> None:
    if not missing and not extra:
        return
    parts = [f"lacks {listed(missing)}"] if missing else []
    parts += [f"has tensors that the model does not use: {listed(extra)}"] if extra else []
    on_fault(CheckpointError(f"the checkpoint {'; '.join(parts)}", hint=hint))


def _hint_on_family(family: Family) -> str:
    return (
        f"config.json describes a {family.name} model that needs exactly its own tensors: "
        "check that config.json and the weights belong together"
    )


_LAST_NUMBER = re.compile(r"\.\d+\.(?!.*\.\d+\.)")


def _hint_on_experts(names: list[str], pieces: Pieces, shapes: Mapping[str, Shape]) -> str:
    """Hint for the case that only experts are missing or too many; empty in others."""
    experts = {
        _LAST_NUMBER.sub(".", piece.tensor): shapes[name][0]
        for name, own in pieces.items()
        if len(own) > 1
        for piece in own
    }
    counts = {experts.get(_LAST_NUMBER.sub(".", name), 0) for name in names}
    if len(counts) != 1 or 0 in counts:
        return ""
    return (
        f"by config.json such a layer has {counts.pop()} experts, numbered from 0: correct their "
        "number there, or fetch the checkpoint again"
    )


def _check_dtypes(infos: Iterable[TensorInfo], on_fault: OnFault) -> None:
    wrong: dict[str, list[str]] = {}
    for info in infos:
        if info.dtype not in DTYPE_NAMES:
            wrong.setdefault(info.dtype, []).append(info.name)
    for dtype, names in wrong.items():
        names = list(dict.fromkeys(names))
        have = f"the tensor {names[0]} has" if len(names) == 1 else f"{listed(names, 4)} have"
        on_fault(
            CheckpointError(
                f"{have} dtype {dtype}",
                hint=f"supported: {', '.join(DTYPE_NAMES)}; convert the checkpoint, or use the "
                "original one if this one is quantized",
            )
        )


def _check_alike(sources: Mapping[str, AnySource], on_fault: OnFault) -> None:
    """Checks that the tensors that make up one parameter are stored alike."""
    for source in sources.values():
        if isinstance(source, Totaled):
            continue  # they are added in float32
        first = source.infos[0]
        other = next((info for info in source.infos if _form(info) != _form(first)), None)
        if other is not None:
            on_fault(
                CheckpointError(
                    f"{first.name} is stored as {_form(first)}, and {other.name} as {_form(other)}",
                    hint="tensors of one parameter must be stored alike: convert the checkpoint",
                )
            )


def _form(info: TensorInfo) -> str:
    return info.encoding.label if isinstance(info, QuantizedTensor) else info.dtype


def _check_shapes(
    infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], on_fault: OnFault
) -> None:
    wrong = [
        f"{info.name} {list(info.shape)} instead of {list(shapes[name])}"
        for name, info in infos.items()
        if info.shape != shapes[name]
    ]
    if wrong:
        on_fault(
            CheckpointError(
                f"the checkpoint has tensors of another shape: {listed(wrong, 4)}",
                hint="check that config.json and the weights belong together",
            )
        )


def _check_copies(copies: Mapping[TensorInfo, TensorInfo], on_fault: OnFault) -> None:
    for original, copy in copies.items():
        if (copy.shape, copy.dtype) != (original.shape, original.dtype):
            on_fault(
                CheckpointError(
                    f"{copy.name} has another shape or dtype than {original.name}, but config.json "
                    "ties them",
                    hint="set tie_word_embeddings to false in config.json if they are meant to "
                    "differ",
                )
            )


def respelled(
    family: Family, infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], on_fault: OnFault
) -> dict[str, TensorInfo]:
    """The tensors by the names that the family's tables have."""
    found: dict[str, TensorInfo] = {}
    as_whole = _as_whole_model(infos, shapes)
    for info in infos.values():
        name = as_whole(info.name)
        for template, spelling in family.spellings.items():
            if match := expand(template).fullmatch(name):
                name = fill(spelling, match)
        if family.respelled:
            name = family.respelled(name)
        if not name:
            continue
        if name in found:
            on_fault(
                CheckpointError(
                    f"the checkpoint has {found[name].name} and {info.name}, which are the same "
                    "tensor",
                    hint="remove one of the two, or fetch the checkpoint again",
                )
            )
        found[name] = info
    return found


def _as_whole_model(
    infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape]
) -> Callable[[str], str]:
    """Renaming of tensors that were saved without the model's head or as a part of something
    larger: all names lack a prefix, or have one too many."""
    base = {name for name in shapes if name.startswith(BASE)}
    if base & infos.keys():
        return str
    for prefix, instead in product(AROUND, ("", BASE)):
        moved = partial(_moved, prefix=prefix, instead=instead, shapes=shapes)
        if any(moved(name) in base for name in infos):
            return moved
    return str


def _moved(name: str, *, prefix: str, instead: str, shapes: Mapping[str, Shape]) -> str:
    """A name with another prefix; the head may have neither."""
    rest = name.removeprefix(prefix)
    return rest if rest in shapes or not name.startswith(prefix) else instead + rest
