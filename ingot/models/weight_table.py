"""Finds the tensor of a checkpoint that each parameter of a module is read from.

A family's tables say which. Every tensor of the checkpoint must be the source of a parameter, a
copy of a tied tensor, or listed as unused; any other tensor is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from ingot.errors import CheckpointError, OnFault, listed, raise_fault
from ingot.models import registry
from ingot.models.blueprint import Shape
from ingot.models.checkpoint_files import DTYPE_NAMES
from ingot.models.checkpoint_formats.quantized import QuantizedTensor
from ingot.models.family import Family, Rows, Weights
from ingot.models.safetensors_file import TensorInfo

Array = NDArray[Any]

BIAS = ".bias"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from: `shape[0]` rows of a tensor, from `first_row` on.

    The rows of a tensor that is stored transposed are its columns. One that consists of several
    blocks has a share of the rows in each, from `first_row` of the block on.
    """

    info: TensorInfo
    first_row: int
    shape: Shape
    transposed: bool = False
    blocks: int = 1

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The rows of the tensor that rows start..stop of the parameter lie in: whole blocks."""
        if self.blocks == 1:
            return self.first_row + start, self.first_row + stop
        height, share = self._heights
        return start // share * height, -(-stop // share) * height

    def picked(self, rows: Array, start: int, stop: int) -> Array:
        """Rows start..stop of the parameter, from the rows [R, ...] of their span."""
        if self.blocks == 1:
            return rows
        height, share = self._heights
        blocks = rows.reshape(-1, height, *rows.shape[1:])
        own = blocks[:, self.first_row : self.first_row + share].reshape(-1, *rows.shape[1:])
        skipped = start % share
        return own[skipped : skipped + stop - start]

    @property
    def _heights(self) -> tuple[int, int]:
        """Rows of a block, and those of them that are the parameter's."""
        return self.info.shape[0] // self.blocks, self.shape[0] // self.blocks


def resolve_sources(
    infos: Mapping[str, TensorInfo],
    config: registry.AnyConfig,
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
    family = registry.family_of(config)
    infos = _respelled(family, infos, on_fault)
    table = family.weights_of(config)
    wanted = {name: _lookup(table, name, len(shape)) for name, shape in shapes.items()}
    copies = _find_copies(family, config, infos)
    needed = {rows.source for rows in wanted.values()}
    missing = sorted(needed - infos.keys()) if whole else []
    extra = _left_over(family, infos, needed | set(copies.values()) | idle_biases(infos, needed))
    _check_names(family, missing, extra, on_fault)
    first_rows = _stack(wanted, shapes)
    sources = {
        # Formats say where outputs lie, so a quantized matrix has them first, whatever the family.
        name: Source(
            info := infos[rows.source],
            first_rows[name],
            shapes[name],
            rows.transposed and not isinstance(info, QuantizedTensor),
            rows.blocks,
        )
        for name, rows in wanted.items()
        if rows.source in infos
    }
    _check_dtypes([source.info for source in sources.values()], on_fault)
    _check_shapes(sources.values(), on_fault)
    for original, copy in copies.items():
        _check_copy(infos[original], infos[copy], on_fault)
    return sources, {infos[original].name: infos[copy].name for original, copy in copies.items()}


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


def quantized_sources(sources: Mapping[str, Source]) -> dict[str, QuantizedTensor]:
    """The parameters that a checkpoint stores quantized, and the matrix that each is in."""
    return {
        name: source.info
        for name, source in sources.items()
        if isinstance(source.info, QuantizedTensor)
    }


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


def _lookup(table: Weights, name: str, ndim: int) -> Rows:
    """The table's entry for a parameter; its own name where the table is silent."""
    for template, entry in table.items():
        if match := expand(template).fullmatch(name):
            rows = entry if isinstance(entry, Rows) else Rows(entry)
            turned = rows.transposed and ndim > 1
            return replace(rows, source=_fill(rows.source, match), transposed=turned)
    return Rows(name)


def _find_copies(
    family: Family, config: registry.AnyConfig, infos: Mapping[str, TensorInfo]
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


def _stack(wanted: Mapping[str, Rows], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The first row of every parameter in its source, or in each of the source's blocks."""
    first: dict[str, int] = {}
    ends: dict[str, int] = {}
    for name in sorted(wanted, key=lambda name: wanted[name].part):
        source, blocks = wanted[name].source, wanted[name].blocks
        first[name] = ends.get(source, wanted[name].skip)
        ends[source] = first[name] + shapes[name][0] // blocks
    return first


def _check_shapes(sources: Iterable[Source], on_fault: OnFault) -> None:
    parts: dict[str, list[Source]] = {}
    for source in sources:
        parts.setdefault(source.info.name, []).append(source)
    wrong = []
    for name, (first, *others) in parts.items():
        skipped = min(source.first_row for source in (first, *others))
        rows = skipped + first.shape[0] + sum(other.shape[0] for other in others)
        expected = (rows, *first.shape[1:])
        expected = expected[::-1] if first.transposed else expected
        if expected != first.info.shape:
            wrong.append(f"{name} {list(first.info.shape)} instead of {list(expected)}")
    if wrong:
        on_fault(
            CheckpointError(
                f"the checkpoint has tensors of another shape: {listed(wrong, 4)}",
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
