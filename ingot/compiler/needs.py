"""Needs of a model in every way that a compile can store it: disk, memory, and what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot.artifact.formats import Format, Storage, rounded_rows
from ingot.artifact.matrices import StoredMatrix, stored_matrices
from ingot.artifact.pages import most_pages, widest_window
from ingot.artifact.plan import Limits
from ingot.compiler.options import CompileOptions
from ingot.compiler.packed_sizes import (
    file_sizes,
    formats_of,
    matrices_of,
    weights_of,
)
from ingot.compiler.resolve import longest_sequence, resolve
from ingot.errors import UsageError
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.targets.target import kind_of

MOST_SEATS = 4096  # sequences in one step
# The ways to store a model, as options of a compile.
WAYS: tuple[tuple[str, dict[str, str]], ...] = (
    *((dtype, {"dtype": dtype}) for dtype in ("float32", "bfloat16", "float16")),
    *((kind, {"quantize": kind}) for kind in ("int8", "int6", "int5", "int4")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNeed:
    """What is kept of some sequences of some length, and the memory with it.

    Attributes:
        dtype: of stored keys and values; options: of the compile that gives it.
        bytes_per_token: of all layers.
        bytes_per_sequence: of the records of all layers, whatever its length.
        cache_bytes: for the sequences, in whole pages, and their records.
        total_bytes: with the weights and what a step needs.
        fits: whether that is within the memory; None where nothing tells how much there is.
        largest_context: of so many sequences in that memory; 0: not one token of each fits.
        largest_seats: sequences of that length in that memory.
    """

    dtype: str
    options: tuple[str, ...]
    bytes_per_token: int
    bytes_per_sequence: int = 0
    cache_bytes: int
    total_bytes: int
    fits: bool | None
    largest_context: int | None
    largest_seats: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to store a model.

    Attributes:
        name: float32, bfloat16, float16, or int8 to int4; options: of the compile that gives it.
        default: whether a compile without options gives it.
        refused: why a compile refuses it; empty if not. hint: what to do then.
        stored_as: how weights are stored, such as `bfloat16-int4-g32`; matrices: how each is, where
            some are in integers.
        weight_bytes: of the file of weights, which is mapped into memory.
        expert_bytes: those of them that are experts'. Only what tokens pick is read from the disk,
            and the system may drop it again, so the memory need not hold all of it.
        step_bytes: of the logits of a step, and about that of its temporaries; GPUs need less.
        caches: one for each dtype of keys and values.
    """

    name: str
    options: tuple[str, ...]
    default: bool = False
    refused: str = ""
    hint: str = ""
    stored_as: str = ""
    matrices: tuple[StoredMatrix, ...] = ()
    weight_bytes: int = 0
    expert_bytes: int = 0
    step_bytes: int = 0
    caches: tuple[CacheNeed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Use of a model: so many sequences of so many tokens in so much memory.

    A context of 0 is the longest that the model was made for. `memory_bytes` is None where nothing
    tells how much there is.
    """

    context: int = 0
    seats: int = 1
    memory_bytes: int | None = None

    def resolved(self, config: ModelConfig) -> Use:
        """The use of a model. Raises UsageError for what the model cannot do."""
        context = self.context or config.max_position_embeddings
        for name, value, most in (
            ("--context", context, longest_sequence(config)),
            ("--seats", self.seats, MOST_SEATS),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"{name} is {value}", hint=f"Supported: 1 to {most}.")
        return replace(self, context=context)


def options_for(use: Use, options: CompileOptions, config: ModelConfig) -> CompileOptions:
    """Options of a compile whose limits let a model do that."""
    longer = use.context > config.max_position_embeddings
    return replace(
        options,
        max_num_seqs=max(use.seats, options.max_num_seqs),
        max_num_batched_tokens=max(use.seats, options.max_num_batched_tokens),
        max_model_len=use.context if longer else options.max_model_len,
    )


def words_of(options: CompileOptions) -> tuple[str, ...]:
    """The options on a command line, as far as they are not the defaults; those alone that an
    explanation can change."""
    default = CompileOptions()
    given = (
        ("--target", ",".join(options.targets), ",".join(default.targets)),
        ("--max-model-len", options.max_model_len, default.max_model_len),
        ("--max-num-seqs", options.max_num_seqs, default.max_num_seqs),
        (
            "--max-num-batched-tokens",
            options.max_num_batched_tokens,
            default.max_num_batched_tokens,
        ),
    )
    changed = ((name, str(value)) for name, value, usual in given if value != usual)
    return tuple(word for pair in changed for word in pair)


def ways_to_store(
    config: ModelConfig,
    blueprint: Blueprint,
    options: CompileOptions,
    use: Use,
    kept: Mapping[str, Storage] | None = None,
) -> tuple[Way, ...]:
    """Every way to store a model for the target of the options. Raises what `resolve` does.

    If its checkpoint is quantized, `kept` says how what it has is stored as it is; the other ways
    dequantize it.
    """
    ways: Iterable[tuple[str, dict[str, Any]]] = WAYS
    if config.quantization:
        ways = [(name, {**way, "dequantize": True}) for name, way in WAYS]
        if kept:
            ways = [(next(iter(kept.values())).label, {}), *ways]
    default = replace(resolve(options, config), kept=kept or {}).stored_as
    return tuple(
        _way(name, changes, config, blueprint, options, use, default, {} if changes else kept or {})
        for name, changes in ways
    )


def _way(
    name: str,
    changes: dict[str, Any],
    config: ModelConfig,
    blueprint: Blueprint,
    options: CompileOptions,
    use: Use,
    default: str,
    kept: Mapping[str, Storage],
) -> Way:
    words = ((f"--{key}", () if value is True else (value,)) for key, value in changes.items())
    given = tuple(word for key, values in words for word in (key, *values))
    try:
        resolved = resolve(replace(options, **changes), config)
        resolved = replace(resolved, kept=kept)
        weights = weights_of(blueprint, kept)
        storage = resolved.storage_of(matrices_of(weights))
        formats = formats_of(weights, storage, resolved.dtype)  # type: ignore[arg-type]
    except UsageError as error:
        return Way(name=name, options=given, refused=error.found, hint=error.hint)
    kind = kind_of(resolved.targets[0])
    sizes = file_sizes(kind, weights, formats)
    step = step_bytes(config, resolved.limits)
    return Way(
        name=name,
        options=given,
        default=resolved.stored_as == default,
        stored_as=resolved.stored_as,
        matrices=stored_matrices(
            (each.name, each.shape, formats[each.name]) for each in weights if len(each.shape) > 1
        ),
        weight_bytes=sizes.whole,
        expert_bytes=sizes.picked if kind.maps_weights else 0,
        step_bytes=step,
        caches=tuple(
            _cache(dtype, config, resolved.limits, sizes.whole + step, use)
            for dtype in dict.fromkeys((resolved.dtype, "int8"))
        ),
    )


def step_bytes(config: ModelConfig, limits: Limits) -> int:
    """Bytes of the logits of the largest step, and about those of its temporaries.

    Temporaries are told within a third for a CPU, where all that one layer makes of a row lies side
    by side. A GPU uses places again, and needs less.
    """
    streams = 4 if config.placement == "pre" else 8
    parts = (layer.temporary_width for layer in config.layers)
    row = streams * config.hidden_size + max(parts, default=0)
    return 4 * (limits.max_num_batched_tokens * row + limits.max_logit_rows * config.vocab_size)


def _cache(dtype: str, config: ModelConfig, limits: Limits, fixed: int, use: Use) -> CacheNeed:
    cached = [
        (heads, size, mixer.block_size)
        for mixer in (() if config.head else config.mixers)
        for heads, size in mixer.cached
    ]
    per_token = sum(_form(dtype, block).nbytes((heads, size)) for heads, size, block in cached)
    window = widest_window(config.windows)

    def cache_bytes(context: int, seats: int) -> int:
        step, page = limits.max_num_batched_tokens, limits.page_size
        pages = per_token * page * most_pages(context, step, page, window)
        return seats * (pages + config.record_bytes)

    asked = cache_bytes(use.context, use.seats)
    fits, most_context, most_seats = None, None, None
    if use.memory_bytes is not None:
        room = use.memory_bytes - fixed
        fits = asked <= room
        longest = longest_sequence(config)
        most_context = _largest(longest, lambda length: cache_bytes(length, use.seats) <= room)
        most_seats = _largest(MOST_SEATS, lambda count: cache_bytes(use.context, count) <= room)
    return CacheNeed(
        dtype=dtype,
        options=("--kv-dtype", "int8") if dtype == "int8" else (),
        bytes_per_token=per_token,
        bytes_per_sequence=config.record_bytes,
        cache_bytes=asked,
        total_bytes=fixed + asked,
        fits=fits,
        largest_context=most_context,
        largest_seats=most_seats,
    )


def _form(dtype: str, block: int) -> Format:
    """Format of a cached token; in int8 so many columns share a scale."""
    return rounded_rows(block) if dtype == "int8" else Format(dtype)  # type: ignore[arg-type]


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, if all smaller ones fit then; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
