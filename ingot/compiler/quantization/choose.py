"""Chooses how each matrix of a model is stored, before any weight is read. No torch.

A compile and ONNX take the matrices from a graph, and `explain` from a blueprint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from ingot.artifact.formats import Storage
from ingot.artifact.manifest import AS_STORED
from ingot.compiler.quantization.kept import refused_storage
from ingot.compiler.quantization.storage import (
    AS_THEY_ARE,
    BITS,
    UNQUANTIZED,
    Fits,
    any_width,
    refused_groups,
    storage_in,
)
from ingot.errors import UsageError

BESIDE_KEPT = storage_in("int4", 32)  # what `--keep x=int4` stores where a checkpoint has integers
HEAD = "lm_head"  # also names a head that reads the embedding's table


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A parameter that may be stored in integers: a matrix, or a stack of them.

    Attributes:
        columns: of its rows.
        reads: what it multiplies, by any name; those that read the same become one matrix.
        is_head: whether it makes the logits; is_outer: whether it does, or is the embedding.
        is_stack: whether it has a matrix for each expert.
    """

    columns: int
    reads: str
    is_head: bool = False
    is_outer: bool = False
    is_stack: bool = False

    def names(self, parameter: str) -> tuple[str, ...]:
        """The names of it in rules; a head is also `lm_head`, and `experts` all that they have."""
        if self.is_stack:
            return (parameter, parameter.rpartition(".")[0])
        name = parameter.removesuffix(".weight")
        return tuple(dict.fromkeys((name, HEAD))) if self.is_head else (name,)


Matrices = Mapping[str, Matrix]  # by the names of parameters, in the order in which they run


def choose_storage(
    matrices: Matrices,
    base: Storage | None,
    keep: tuple[str, ...],
    dtype: str,
    int8: Storage | None = None,
    fits: Fits = any_width,
    kept: Mapping[str, Storage] | None = None,
) -> dict[str, Storage]:
    """Chooses the storage of each quantized matrix. The others are not in the result.

    The head and the embedding are stored as `int8` says; by default it has the group of the others.
    Then the rules of `keep`, `PATTERN=KIND`, apply to the matrices that they match; a KIND is none,
    bf16, or integers such as int4. The last match wins. `fits` says which formats the targets have
    kernels for. If the checkpoint has integers, `kept`, only these are stored so, except where a
    rule matches.

    Raises:
        UsageError: a rule cannot be read or matches nothing, the rules leave nothing to quantize,
            or no kernel takes the groups of a matrix.
    """
    if base is None and not kept:
        return {}
    others, base = base, base or BESIDE_KEPT
    int8 = int8 or Storage(8, base.group)
    # What is none of the matrices, such as those of heads, is read as the numbers it stands for.
    chosen: dict[str, Storage | None] = {n: s for n, s in (kept or {}).items() if n in matrices}
    if others is not None:
        chosen = {name: int8 if each.is_outer else base for name, each in matrices.items()}
    chosen |= ruled(matrices, keep, base, int8, dtype)
    stored = {name: storage for name, storage in chosen.items() if storage is not None}
    if not stored and not kept:
        raise UsageError(
            f"--keep leaves nothing to quantize: {', '.join(keep)}",
            hint=f"Keep less, or give {UNQUANTIZED}.",
        )
    _refuse_misfits(matrices, stored, base, fits, kept or {})
    return stored


def ruled(
    matrices: Matrices, keep: tuple[str, ...], base: Storage | None, int8: Storage, dtype: str
) -> dict[str, Storage | None]:
    """The matrices that rules match, each stored as the last one says. Raises UsageError for a rule
    that cannot be read or matches nothing."""
    found: dict[str, Storage | None] = {}
    for rule in keep:
        pattern, storage = read_rule(rule, base or BESIDE_KEPT, int8, dtype)
        found.update(dict.fromkeys(_matched(rule, pattern, matrices), storage))
    return found


def _refuse_misfits(
    matrices: Matrices,
    stored: dict[str, Storage],
    base: Storage,
    fits: Fits,
    kept: Mapping[str, Storage],
) -> None:
    """Raises UsageError for matrices that no kernel takes as they are to be stored."""
    columns = {name: matrices[name].columns for name in stored}
    own = {name: storage for name, storage in stored.items() if kept.get(name) == storage}
    if wrong := refused_storage(own, columns, fits):
        raise wrong
    if refused := refused_groups(stored, columns, base, fits, lambda wrong: alike(matrices, wrong)):
        raise refused


