"""Resolves what was asked for into what is built: targets, dtype and limits without defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Limits
from ingot.artifact.programs import ENCODE, HIDDEN, PROGRAMS, STEP, TOKENS, Program
from ingot.artifact.target import Target
from ingot.compiler.choose_targets import resolve_targets
from ingot.compiler.options import (
    ACTIVATIONS,
    AUTO,
    CompileOptions,
    check_known,
    chooses_formats,
)
from ingot.compiler.quantization.choose import Matrices, choose_storage
from ingot.compiler.quantization.storage import Fits, base_storage, int8_storage
from ingot.errors import UsageError
from ingot.models.config import ModelConfig
from ingot.models.foreign.config import AnyConfig
from ingot.targets.target import all_compute, all_fit, check_activations

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = ("auto", "int8")
LONGEST_DYNAMIC = 1 << 20  # dynamic rotary frequencies stretch to whatever length is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Resolved options of a compile: every choice made.

    `keep` has the rules of `--keep`; `kept` says how the parameters are stored that the checkpoint
    has in integers. `automatic` says that measurement tells how the others are, in the bytes of
    `storage` if there is one.
    """

    targets: tuple[Target, ...]
    dtype: str
    dtype_reason: str
    kv_dtype: str
    storage: Storage | None
    int8: Storage
    limits: Limits
    programs: tuple[Program, ...] = (STEP,)
    keep: tuple[str, ...] = ()
    kept: Mapping[str, Storage] = field(default_factory=dict)
    automatic: bool = False

    @property
    def encodes(self) -> bool:
        """True of a model that reads whole texts, and generates none."""
        return not self.programs[0].keeps

    @property
    def stored_as(self) -> str:
        """Storage of weights in a word, such as `bfloat16-int4-g32`."""
        if self.automatic and self.storage is None:
            return f"{self.dtype}-{AUTO}"
        storage = self.storage or next(iter(self.kept.values()), None)
        return self.dtype + (f"-{storage.label}" if storage else "")

    def storage_of(self, matrices: Matrices, fits: Fits | None = None) -> dict[str, Storage]:
        """Storage of those matrices that become integers.

        `fits` says which formats products take; None: those that all targets take. Raises what
        `choose_storage` does.
        """
        return choose_storage(
            matrices,
            self.storage,
            self.keep,
            self.dtype,
            self.int8,
            fits or partial(all_fit, self.targets),
            self.kept,
        )


def resolve(options: CompileOptions, config: AnyConfig, *, embeds: bool = False) -> Resolved:
    """Every choice that the options and the model leave open. Raises UsageError.

    `embeds` says that a model is made for embeddings.
    """
    if options.dump_dir is not None:
        make_folder(options.dump_dir)
    targets = resolve_targets(options)
    dtype = resolve_dtype(options.dtype, config, targets)
    check_known("KV dtype", options.kv_dtype, KV_DTYPES)
    if options.activations:
        check_known("rounding of activations", options.activations, ACTIVATIONS)
    groups = with_groups(options) if _encodes(config) else options
    return Resolved(
        targets=targets,
        dtype=dtype,
        dtype_reason=dtype_reason(options.dtype, dtype, config),
        kv_dtype=dtype if options.kv_dtype == "auto" else options.kv_dtype,
        storage=base_storage(groups, config),
        int8=int8_storage(groups),
        limits=resolve_limits(options, config),
        programs=resolve_programs(options, config, embeds=embeds),
        keep=options.keep,
        automatic=chooses_formats(options) and not _encodes(config),
    )


def with_groups(options: CompileOptions) -> CompileOptions:
    """The options of a model of whole texts, whose vectors need narrow groups.

    Raises UsageError for formats that measurement would choose: it measures logits.
    """
    if options.quantize == AUTO:
        raise UsageError(
            "--quantize auto is given for a model that has no logits to measure by",
            hint="Give int8, which changes vectors little.",
        )
    is_free = options.quantize != "none" and not options.group_size
    return replace(options, group_size="32") if is_free else options


