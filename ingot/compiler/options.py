"""The options of a compile, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ingot.artifact.manifest import Manifest
from ingot.artifact.matrices import StoredMatrix
from ingot.artifact.programs import PROGRAMS
from ingot.errors import UsageError
from ingot.files import as_path

# Called as progress(stage, detail, fraction); fraction is None while the end is unknown.
Progress = Callable[[str, str, float | None], None]


# Gets the complete artifact before it has its name. Returns its mean golden error, or None if
# this host cannot run it. If it raises, the artifact does not appear.
Check = Callable[[Path], float | None]


MOST_POSITIONS = 65536  # of text that a compile scores


def silent(stage: str, detail: str, fraction: float | None) -> None:
    """A progress callback that says nothing."""


def _is(kind: type | tuple[type, ...], value: object) -> Any:
    # A bool is an int to Python; as a number it is a mistake.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else _is((Sequence,), value)
    return tuple(_is(str, item) for item in given)


# What an option takes: `read` makes it of what was given, or raises TypeError.
_FLAG = {"read": partial(_is, bool), "wanted": "True or False"}
_NUMBER = {"read": lambda value: float(_is((int, float), value)), "wanted": "a number"}
_INTEGER = {"read": partial(_is, int), "wanted": "an integer"}
_TEXT = {"read": partial(_is, str), "wanted": "a string"}
_TEXT_OR_INTEGER = {
    "read": lambda value: str(_is((str, int), value)),
    "wanted": "a string or an integer",
}
_TEXTS = {"read": _texts, "wanted": "a string or a list of strings"}
_PATH = {"read": as_path, "wanted": "a path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of a compile.

    A path can be given as a string, and so can a list of one string.

    Attributes:
        library: whose module is compiled: "ingot", the one of a family, or "transformers", the one
            that the class of that name has there.
        targets: target names, `cpu:native` for this host.
        programs: what the artifact can do: "step" advances text, "hidden" gives the hidden states
            that `LLM.embed` pools, "encode" a vector or scores of a whole text, and "tokens" a
            vector for each of its tokens. Empty for what the model is for.
        dtype: "float32", "bfloat16", "float16" (for GPUs alone), or "auto": that of the
            checkpoint, but bfloat16 instead of float16 where a target is no GPU. Of float16
            weights bfloat16 drops 3 bits, which float32 keeps.
        quantize: "none", or how much weight matrices may take: "int8", "int6", "int5" and "int4"
            stand for the bytes of that one format, "auto" for a budget of its own. Each matrix is
            stored as pays most, by what errors in it were measured to cost; with `group_size` all
            are stored in the one format.
        bits: with "auto", the mean bits of a weight. max_bytes: of all weights instead. Without
            either, `max_kl` says what they may cost, by default 0.05.
        activations: what matrices in integers multiply: "int8", "int16", or "auto": int16 where
            int8 was measured to cost much. "" is "auto" where formats are chosen by measurement,
            and else "int8".
        group_size: columns that share a scale: "32", "64", "128", or for int8 also "channel", a
            whole row. "" leaves that to measurement. The last group of a row has what is left.
        keep: exceptions, "PATTERN=none|bf16|int8|int6|int5|int4", by the names of the
            matrices of the model.
        calibrate: a text in UTF-8. Linears are rounded so that their results on it change least.
        dequantize: of a checkpoint that stores matrices quantized take the numbers that these stand
            for; without it an artifact keeps its integers.
        kv_dtype: how keys and values are stored: "auto", like activations, or "int8", with a scale
            for every token and head.
        cuda_reach: which drivers load binaries for GPUs: "wide", those of CUDA 12 and later, or
            "new", those of the newest assembler that Triton brings and later.
        quality: measure what the number formats cost on text, and refuse those that ruin the model.
        quality_text: a text in UTF-8 to measure on; None takes texts of several kinds, and where
            the model has a chat template a conversation.
        quality_positions: tokens of text that are scored.
        max_kl: the mean KL to the checkpoint's own numbers that is allowed, in nats. None refuses
            only what ruins a model, 0.5.
        max_model_len: longest sequence; None takes the model's own maximum.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step.
        page_size: tokens of one page of the KV cache.
        verify_passes: run the model before and after every pass, lowering, rewriting and grouping.
        dump_dir: where to write the graph after every pass.
        disable_passes: names of optional passes, and of rules of grouping, to leave out.

    Raises UsageError, which names the field, its value and what it must be. The compile itself
    checks whether values suit the model and each other.
    """

    library: str = field(default="ingot", metadata=_TEXT)
    targets: tuple[str, ...] = field(default=("cpu:native",), metadata=_TEXTS)
    programs: tuple[str, ...] = field(default=(), metadata=_TEXTS)
    dtype: str = field(default="auto", metadata=_TEXT)
    quantize: str = field(default="none", metadata=_TEXT)
    bits: float | None = field(default=None, metadata=_NUMBER)
    max_bytes: int | None = field(default=None, metadata=_INTEGER)
    activations: str = field(default="", metadata=_TEXT)
    group_size: str | int = field(default="", metadata=_TEXT_OR_INTEGER)
    keep: tuple[str, ...] = field(default=(), metadata=_TEXTS)
    calibrate: Path | None = field(default=None, metadata=_PATH)
    dequantize: bool = field(default=False, metadata=_FLAG)
    kv_dtype: str = field(default="auto", metadata=_TEXT)
    cuda_reach: str = field(default="wide", metadata=_TEXT)
    quality: bool = field(default=True, metadata=_FLAG)
    quality_text: Path | None = field(default=None, metadata=_PATH)
    quality_positions: int = field(default=512, metadata=_INTEGER)
    max_kl: float | None = field(default=None, metadata=_NUMBER)
    max_model_len: int | None = field(default=None, metadata=_INTEGER)
    max_num_seqs: int = field(default=64, metadata=_INTEGER)
    max_num_batched_tokens: int = field(default=512, metadata=_INTEGER)
    page_size: int = field(default=16, metadata=_INTEGER)
    verify_passes: bool = field(default=False, metadata=_FLAG)
    dump_dir: Path | None = field(default=None, metadata=_PATH)
    disable_passes: tuple[str, ...] = field(default=(), metadata=_TEXTS)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None and option.default is None:
                continue
            try:
                object.__setattr__(self, option.name, option.metadata["read"](value))
            except TypeError:
                none = " or None" if option.default is None else ""
                _refuse(option.name, value, option.metadata["wanted"] + none)
        if not 1 <= self.quality_positions <= MOST_POSITIONS:
            _refuse("quality_positions", self.quality_positions, f"from 1 to {MOST_POSITIONS}")
        if self.max_kl is not None and not self.max_kl >= 0:
            _refuse("max_kl", self.max_kl, "a number from 0 on")
        if self.bits is not None and not 0 < self.bits <= 32:
            _refuse("bits", self.bits, "above 0, at most 32")
        if self.max_bytes is not None and not self.max_bytes > 0:
            _refuse("max_bytes", self.max_bytes, "above 0")
        if not self.targets:
            _refuse("targets", self.targets, "at least one target, such as 'cpu:native'")
        if unknown := [name for name in self.programs if name not in PROGRAMS]:
            _refuse("programs", unknown[0], f"of {', '.join(PROGRAMS)}")
        # In one order, so that the same programs give the same artifact.
        programs = tuple(name for name in PROGRAMS if name in self.programs)
        object.__setattr__(self, "programs", programs)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise UsageError(f"{name} is {value!r:.80}", hint=f"{name} must be {wanted}.")


