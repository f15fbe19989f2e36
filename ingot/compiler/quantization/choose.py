"""Chooses how each of the model's matrices is quantized, before any weight is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.artifact.manifest import AS_STORED
from ingot.compiler.quantization.kept import refused_storage
from ingot.compiler.quantization.storage import (
    AS_THEY_ARE,
    BITS,
    UNQUANTIZED,
    Fits,
    any_width,
    keep_options,
    refused_groups,
)
from ingot.errors import CheckpointError, UsageError
from ingot.ops import OPS
from ingot.passes.graph import arguments, routes

BESIDE_KEPT = Storage(4, 32)  # what `--keep x=int4` stores where a checkpoint has integers
HEAD = "lm_head"  # also names a head that reads the embedding's table
EXPERTS = OPS["experts"].overload


def choose_storage(
    gm: GraphModule,
    base: Storage | None,
    keep: tuple[str, ...],
    dtype: str,
    int8: Storage | None = None,
    fits: Fits = any_width,
    kept: Mapping[str, Storage] | None = None,
) -> dict[str, Storage]:
    """How each quantized matrix of the exported graph is stored. The others are not in the result.

    The head and the embedding are stored as `int8` says; by default it has the group of the others.
    Then the rules of `keep`, `PATTERN=none|bf16|int8|int4`, apply to the matrices that they match.
    The last match wins. `fits` says which formats the targets have kernels for. If the checkpoint
    has integers, `kept`, only these are stored so, except where a rule matches.

    Raises:
        UsageError: a rule cannot be read or matches nothing, the rules leave nothing to quantize,
            or no kernel takes the groups of a matrix.
    """
    if base is None and not kept:
        return {}
    names, outer = matrix_names(gm), outer_names(gm)
    others, base = base, base or BESIDE_KEPT
    int8 = int8 or Storage(8, base.group)
    # What no matrix of the graph is, such as those of heads, is read as the numbers it stands for.
    chosen: dict[str, Storage | None] = {n: s for n, s in (kept or {}).items() if n in names}
    if others is not None:
        chosen = {name: int8 if name in outer else base for name in names}
    for rule in keep:
        pattern, storage = read_rule(rule, base, int8, dtype)
        matched = [name for name, known in names.items() if any(matches(pattern, k) for k in known)]
        if not matched:
            raise UsageError(f"--keep {rule!r} matches no matrix", hint=nearest(pattern, names))
        chosen.update(dict.fromkeys(matched, storage))
    stored = {name: storage for name, storage in chosen.items() if storage is not None}
    if not stored and not kept:
        raise UsageError(
            f"--keep leaves nothing to quantize: {', '.join(keep)}",
            hint=f"Keep less, or give {UNQUANTIZED}.",
        )
    columns = {name: int(gm.get_parameter(name).shape[-1]) for name in stored}
    own = {name: s for name, s in stored.items() if kept and kept.get(name) == s}
    if wrong := refused_storage(own, columns, fits):
        raise wrong
    if refused := refused_groups(stored, columns, base, fits, lambda wrong: alike(gm, wrong)):
        raise refused
    return stored


def check_calibration(gm: GraphModule, storage: Mapping[str, Storage]) -> None:
    """Checks that there is a linear to calibrate.

    Raises:
        UsageError: only an embedding or the head is quantized.
    """
    if not storage.keys() - outer_names(gm):
        raise UsageError(
            "--calibrate has nothing to calibrate: --keep leaves only the embedding or the head",
            hint="Keep less, or leave --calibrate out.",
        )


def matrices(gm: GraphModule) -> Iterator[tuple[str, Node]]:
    """(name of the weight, node) for every linear and embedding of an exported graph, and for both
    stacks of experts; but for linears that experts are picked by, which are never integers."""
    for node in gm.graph.nodes:
        if node.target is EXPERTS:
            given = arguments(node)
            yield from ((str(given[name].target), node) for name in ("gate_up", "down"))
            continue
        weight = weight_node(node)
        if weight is not None and not routes(node):
            yield str(weight.target), node


def weight_node(node: Node) -> Node | None:
    """The parameter that a linear or an embedding of an exported graph reads."""
    place = {torch.ops.aten.linear.default: 1, torch.ops.aten.embedding.default: 0}
    weight = node.args[place[node.target]] if node.target in place else None
    return weight if isinstance(weight, Node) and weight.op == "get_attr" else None


def outer_names(gm: GraphModule) -> set[str]:
    """The matrices of the embedding and the head."""
    embedding = torch.ops.aten.embedding.default
    return {name for name, node in matrices(gm) if node.target is embedding or is_head(node)}


def is_head(node: Node) -> bool:
    """Whether a node makes the logits: no product with a matrix comes after it."""
    while node.op != "output":
        users = list(node.users)
        if len(users) != 1 or weight_node(users[0]) is not None:
            return False
        node = users[0]
    return True


def matrix_names(gm: GraphModule) -> dict[str, tuple[str, ...]]:
    """The names of each matrix in rules; a head is also `lm_head`."""
    names: dict[str, tuple[str, ...]] = {}
    for name, node in matrices(gm):
        names.setdefault(name, (name.removesuffix(".weight"),))
        if node.target is EXPERTS:  # `experts` names all that they have
            names[name] = (name, name.rpartition(".")[0])
        if is_head(node):
            names[name] = tuple(dict.fromkeys((*names[name], HEAD)))
    return names


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
    if kind == "int4" and not base.group:
        raise UsageError(
            f"--keep {rule!r}: int4 has no scale per channel", hint="Give a --group-size."
        )
    return pattern, int8 if kind == "int8" else Storage(BITS[kind], base.group)


def matches(pattern: str, name: str) -> bool:
    """Whether a shell pattern (`down_proj`, `layers.0.*`) fits a dotted name or the end of it."""
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


@contextmanager
def naming(gm: GraphModule, name: str) -> Iterator[None]:
    """Adds to errors about weights the name of the matrix, and the option that keeps it."""
    try:
        yield
    except CheckpointError as error:
        kept = [n.removesuffix(".weight").removeprefix("model.") for n in alike(gm, [name])]
        raise CheckpointError(
            f"{name}: {error.found}", hint=f"Keep them as they are: {keep_options(kept)}"
        ) from error


def alike(gm: GraphModule, names: Sequence[str]) -> list[str]:
    """These matrices, and those that may be merged with them because they read the same input."""
    inputs = {
        name: node.args[0]
        for name, node in matrices(gm)
        if node.target is torch.ops.aten.linear.default
    }
    read = {inputs[name] for name in names if name in inputs}
    return [*names, *(name for name in inputs if inputs[name] in read and name not in names)]


def label(storage: Mapping[str, Storage], *, calibrated: bool, kept: bool = False) -> str:
    """The words of the manifest: `int4-g32 + int8-g32, calibrated`, most frequent first.

    `kept` says that integers are those of the checkpoint.
    """
    counts = Counter(stored.label for stored in storage.values())
    text = " + ".join(sorted(counts, key=lambda name: (-counts[name], name)))
    return (text + (", calibrated" if calibrated else "") + (AS_STORED if kept else "")) or "none"
