"""Finds the tensor of a checkpoint that each parameter of a module is read from.

A family's tables say which. Every tensor of the checkpoint must be the source of a parameter, a
copy of a tied tensor, or listed as unused; any other tensor is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ingot.errors import CheckpointError, OnFault, listed, raise_fault
from ingot.models import registry
from ingot.models.blueprint import Shape
from ingot.models.checkpoint_files import DTYPE_NAMES
from ingot.models.config import ModelConfig
from ingot.models.family import Family, Weights
from ingot.models.safetensors_file import TensorInfo
from ingot.models.weight_rules import HeadRows, Rows, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a parameter comes from: rows of a tensor, in runs of neighbours.

    Row i of the parameter is row `first_row + i // run * stride + i % run` of the tensor.

    Attributes:
        info: the tensor; whole: the shape that it must have.
        shape: of the parameter; what lies between its first and its last dimension are rows, too.
        transposed: the rows of the tensor are its columns.
        turned: the parameter has each run of rows as columns.
    """

    info: TensorInfo
    whole: Shape
    shape: Shape
    first_row: int
    run: int
    stride: int
    transposed: bool = False
    turned: bool = False


def resolve_sources(
    infos: Mapping[str, TensorInfo],
    config: ModelConfig,
    shapes: Mapping[str, Shape],
    on_fault: OnFault = raise_fault,
    *,
    whole: bool = True,
) -> tuple[dict[str, Source], dict[str, str]]:
    """The source of every parameter, and the stored copies of tied tensors (original -> copy).

    Args:
        infos: the tensors of the checkpoint; shapes: the parameters of the module.
        on_fault: gets the CheckpointError for tensors that are missing or left over, then those for
            tensors of a wrong dtype, misshapen ones, and copies that differ. If it returns, sources
            that are missing have no entry.
        whole: all files of the checkpoint could be read, so what is not in infos is missing.
    """
    family = registry.family_named(config.family)
    infos = _respelled(family, infos, on_fault)
    table = family.weights_of(config)
    wanted = {name: _lookup(table, name, len(shape)) for name, shape in shapes.items()}
    copies = _find_copies(family, config, infos)
    needed = {rows.source for rows in wanted.values()}
    missing = sorted(needed - infos.keys()) if whole else []
    extra = _left_over(family, infos, needed | set(copies.values()))
    _check_names(family, missing, extra, on_fault)
    sources = _sources(infos, wanted, shapes)
    _check_dtypes([source.info for source in sources.values()], on_fault)
    _check_shapes(sources.values(), on_fault)
    for original, copy in copies.items():
        _check_copy(infos[original], infos[copy], on_fault)
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


def _respelled(
    family: Family, infos: Mapping[str, TensorInfo], on_fault: OnFault
) -> dict[str, TensorInfo]:
    """The tensors by the names that the family's tables have."""
    found: dict[str, TensorInfo] = {}
    for info in infos.values():
        name = info.name
        for template, spelling in family.spellings.items():
            if match := expand(template).fullmatch(name):
                name = _fill(spelling, match)
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


def _lookup(table: Weights, name: str, ndim: int) -> Rule:
    """The table's entry for a parameter; its own name where the table is silent."""
    for template, entry in table.items():
        if match := expand(template).fullmatch(name):
            rule = Rows(entry) if isinstance(entry, str) else entry
            turned = rule.transposed and ndim > 1
            return replace(rule, source=_fill(rule.source, match), transposed=turned)
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


def _left_over(family: Family, infos: Mapping[str, TensorInfo], used: set[str]) -> list[str]:
    unused = [expand(template) for template in family.unused]
    return sorted(
        infos[name].name
        for name in infos.keys() - used
        if not any(pattern.fullmatch(name) for pattern in unused)
    )


def _check_names(family: Family, missing: list[str], extra: list[str], on_fault: OnFault) -> None:
    if not missing and not extra:
        return
    parts = [f"lacks {listed(missing)}"] if missing else []
    parts += [f"has tensors that the model does not use: {listed(extra)}"] if extra else []
    on_fault(
        CheckpointError(
            f"the checkpoint {'; '.join(parts)}",
            hint=f"config.json describes a {family.name} model that needs exactly its own tensors: "
            "check that config.json and the weights belong together",
        )
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


def _sources(
    infos: Mapping[str, TensorInfo], wanted: Mapping[str, Rule], shapes: Mapping[str, Shape]
) -> dict[str, Source]:
    """The source of every parameter whose tensor is there."""
    first_rows, heights = _stack(wanted, shapes)
    found = {}
    for name, rule in wanted.items():
        shape = shapes[name]
        if rule.source not in infos:
            continue
        if isinstance(rule, HeadRows):
            found[name] = _head_rows(infos[rule.source], rule, shape)
            continue
        whole = (heights[rule.source], *shape[1:])
        found[name] = Source(
            info=infos[rule.source],
            whole=whole[::-1] if rule.transposed else whole,
            shape=shape,
            first_row=first_rows[name],
            run=shape[0],
            stride=0,
            transposed=rule.transposed,
        )
    return found


def _head_rows(info: TensorInfo, rule: HeadRows, shape: Shape) -> Source:
    columns = (shape[-2] if rule.transposed else shape[-1],) if len(shape) > 1 else ()
    size, stride = rule.sizes[rule.part], sum(rule.sizes)
    heads = math.prod(shape) // (size * math.prod(columns))
    return Source(
        info=info,
        whole=(heads * stride, *columns),
        shape=shape,
        first_row=sum(rule.sizes[: rule.part]),
        run=size,
        stride=stride,
        turned=rule.transposed,
    )


def _stack(
    wanted: Mapping[str, Rule], shapes: Mapping[str, Shape]
) -> tuple[dict[str, int], dict[str, int]]:
    """The first row of every parameter in its source, and the rows of each source."""
    first: dict[str, int] = {}
    ends: dict[str, int] = {}
    for name in sorted(wanted, key=lambda name: wanted[name].part):
        source = wanted[name].source
        first[name] = ends.get(source, 0)
        ends[source] = first[name] + shapes[name][0]
    return first, ends


def _check_shapes(sources: Iterable[Source], on_fault: OnFault) -> None:
    wrong = {
        source.info.name: f"{list(source.info.shape)} instead of {list(source.whole)}"
        for source in sources
        if source.whole != source.info.shape
    }
    if wrong:
        each = [f"{name} {shapes}" for name, shapes in wrong.items()]
        on_fault(
            CheckpointError(
                f"the checkpoint has tensors of another shape: {listed(each, 4)}",
                hint="check that config.json and the weights belong together",
            )
        )


def _check_copy(original: TensorInfo, copy: TensorInfo, on_fault: OnFault) -> None:
    if (copy.shape, copy.dtype) != (original.shape, original.dtype):
        on_fault(
            CheckpointError(
                f"{copy.name} has another shape or dtype than {original.name}, but config.json "
                "ties them",
                hint="set tie_word_embeddings to false in config.json if they are meant to differ",
            )
        )
