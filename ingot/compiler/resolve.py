"""Resolves what was asked for into what is built: targets, dtype and limits without defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ingot.artifact.formats import Storage
from ingot.artifact.gpu import find_gpus
from ingot.artifact.host import host_flags
from ingot.artifact.plan import Limits
from ingot.artifact.target import CUDA_LEVELS, CUDA_REACHES, CUDA_TARGETS, Target, native_target
from ingot.compiler.golden import QUANTIZED_TOLERANCE, TOLERANCE
from ingot.compiler.options import CompileOptions, check_known
from ingot.compiler.quantization.choose import base_storage, int8_storage
from ingot.errors import UsageError
from ingot.models.config import ModelConfig

DTYPES = ("auto", "float32", "bfloat16")
KV_DTYPES = ("auto", "int8")
LONGEST_DYNAMIC = 1 << 20  # dynamic rotary frequencies stretch to whatever length is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is built: every choice made."""

    targets: tuple[Target, ...]
    dtype: str
    dtype_reason: str
    kv_dtype: str
    storage: Storage | None
    int8: Storage
    limits: Limits

    @property
    def quantized(self) -> bool:
        """Whether anything but rounding to `dtype` sets what is computed apart from the model."""
        return self.storage is not None or self.kv_dtype != self.dtype

    @property
    def tolerance(self) -> float:
        """The largest |log-probability| error that the compiled model may have."""
        return QUANTIZED_TOLERANCE if self.quantized else TOLERANCE[self.dtype]

    @property
    def stored_as(self) -> str:
        """How weights are stored, such as `bfloat16-int4-g32`."""
        return self.dtype + (f"-{self.storage.label}" if self.storage else "")


def resolve(options: CompileOptions, config: ModelConfig) -> Resolved:
    """Every choice that the options and the model leave open. Raises UsageError."""
    if options.dump_dir is not None:
        make_folder(options.dump_dir)
    dtype = resolve_dtype(options.dtype, config)
    check_known("KV dtype", options.kv_dtype, KV_DTYPES)
    return Resolved(
        targets=resolve_targets(options),
        dtype=dtype,
        dtype_reason=dtype_reason(options.dtype, dtype, config.checkpoint_dtype),
        kv_dtype=dtype if options.kv_dtype == "auto" else options.kv_dtype,
        storage=base_storage(options, config),
        int8=int8_storage(options, config),
        limits=resolve_limits(options, config),
    )


def resolve_targets(options: CompileOptions) -> tuple[Target, ...]:
    """What the options name, each once. Raises UsageError."""
    check_known("CUDA reach", options.cuda_reach, CUDA_REACHES)
    named = dict.fromkeys(map(resolve_target, options.targets))
    return tuple(replace(target, reach=options.cuda_reach) for target in named)


def resolve_target(name: str) -> Target:
    """The target of that name; `cpu:native` and `cuda:native` are those of this host.

    Raises UsageError for an unknown name, and where this host has no such device.
    """
    if name == "cpu:native":
        return native_target(host_flags())
    if name != "cuda:native":
        return Target.parse(name)
    gpus = find_gpus()
    levels = [level for gpu in gpus for level in sorted(gpu.flags) if level in CUDA_LEVELS]
    if not levels:
        shown = ", ".join(".".join(map(str, gpu.capability)) for gpu in gpus) or "none"
        raise UsageError(
            f"cuda:native needs a GPU that ingot builds for; compute capabilities here: {shown}",
            hint=f"No GPU is needed to name one: {', '.join(CUDA_TARGETS)}.",
        )
    return Target("cuda", levels[0])


def make_folder(path: Path) -> None:
    """Makes the folder of `--dump` before there is anything to write. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="--dump needs a folder."
        ) from error


def resolve_dtype(dtype: str, config: ModelConfig) -> str:
    """The dtype of weights and matrix products; "auto" is bfloat16 except for float32 checkpoints.

    Raises:
        UsageError: a dtype that is not supported.
    """
    check_known("dtype", dtype, DTYPES)
    if dtype == "auto":
        return "float32" if config.checkpoint_dtype == "float32" else "bfloat16"
    return dtype


def dtype_reason(asked: str, dtype: str, checkpoint: str) -> str:
    """The dtype that was chosen and why, as the summary says it."""
    why = "as asked" if asked != "auto" else f"for a {checkpoint} checkpoint"
    if (checkpoint, dtype) == ("float16", "bfloat16"):
        why += ", which rounds its weights from 11 bits to 8; --dtype float32 keeps them"
    return f"{dtype}, {why}"


def resolve_limits(options: CompileOptions, config: ModelConfig) -> Limits:
    """The limits of the artifact.

    Raises:
        UsageError: an option that is out of range.
    """
    longest = config.max_position_embeddings
    max_model_len = longest if options.max_model_len is None else options.max_model_len
    if config.rope.type == "dynamic":
        longest = LONGEST_DYNAMIC
    for name, value, largest in (
        ("--max-model-len", max_model_len, longest),
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