AUTO = "auto"
ACTIVATIONS = ("int8", "int16", AUTO)


def activations_of(options: CompileOptions) -> str:
    """How rows are rounded that integers multiply: int8, int16, or auto."""
    return options.activations or (AUTO if chooses_formats(options) else "int8")


def chooses_formats(options: CompileOptions) -> bool:
    """Returns whether measurement says how each matrix is stored, and not the options alone."""
    return options.quantize == AUTO or (options.quantize != "none" and not options.group_size)


def is_measured(options: CompileOptions) -> bool:
    """Returns whether formats depend on what rounding costs a model."""
    return chooses_formats(options) or activations_of(options) == AUTO


def check_known(what: str, value: str, supported: Sequence[str]) -> None:
    """Raises UsageError for a value that is none of those."""
    if value not in supported:
        raise UsageError(f"unknown {what} {value!r}", hint=f"Supported: {', '.join(supported)}.")


@dataclass(frozen=True, slots=True)
class Better:
    """The next finer way to store a model: options of a compile, and its bytes of weights."""

    options: str
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a compile: the artifact, how long each stage took, and its size in bytes.

    `dtype_reason` says what is computed in and why, and `kept` which matrices are stored in the
    integers of the checkpoint. `golden_error` is the mean |error| of golden log-probabilities on
    this host, None where they were not replayed. `better` is what costs less quality, where the
    formats cost much. `matrices` says how each is stored, where some are in integers, and `choice`
    what was chosen by measurement. `ignored` is what the model's files have and what changed
    nothing.
    """

    artifact: Path
    manifest: Manifest
    seconds: float
    stage_seconds: dict[str, float]
    dtype_reason: str
    bytes_total: int
    weight_bytes: int
    golden_error: float | None = None
    matrices: tuple[StoredMatrix, ...] = ()
    choice: str = ""
    kept: tuple[str, ...] = ()
    better: Better | None = None
    ignored: tuple[str, ...] = ()


@dataclass(slots=True)
class Clock:
    """Announces stages and measures how long they take, in seconds."""

    progress: Progress
    started: float = field(default_factory=time.monotonic)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since the clock was made."""
        return time.monotonic() - self.started

    @contextmanager
    def stage(self, name: str, detail: str) -> Iterator[None]:
        """Announces a stage, and its end with a fraction of 1."""
        begun = time.monotonic()
        self.progress(name, detail, None)
        yield
        before = self.stage_seconds.get(name, 0.0)
        self.stage_seconds[name] = before + time.monotonic() - begun
        self.progress(name, detail, 1.0)

    @contextmanager
    def stage_over(
        self, name: str, detail: str, sizes: Mapping[str, int]
    ) -> Iterator[Callable[[str], None]]:
        """A stage that goes through parameters of those sizes, and calls what this gives with the
        name of each that it begins. Its fraction is the share of those that it began before."""
        left, whole = dict(sizes), max(sum(sizes.values()), 1)

        def began(matrix: str) -> None:
            # Of a stack, each matrix has its number behind the name.
            parameter = matrix if matrix in left else matrix.rpartition(".")[0]
            if parameter in left:
                self.progress(name, detail, 1 - sum(left.values()) / whole)
                del left[parameter]

        with self.stage(name, detail):
            yield began