def _matched(rule: str, pattern: str, matrices: Matrices) -> list[str]:
    """The matrices that a rule is for. Raises UsageError if there are none."""
    names = {name: matrix.names(name) for name, matrix in matrices.items()}
    found = [name for name, known in names.items() if any(matches(pattern, k) for k in known)]
    if not found:
        raise UsageError(f"--keep {rule!r} matches no matrix", hint=nearest(pattern, names))
    return found


def alike(matrices: Matrices, names: Sequence[str]) -> list[str]:
    """These matrices, and those that become one with them because they read the same."""
    read = {matrices[name].reads for name in names}
    return [*names, *(n for n, m in matrices.items() if m.reads in read and n not in names)]


def agreed(name: str, parts: Iterable[str], storage: Mapping[str, Storage]) -> Storage | None:
    """Storage of a parameter that is stacked from these; None for no integers.

    Raises:
        UsageError: its parts would be stored in different ways.
    """
    chosen = {part: storage.get(part) for part in parts}
    if len(set(chosen.values())) > 1:
        listed = ", ".join(f"{n} {s.label if s else 'not'}" for n, s in chosen.items())
        raise UsageError(
            f"{name} is one matrix, but its parts would be stored in different ways: {listed}",
            hint="Give --keep a pattern that all of them match, or --disable-pass merge_linears.",
        )
    return next(iter(chosen.values()), None)


def check_calibration(matrices: Matrices, storage: Mapping[str, Storage]) -> None:
    """Checks that there is a linear to calibrate.

    Raises:
        UsageError: only an embedding or the head is quantized.
    """
    if all(matrices[name].is_outer for name in storage):
        raise UsageError(
            "--calibrate has nothing to calibrate: --keep leaves only the embedding or the head",
            hint="Keep less, or leave --calibrate out.",
        )


def read_rule(rule: str, base: Storage, int8: Storage, dtype: str) -> tuple[str, Storage | None]:
    """`PATTERN=STORAGE`, taken apart and checked."""
    pattern, _, kind = rule.rpartition("=")
    if not pattern or kind not in (*AS_THEY_ARE, *BITS):
        raise UsageError(
            f"--keep {rule!r} cannot be read",
            hint=f"Write PATTERN={'|'.join((*AS_THEY_ARE, *BITS))}, such as 'lm_head=bf16'.",
        )
    if kind == "bf16" and dtype != "bfloat16":
        raise UsageError(
            f"--keep {rule!r} needs --dtype bfloat16, but this compile is {dtype}",
            hint=f"Write {pattern}=none to keep the weights in {dtype}.",
        )
    if kind in AS_THEY_ARE:
        return pattern, None
    if kind == "int8":
        return pattern, int8
    if not base.group:
        raise UsageError(
            f"--keep {rule!r}: {kind} has no scale per channel", hint="Give a --group-size."
        )
    return pattern, storage_in(kind, base.group)


def matches(pattern: str, name: str) -> bool:
    """Returns whether a shell pattern (`down_proj`, `layers.0.*`) fits a dotted name or its end."""
    words = name.split(".")
    return any(fnmatchcase(".".join(words[i:]), pattern) for i in range(len(words)))


def nearest(pattern: str, names: Mapping[str, tuple[str, ...]]) -> str:
    """A hint: names like the pattern, or, if there are none, all last words of names."""
    known = {name for every in names.values() for name in every}
    tails = sorted({name.rpartition(".")[2] for name in known})
    close = get_close_matches(pattern, sorted(known | set(tails)), n=3)
    if close:
        return f"Near: {', '.join(close)}."
    return f"Names end in: {', '.join(tails)}."


def label(storage: Mapping[str, Storage], *, calibrated: bool, kept: bool = False) -> str:
    """The words of the manifest: `int4-g32 + int8-g32, calibrated`, most frequent first.

    `kept` says that integers are those of the checkpoint.
    """
    counts = Counter(stored.label for stored in storage.values())
    text = " + ".join(sorted(counts, key=lambda name: (-counts[name], name)))
    return (text + (", calibrated" if calibrated else "") + (AS_STORED if kept else "")) or "none"