def resolve_programs(
    options: CompileOptions, config: AnyConfig, *, embeds: bool
) -> tuple[Program, ...]:
    """The programs of the artifact. Raises UsageError for those that the model cannot have."""
    possible = possible_programs(config)
    usual = (STEP, HIDDEN) if embeds and not _encodes(config) else possible[:1]
    asked = tuple(PROGRAMS[name] for name in options.programs) or usual
    if asked[0] is not possible[0] or not {*asked} <= {*possible}:
        raise UsageError(
            f"{config.architecture} is to have the programs {', '.join(p.name for p in asked)}",
            hint=f"Supported: {', with or without '.join(each.name for each in possible)}.",
        )
    return asked


def possible_programs(config: AnyConfig) -> tuple[Program, ...]:
    """The programs that an artifact of a model can have, of which it must have the first."""
    head = config.head if isinstance(config, ModelConfig) else None
    if head is None:
        return tuple(program for program in PROGRAMS.values() if program.keeps)
    if not head.pooling:
        return (TOKENS,)
    return (ENCODE,) if head.labels or head.log1ps else (ENCODE, TOKENS)


def _encodes(config: AnyConfig) -> bool:
    return isinstance(config, ModelConfig) and config.head is not None


def make_folder(path: Path) -> None:
    """Makes the folder of `--dump` before there is anything to write. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="--dump needs a folder."
        ) from error


def resolve_dtype(dtype: str, config: AnyConfig, targets: Sequence[Target] = ()) -> str:
    """The dtype of weights and matrix products.

    "auto" is that of the checkpoint, or bfloat16 where a target does not compute in it.

    Raises:
        UsageError: a dtype that is not supported, or not by all targets.
    """
    check_known("dtype", dtype, DTYPES)
    if dtype == "auto":
        own = config.checkpoint_dtype
        dtype = own if own in DTYPES and all_compute(targets, own) else "bfloat16"
    check_activations(targets, dtype)
    return dtype


def dtype_reason(asked: str, dtype: str, config: AnyConfig) -> str:
    """The dtype that was chosen and why, as the summary says it."""
    checkpoint = config.checkpoint_dtype
    why = "as asked" if asked != "auto" else f"for a {checkpoint} checkpoint"
    if (checkpoint, dtype) == ("float16", "bfloat16"):
        why += ", which rounds its weights from 11 bits to 8; --dtype float32 keeps them"
        why += ", and so does float16, for GPUs alone"
    if dtype == "float16" and checkpoint != "float16":
        why += ", whose numbers end at 65504"
    return f"{dtype}, {why}"


def longest_sequence(config: AnyConfig) -> int:
    """The longest sequence that a model can be compiled for."""
    ropes = config.ropes
    is_dynamic = bool(ropes) and all(rope.type == "dynamic" for rope in ropes)
    is_free = is_dynamic or (isinstance(config, ModelConfig) and config.counts_no_tokens)
    return LONGEST_DYNAMIC if is_free else config.max_position_embeddings


def resolve_limits(options: CompileOptions, config: AnyConfig) -> Limits:
    """The limits of the artifact.

    Raises:
        UsageError: an option that is out of range.
    """
    longest = config.max_position_embeddings
    max_model_len = longest if options.max_model_len is None else options.max_model_len
    for name, value, largest in (
        ("--max-model-len", max_model_len, longest_sequence(config)),
        ("--max-num-seqs", options.max_num_seqs, 4096),
        ("--max-num-batched-tokens", options.max_num_batched_tokens, 65536),
        ("--page-size", options.page_size, 256),
    ):
        if not 1 <= value <= largest:
            raise UsageError(f"{name} is {value}", hint=f"Supported: 1 to {largest}.")
    if options.page_size % 16:
        raise UsageError(f"--page-size is {options.page_size}", hint="Supported: multiples of 16.")
    max_num_seqs = min(options.max_num_seqs, options.max_num_batched_tokens)
    return Limits(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_logit_rows=max_num_seqs,
        page_size=options.page_size,
    )
