"""Storage of matrices in integers: what options ask for, and what suits rows. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ingot.artifact.formats import Format, Storage
from ingot.compiler.options import AUTO, CompileOptions, check_known
from ingot.errors import UsageError
from ingot.models.foreign.config import AnyConfig

BITS = {"int8": 8, "int6": 6, "int5": 5, "int4": 4}
GROUPS = {"32": 32, "64": 64, "128": 128}
SIZES = dict.fromkeys((*BITS, AUTO), GROUPS) | {"int8": {**GROUPS, "channel": 0}}  # of --group-size
AS_THEY_ARE = ("none", "bf16")
DEQUANTIZE = "--dequantize"
UNQUANTIZED = "--quantize none, without --group-size, --keep and --calibrate"


def base_storage(options: CompileOptions, config: AnyConfig) -> Storage | None:
    """The storage that `--quantize` and `--group-size` ask for; None for no quantization.

    Without a group size, int8 takes the widest, which is fastest, and fewer bits the narrowest,
    which is most precise.

    Raises:
        UsageError: a value is unknown, or options do not go together.
    """
    if keeps_integers(options, config):
        return None
    if options.quantize == "none":
        for name, given in (
            ("--group-size", options.group_size),
            ("--keep", options.keep),
            ("--calibrate", options.calibrate),
        ):
            if given:
                raise UsageError(f"{name} needs --quantize auto, int8, int6, int5 or int4")
        return None
    check_known("quantization", options.quantize, ("none", *BITS, AUTO))
    size = group_size(options.quantize, options)
    allowed = SIZES[options.quantize]
    if size not in allowed:
        raise UsageError(
            f"--group-size is {size} for {options.quantize}",
            hint=f"Supported: {', '.join(allowed)}.",
        )
    return None if options.quantize == AUTO else storage_in(options.quantize, allowed[size])


def storage_in(kind: str, group: int) -> Storage:
    """Storage in integers of that kind; those of fewer bits than 8 have zeros."""
    return Storage(BITS[kind], group, zeros=kind != "int8")


def keeps_integers(options: CompileOptions, config: AnyConfig) -> bool:
    """Returns whether a compile keeps the numbers of a checkpoint that is quantized already.

    Raises:
        UsageError: options that would round them a second time without saying so.
    """
    if not config.quantization:
        if options.dequantize:
            raise UsageError(
                f"{DEQUANTIZE} is given, but the checkpoint is not quantized",
                hint="Leave it out.",
            )
        return False
    if options.dequantize:
        return False
    given = {
        f"--quantize {options.quantize}": options.quantize != "none",
        "--group-size": options.group_size,
        "--calibrate": options.calibrate,
    }
    for name, present in given.items():
        if present:
            raise UsageError(
                f"{name} is given, but the checkpoint is quantized already ({config.quantization})",
                hint=f"Leave it out to keep the checkpoint's numbers as they are, or add "
                f"{DEQUANTIZE} to round them a second time.",
            )
    return True


def int8_storage(options: CompileOptions) -> Storage:
    """Storage of matrices that are int8 in any case."""
    return Storage(8, SIZES["int8"][group_size("int8", options)])


def group_size(kind: str, options: CompileOptions) -> str:
    """The group size of matrices of that kind: the option, or the default."""
    return str(options.group_size or (128 if kind == "int8" else 32))


# Whether products take a matrix with rows of so many columns in a format.
Fits = Callable[[int, Format], bool]


def any_width(columns: int, form: Format) -> bool:
    """Returns True: the rule of kernels that leave the last group of a row short."""
    return True


def refused_groups(
    storage: Mapping[str, Storage],
    columns: Mapping[str, int],
    base: Storage,
    fits: Fits,
    alike: Callable[[Sequence[str]], Iterable[str]],
) -> UsageError | None:
    """The error that names all matrices whose groups no kernel takes.

    Args:
        storage: how each matrix is to be stored; columns: of its rows.
        base: what was asked for.
        alike: the named matrices, and those that become one with them.
    """
    wrong = misfits(storage, columns, fits)
    if not wrong:
        return None
    found: dict[str, list[str]] = {}
    for name in wrong:
        found.setdefault(misfit(storage[name], columns[name]), []).append(name)
    int8_only = {base.bits, *(stored.bits for stored in storage.values())} == {8}
    sizes = [
        size
        for size, group in SIZES["int8" if int8_only else "int4"].items()
        if not misfits({n: replace(s, group=group) for n, s in storage.items()}, columns, fits)
    ]
    kinds = last_words(alike(wrong))
    ways = [f"--group-size {' or '.join(sizes)}"] if sizes else []
    ways.append(keep_options(kinds) if set(last_words(storage)) - set(kinds) else UNQUANTIZED)
    return UsageError(
        "; ".join(f"{what} of {', '.join(last_words(names))}" for what, names in found.items()),
        hint=f"Give {', or '.join(ways)}.",
    )


def misfits(storage: Mapping[str, Storage], columns: Mapping[str, int], fits: Fits) -> list[str]:
    """The matrices whose rows do not suit their storage."""
    return [n for n, s in storage.items() if not fits(columns[n], s.of(columns[n]))]


def misfit(stored: Storage, columns: int) -> str:
    """Reason for which a row of so many columns does not suit that storage."""
    what = f"groups of {stored.group} in" if stored.group else "one scale for"
    return f"no kernel takes {what} the {columns} columns"


def last_words(names: Iterable[str]) -> list[str]:
    """`down_proj`, `embed_tokens`: the last words of matrices' names, each once."""
    return list(dict.fromkeys(n.removesuffix(".weight").rpartition(".")[2] for n in names))


def keep_options(patterns: Iterable[str]) -> str:
    """The options that keep matrices as they are."""
    return " ".join(f"--keep '{pattern}=none'" for pattern in patterns)
