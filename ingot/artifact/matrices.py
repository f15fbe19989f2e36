"""Lists how each matrix of a model is stored, matrices that are alike in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingot.artifact.formats import Format
from ingot.artifact.plan import Plan

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """Matrices of one name, but for the number of their layer, and one format.

    Attributes:
        name: with * for the number of the layer.
        count: matrices; shape: of each.
        stored: the format, and how many groups a row has, in words.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    stored: str


def matrices_of(plan: Plan) -> tuple[StoredMatrix, ...]:
    """The matrices of a plan, in its order."""
    weights = ((b.name, tuple(map(int, b.shape)), b.format) for b in plan.of_kind("weight"))
    return stored_matrices(each for each in weights if len(each[1]) > 1)


def stored_matrices(
    matrices: Iterable[tuple[str, tuple[int, ...], Format]],
) -> tuple[StoredMatrix, ...]:
    """Matrices by name, shape and format; none where no matrix is in integers."""
    counts: dict[tuple[str, tuple[int, ...], Format], int] = {}
    for name, shape, form in matrices:
        key = NUMBER.sub("*", name).removesuffix(".weight"), shape, form
        counts[key] = counts.get(key, 0) + 1
    if not any(form.is_scaled for _, _, form in counts):
        return ()
    return tuple(
        StoredMatrix(name=name, count=count, shape=shape, stored=in_words(form, shape))
        for (name, shape, form), count in counts.items()
    )


def in_words(form: Format, shape: Sequence[int]) -> str:
    """`int4, 4 groups of 32 and one of 4`; `int8, one scale a row`; `bfloat16`."""
    if not form.is_scaled:
        return str(form)
    columns = shape[-1]
    whole, left = divmod(columns, form.group)
    if not form.has_multipliers and form.blocks_of(columns) == 1:
        return f"{form.dtype}, one scale a row"
    groups = f"{whole} groups of {form.group}" if whole > 1 else f"one group of {form.group}"
    last = f"one of {left}" if whole else f"one group of {left}"
    parts = [*([groups] if whole else []), *([last] if left else [])]
    has = {"zeros": form.zeros, "minimums": form.minimums, "codes": form.codes}
    more = " and ".join(word for word, is_so in has.items() if is_so)
    return f"{form.dtype}, {' and '.join(parts)}" + (f", with {more}" if more else "")
