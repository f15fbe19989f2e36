"""Finds the tensor of a checkpoint that each parameter of a module is read from.

A family's tables say which. Every tensor of the checkpoint must be the source of a parameter, a
copy of a tied tensor, or listed as unused; any other tensor is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from ingot.errors import CheckpointError, listed
from ingot.models import registry
from ingot.models.checkpoint_files import DTYPE_NAMES
from ingot.models.config import ModelConfig
from ingot.models.family import Family, Rows
from ingot.models.safetensors_file import TensorInfo

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from: `shape[0]` rows of a tensor, from `first_row` on.

    The rows of a tensor that is stored transposed are its columns.
    """

    info: TensorInfo
    first_row: int
    shape: Shape
    transposed: bool


def resolve_sources(
    infos: Mapping[str, TensorInfo], config: ModelConfig, module: nn.Module
) -> tuple[dict[str, Source], dict[str, str]]:
    """The source of every parameter, and the stored copies of tied tensors (original -> copy).

    Raises:
        CheckpointError: tensors that are missing, left over, misshapen or of a wrong dtype.
    """
    family = registry.families()[config.family]
    infos = _respelled(family, infos)
    shapes: dict[str, Shape] = {n: tuple(p.shape) for n, p in module.named_parameters()}
    wanted = {name: _lookup(family.weights, name, len(shape)) for name, shape in shapes.items()}
    copies = _find_copies(family, config, infos)
    _check_names(family, infos, wanted, copies)
    _check_dtypes([infos[rows.source] for rows in wanted.values()])
    first_rows = _stack(wanted, shapes)
    sources = {
        name: Source(infos[rows.source], first_rows[name], shapes[name], rows.transposed)
        for name, rows in wanted.items()
    }
    _check_shapes(sources.values())
    for original, copy in copies.items():
        _check_copy(infos[original], infos[copy])
    return sources, {infos[original].name: infos[copy].name for original, copy in copies.items()}


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def expand(template: str) -> re.Pattern[str]:
    """A pattern for the names that a template stands for; see `Family`."""
    literal, *rest = _PLACEHOLDER.split(template)
    parts, seen = [re.escape(literal)], set()
    for word, literal in zip(rest[::2], rest[1::2], strict=True):
        text = r"\d+" if word == "i" else ".+"
        parts += [f"(?P={word})" if word in seen else f"(?P<{word}>{text})", re.escape(literal)]
        seen.add(word)
    return re.compile("".join(parts))


def _fill(template: str, match: re.Match[str]) -> str:
    """A template with the texts that another one has matched."""
    return _PLACEHOLDER.sub(lambda word: match[word[1]], template)


def _respelled(family: Family, infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors by the names that the family's tables have."""
    found: dict[str, TensorInfo] = {}
    for info in infos.values():
        name = info.name
        for template, spelling in family.spellings.items():
            if match := expand(template).fullmatch(name):
                name = _fill(spelling, match)
        if name in found:
            raise CheckpointError(
                f"the checkpoint has {found[name].name} and {info.name}, which are the same tensor",
                hint="remove one of the two, or fetch the checkpoint again",
            )
        found[name] = info
    return found


def _lookup(table: Mapping[str, str | Rows], name: str, ndim: int) -> Rows:
    """The table's entry for a parameter; its own name where the table is silent."""
    for template, entry in table.items():
        if match := expand(template).fullmatch(name):
            rows = entry if isinstance(entry, Rows) else Rows(entry)
            turned = rows.transposed and ndim > 1
            return replace(rows, source=_fill(rows.source, match), transposed=turned)
    return Rows(name)


def _find_copies(
    family: Family, config: ModelConfig, infos: Mapping[str, TensorInfo]
) -> dict[str, str]:
    if not config.tie_embeddings:
        return {}
    return {
        original: copy
        for copy, original in family.tied.items()
        if copy in infos and original in infos
    }


def _check_names(
    family: Family,
    infos: Mapping[str, TensorInfo],
    wanted: Mapping[str, Rows],
    copies: Mapping[str, str],
) -> None:
    sources = {rows.source for rows in wanted.values()}
    missing = sorted(sources - infos.keys())
    unused = [expand(template) for template in family.unused]
    extra = sorted(
        infos[name].name
        for name in infos.keys() - sources - set(copies.values())
        if not any(pattern.fullmatch(name) for pattern in unused)
    )
    if not missing and not extra:
        return
    parts = [f"lacks {listed(missing)}"] if missing else []
    parts += [f"has tensors that the model does not use: {listed(extra)}"] if extra else []
    raise CheckpointError(
        f"the checkpoint {'; '.join(parts)}",
        hint=f"config.json describes a {family.name} model that needs exactly its own tensors: "
        "check that config.json and the weights belong together",
    )


def _check_dtypes(infos: Iterable[TensorInfo]) -> None:
    for info in infos:
        if info.dtype not in DTYPE_NAMES:
            raise CheckpointError(
                f"the tensor {info.name} has dtype {info.dtype}",
                hint=f"supported: {', '.join(DTYPE_NAMES)}; convert the checkpoint, or use the "
                "original one if this one is quantized",
            )


def _stack(wanted: Mapping[str, Rows], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The first row of every parameter in its source."""
    first: dict[str, int] = {}
    ends: dict[str, int] = {}
    for name in sorted(wanted, key=lambda name: wanted[name].part):
        source = wanted[name].source
        first[name] = ends.get(source, 0)
        ends[source] = first[name] + shapes[name][0]
    return first


def _check_shapes(sources: Iterable[Source]) -> None:
    parts: dict[str, list[Source]] = {}
    for source in sources:
        parts.setdefault(source.info.name, []).append(source)
    wrong = []
    for name, (first, *others) in parts.items():
        rows = first.shape[0] + sum(other.shape[0] for other in others)
        expected = (rows, *first.shape[1:])
        expected = expected[::-1] if first.transposed else expected
        if expected != first.info.shape:
            wrong.append(f"{name} {list(first.info.shape)} instead of {list(expected)}")
    if wrong:
        raise CheckpointError(
            f"the checkpoint has tensors of another shape: {listed(wrong, 4)}",
            hint="check that config.json and the weights belong together",
        )


def _check_copy(original: TensorInfo, copy: TensorInfo) -> None:
    if (copy.shape, copy.dtype) != (original.shape, original.dtype):
        raise CheckpointError(
            f"{copy.name} has another shape or dtype than {original.name}, but config.json ties "
            "them",
            hint="set tie_word_embeddings to false in config.json if they are meant to differ",
        )
