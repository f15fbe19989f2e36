"""Chooses how each of the model's matrices is quantized, before any weight is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Format, Storage
from ingot.compiler.options import CompileOptions, check_known
from ingot.errors import CheckpointError, UsageError
from ingot.models.config import ModelConfig

BITS = {"int8": 8, "int4": 4}
GROUPS = {"32": 32, "64": 64, "128": 128}
SIZES = {"int8": {**GROUPS, "channel": 0}, "int4": GROUPS}  # of --group-size
KEPT = ("none", "bf16")
UNQUANTIZED = "--quantize none, without --group-size, --keep and --calibrate"
HEAD = "lm_head"  # also names a head that reads the embedding's table


def base_storage(options: CompileOptions, config: ModelConfig) -> Storage | None:
    """The storage that `--quantize` and `--group-size` ask for; None for no quantization.

    Without a group size, int8 takes the widest that divides the rows of the model's matrices, which
    is fastest. int4 takes the narrowest, which is most precise.

    Raises:
        UsageError: a value is unknown, or options do not go together.
    """
    if options.quantize == "none":
        for name, given in (
            ("--group-size", options.group_size),
            ("--keep", options.keep),
            ("--calibrate", options.calibrate),
        ):
            if given:
                raise UsageError(f"{name} needs --quantize int8 or int4")
        return None
    check_known("quantization", options.quantize, ("none", *BITS))
    size = group_size(options.quantize, options, config)
    allowed = SIZES[options.quantize]
    if size not in allowed:
        raise UsageError(
            f"--group-size is {size} for {options.quantize}",
            hint=f"Supported: {', '.join(allowed)}.",
        )
    return Storage(BITS[options.quantize], allowed[size])


def int8_storage(options: CompileOptions, config: ModelConfig) -> Storage:
    """How matrices are stored that are int8 in any case."""
    return Storage(8, SIZES["int8"][group_size("int8", options, config)])


def group_size(kind: str, options: CompileOptions, config: ModelConfig) -> str:
    """The group size of matrices of that kind: the option, or the default."""
    if options.group_size:
        return str(options.group_size)
    width = math.gcd(config.hidden_size, config.intermediate_size, config.q_size)
    dividing = [size for size, group in GROUPS.items() if width % group == 0]
    return dividing[-1] if kind == "int8" and dividing else "32"


# Whether products take a matrix with rows of so many columns in a format.
Fits = Callable[[int, Format], bool]


def blocks_divide(columns: int, form: Format) -> bool:
    """What every kernel needs."""
    return columns % form.block == 0


def choose_storage(
    gm: GraphModule,
    base: Storage | None,
    keep: tuple[str, ...],
    dtype: str,
    int8: Storage | None = None,
    fits: Fits = blocks_divide,
) -> dict[str, Storage]:
    """How each quantized matrix of the exported graph is stored. The others are not in the result.

    The head and the embedding are stored as `int8` says; by default it has the group of the others.
    Then the rules of `keep`, `PATTERN=none|bf16|int8|int4`, apply to the matrices that they match.
    The last match wins. `fits` says which formats the targets have kernels for.

    Raises:
        UsageError: a rule cannot be read or matches nothing, the rules leave nothing to quantize,
            or the columns of a matrix do not suit its group.
    """
    if base is None:
        return {}
    int8 = int8 or Storage(8, base.group)
    names = matrix_names(gm)
    outer = outer_names(gm)
    chosen: dict[str, Storage | None] = {name: int8 if name in outer else base for name in names}
    for rule in keep:
        pattern, storage = read_rule(rule, base, int8, dtype)
        matched = [name for name, known in names.items() if any(matches(pattern, k) for k in known)]
        if not matched:
            raise UsageError(f"--keep {rule!r} matches no matrix", hint=nearest(pattern, names))
        chosen.update(dict.fromkeys(matched, storage))
    kept = {name: storage for name, storage in chosen.items() if storage is not None}
    if not kept:
        raise UsageError(
            f"--keep leaves nothing to quantize: {', '.join(keep)}",
            hint=f"Keep less, or give {UNQUANTIZED}.",
        )
    check_groups(gm, kept, base, fits)
    return kept


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
    """(name of the weight, node) for every linear and embedding of an exported graph."""
    for node in gm.graph.nodes:
        weight = weight_node(node)
        if weight is not None:
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
        if is_head(node):
            names[name] = tuple(dict.fromkeys((*names[name], HEAD)))
    return names


def read_rule(rule: str, base: Storage, int8: Storage, dtype: str) -> tuple[str, Storage | None]:
    """`PATTERN=STORAGE`, taken apart and checked."""
    pattern, _, kind = rule.rpartition("=")
    if not pattern or kind not in (*KEPT, *BITS):
        raise UsageError(
            f"--keep {rule!r} cannot be read",
            hint=f"Write PATTERN={'|'.join((*KEPT, *BITS))}, such as 'lm_head=bf16'.",
        )
    if kind == "bf16" and dtype != "bfloat16":
        raise UsageError(
            f"--keep {rule!r} needs --dtype bfloat16, but this compile is {dtype}",
            hint=f"Write {pattern}=none to keep the weights in {dtype}.",
        )
    if kind in KEPT:
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


def check_groups(
    gm: GraphModule, storage: Mapping[str, Storage], base: Storage, fits: Fits
) -> None:
    """Raises UsageError that names all matrices whose rows do not suit their groups or kernels."""
    columns = {name: int(gm.get_parameter(name).shape[1]) for name in storage}
    wrong = misfits(storage, columns, fits)
    if not wrong:
        return
    found: dict[str, list[str]] = {}
    for name in wrong:
        found.setdefault(misfit(storage[name], columns[name]), []).append(name)
    int8_only = {base.bits, *(stored.bits for stored in storage.values())} == {8}
    sizes = [
        size
        for size, group in SIZES["int8" if int8_only else "int4"].items()
        if not misfits({n: replace(s, group=group) for n, s in storage.items()}, columns, fits)
    ]
    kinds = last_words(alike(gm, wrong))
    ways = [f"--group-size {' or '.join(sizes)}"] if sizes else []
    ways.append(keep_options(kinds) if set(last_words(storage)) - set(kinds) else UNQUANTIZED)
    raise UsageError(
        "; ".join(f"{what} of {', '.join(last_words(names))}" for what, names in found.items()),
        hint=f"Give {', or '.join(ways)}.",
    )


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


def misfits(storage: Mapping[str, Storage], columns: Mapping[str, int], fits: Fits) -> list[str]:
    """The matrices whose rows do not suit their storage."""
    return [n for n, s in storage.items() if not fits(columns[n], s.of(columns[n]))]


def misfit(stored: Storage, columns: int) -> str:
    """Why a row of so many columns does not suit that storage."""
    if stored.group:
        return f"groups of {stored.group} do not divide the {columns} columns"
    return f"no kernel takes one scale for the {columns} columns"


def last_words(names: Iterable[str]) -> list[str]:
    """`down_proj`, `embed_tokens`: the last words of matrices' names, each once."""
    return list(dict.fromkeys(n.removesuffix(".weight").rpartition(".")[2] for n in names))


def alike(gm: GraphModule, names: Sequence[str]) -> list[str]:
    """These matrices, and those that may be merged with them because they read the same input."""
    inputs = {
        name: node.args[0]
        for name, node in matrices(gm)
        if node.target is torch.ops.aten.linear.default
    }
    read = {inputs[name] for name in names if name in inputs}
    return [*names, *(name for name in inputs if inputs[name] in read and name not in names)]


def keep_options(patterns: Iterable[str]) -> str:
    """The options that keep matrices as they are."""
    return " ".join(f"--keep '{pattern}=none'" for pattern in patterns)


def label(storage: Mapping[str, Storage], *, calibrated: bool) -> str:
    """The words of the manifest: `int4-g32 + int8-g32, calibrated`, most frequent first."""
    counts = Counter(stored.label for stored in storage.values())
    text = " + ".join(sorted(counts, key=lambda name: (-counts[name], name)))
    return (text + (", calibrated" if calibrated else "")) or "none"
