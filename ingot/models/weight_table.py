"""From a module's parameters to the tensors of a checkpoint, by a family's table.

Every tensor of the checkpoint is the source of a parameter, a copy of a tied tensor, or listed as
known to be unused; everything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.checkpoint_files import DTYPE_NAMES, listed
from ingot.models.config import ModelConfig
from ingot.models.family import Family, Rows
from ingot.models.safetensors_file import TensorInfo

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from: `shape[0]` rows of a tensor, from `first_row` on."""

    info: TensorInfo
    first_row: int
    shape: Shape


def resolve_sources(
    infos: Mapping[str, TensorInfo], config: ModelConfig, module: nn.Module
) -> tuple[dict[str, Source], dict[str, str]]:
    """The source of every parameter, and the stored copies of tied tensors (original -> copy).

    Raises:
        CheckpointError: tensors that are missing, left over, misshapen or of a wrong dtype.
    """
    family = registry.families()[config.family]
    shapes: dict[str, Shape] = {n: tuple(p.shape) for n, p in module.named_parameters()}
    wanted = {name: _lookup(family.weights, name) for name in shapes}
    copies = _find_copies(family, config, infos)
    _check_names(family, infos, wanted, copies)
    _check_dtypes([infos[rows.source] for rows in wanted.values()])
    first_rows = _stack(wanted, shapes)
    sources = {
        name: Source(infos[rows.source], first_rows[name], shapes[name])
        for name, rows in wanted.items()
    }
    _check_shapes(wanted, sources)
    for original, copy in copies.items():
        if (infos[copy].shape, infos[copy].dtype) != (
            infos[original].shape,
            infos[original].dtype,
        ):
            raise CheckpointError(
                f"{copy} has another shape or dtype than {original}, but config.json ties them",
                hint="set tie_word_embeddings to false in config.json if they are meant to differ",
            )
    return sources, copies


def expand(template: str) -> re.Pattern[str]:
    """A pattern for a name with `{i}` standing for one number, the same everywhere."""
    parts = [re.escape(part) for part in template.split("{i}")]
    if len(parts) == 1:
        return re.compile(parts[0])
    first, *others = parts
    return re.compile(first + r"(?P<i>\d+)" + "(?P=i)".join(others))


def _lookup(table: Mapping[str, str | Rows], name: str) -> Rows:
    """The table's entry for a parameter; its own name where the table is silent."""
    for template, entry in table.items():
        if match := expand(template).fullmatch(name):
            rows = entry if isinstance(entry, Rows) else Rows(entry, 0)
            index = match.groupdict().get("i", "")
            return Rows(rows.source.replace("{i}", index), rows.part)
    return Rows(name, 0)


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
        name
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


def _check_shapes(wanted: Mapping[str, Rows], sources: Mapping[str, Source]) -> None:
    expected: dict[str, Shape] = {}
    for name, rows in wanted.items():
        source = sources[name]
        rows_before = expected.get(rows.source, (0,))[0]
        expected[rows.source] = (rows_before + source.shape[0], *source.shape[1:])
    wrong = [
        f"{source.info.name} {list(source.info.shape)} instead of {list(shape)}"
        for source in {s.info.name: s for s in sources.values()}.values()
        if (shape := expected[source.info.name]) != source.info.shape
    ]
    if wrong:
        raise CheckpointError(
            f"the checkpoint has tensors of another shape: {listed(wrong, 4)}",
            hint="check that config.json and the weights belong together",
        )
