"""Replays an artifact's golden prompts on this host, in several ways that must agree."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import msgspec
import numpy as np

from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, VerificationError
from ingot.runtime.arrays import Float32
from ingot.runtime.llm import LLM

GOLDEN = "golden/golden.json"
# Tokens of a chunk: one prefill as large as fits, odd chunks, token by token. Prompts in chunks run
# side by side, those in one piece one after the other.
WAYS: dict[str, int | None] = {"prefill": None, "chunks": 7, "tokens": 1}
SHOWN = 5
# What to do about a failed replay of an artifact, and, in a compile, about that of a new one.
CHECK_FILES = "Check the files with `ingot verify`; if they are intact, compile the model again."
FAULT = "This is a fault of ingot: please report it, with the model and the options."
ROUNDED = (
    "Activations are rounded to int8 in groups, and an outlier leaves little to the others of its "
    "group.\nTry a smaller --group-size, --keep 'PATTERN=none' for matrices with outliers in them "
    "or in what they multiply, or --quantize none."
)
ROUNDED_CACHE = (
    "Keys and values are rounded to int8 by heads, and an outlier leaves little to the others of "
    "its head.\nTry --kv-dtype auto."
)
OVERFLOW = "Numbers of float16 end at 65504, and this model has larger ones.\nTry --dtype bfloat16."


class GoldenPosition(msgspec.Struct, forbid_unknown_fields=True):
    """The reference's likeliest tokens at a position with their log-probabilities, and that of
    the prompt's next token (None at the end)."""

    top: list[tuple[int, float]]
    next_logprob: float | None


class GoldenPrompt(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[int]
    positions: list[GoldenPosition]


class Golden(msgspec.Struct, forbid_unknown_fields=True):
    """`golden/golden.json`; `tolerance` bounds the error of a log-probability."""

    prompts: list[GoldenPrompt]
    tolerance: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A position whose likeliest token is not the reference's.

    `margin`: by how much the reference prefers its own token (a lower bound when ours is not
    among the tokens it lists). A near tie is a margin that the tolerance explains.
    """

    way: str
    prompt: int
    position: int
    expected: int
    got: int
    margin: float
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """What a replay found. `max_errors` are the largest |Δ log-probability| of each way.

    `bitwise_equal`: all ways gave the same bits.
    """

    num_prompts: int
    num_positions: int
    tolerance: float
    max_errors: dict[str, float]
    mismatches: tuple[Mismatch, ...]
    bitwise_equal: bool

    @property
    def max_error(self) -> float:
        return max(self.max_errors.values(), default=0.0)

    @property
    def faults(self) -> tuple[Mismatch, ...]:
        return tuple(m for m in self.mismatches if not m.near_tie)

    @property
    def passed(self) -> bool:
        # Written so that a nan fails.
        return self.max_error <= self.tolerance and not self.faults and self.bitwise_equal

    def raise_if_failed(self, hint: str = CHECK_FILES) -> None:
        """Raises VerificationError if the replay failed, and says what differs by how much."""
        if self.passed:
            return
        lines = [
            f"{way}: largest error {error:.3g}, tolerance {self.tolerance:.3g}"
            for way, error in self.max_errors.items()
        ]
        lines += [] if self.bitwise_equal else ["the ways differ from each other"]
        lines += [
            f"prompt {m.prompt} position {m.position} ({m.way}): token {m.got}, "
            f"expected {m.expected} by a margin of {m.margin:.3g}"
            for m in self.faults[:SHOWN]
        ]
        raise VerificationError(
            "the golden outputs are not reproduced on this host\n  " + "\n  ".join(lines),
            hint=hint,
        )


def compile_hint(artifact: Artifact, found: Verification) -> str:
    """What to do when the replay of a new artifact fails."""
    if artifact.manifest.numerics.dtype == "float16" and found.max_error == inf:
        return OVERFLOW
    rounded = {
        ROUNDED: artifact.manifest.numerics.quantization != "none",
        ROUNDED_CACHE: artifact.plan.kv_dtype == "int8",
    }
    # Rounding is the same in all ways.
    hints = [hint for hint, applies in rounded.items() if applies and found.bitwise_equal]
    return "\n".join(hints) or FAULT


def replay(artifact: Artifact) -> Verification:
    """Opens an artifact with room for the golden prompts only, and replays them.

    Raises ArtifactError if it has none, and what `LLM` raises.
    """
    longest = max(len(prompt.tokens) for prompt in read_golden(artifact).prompts)
    with LLM(artifact, max_model_len=longest) as llm:
        return verify(llm)


def verify(llm: LLM) -> Verification:
    """Replays the golden prompts of an opened artifact. Raises ArtifactError if it has none."""
    golden = read_golden(llm.artifact)
    first = _logits(llm, golden, None)
    # No more than two ways at a time: logits of long prompts are gigabytes.
    found = {
        way: _compare(way, golden, first if size is None else _logits(llm, golden, size), first)
        for way, size in WAYS.items()
    }
    return Verification(
        num_prompts=len(golden.prompts),
        num_positions=sum(len(prompt.tokens) for prompt in golden.prompts),
        tolerance=golden.tolerance,
        max_errors={way: each.max_error for way, each in found.items()},
        mismatches=tuple(mismatch for each in found.values() for mismatch in each.mismatches),
        bitwise_equal=all(each.bitwise_equal for each in found.values()),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """What one way gave, beside the golden outputs and beside the first way."""

    max_error: float
    mismatches: list[Mismatch]
    bitwise_equal: bool


def _compare(way: str, golden: Golden, found: list[Float32], first: list[Float32]) -> _Compared:
    error, mismatches, equal = 0.0, list[Mismatch](), True
    for index, (prompt, logits) in enumerate(zip(golden.prompts, found, strict=True)):
        # Not np.array_equal: a nan must not be taken for a difference between the ways.
        equal &= first[index].tobytes() == logits.tobytes()
        error = _worse(error, _max_error(prompt, logits))
        mismatches += _mismatches(way, index, prompt, logits, golden.tolerance)
    return _Compared(error, mismatches, equal)


def _logits(llm: LLM, golden: Golden, chunk_tokens: int | None) -> list[Float32]:
    prompts = [prompt.tokens for prompt in golden.prompts]
    if chunk_tokens is None:
        return [llm.logits(tokens) for tokens in prompts]
    return llm.batch_logits(prompts, chunk_tokens=chunk_tokens)


def read_golden(artifact: Artifact) -> Golden:
    """The artifact's golden outputs. Raises ArtifactError when they are missing or malformed."""
    if GOLDEN not in artifact.manifest.files:
        raise ArtifactError(f"{artifact.path} has no {GOLDEN}", hint="Compile it again.")
    try:
        golden = msgspec.json.decode(artifact.read(GOLDEN), type=Golden)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{GOLDEN}: {error}") from error
    if not golden.prompts or any(len(p.tokens) != len(p.positions) for p in golden.prompts):
        raise ArtifactError(f"{GOLDEN}: no prompt, or not one position for each token")
    vocab_size = artifact.manifest.model.vocab_size
    positions = [position for prompt in golden.prompts for position in prompt.positions]
    if not all(p.top and all(0 <= token < vocab_size for token, _ in p.top) for p in positions):
        raise ArtifactError(f"{GOLDEN}: a position without tokens, or with unknown ones")
    return golden


def _max_error(prompt: GoldenPrompt, logits: Float32) -> float:
    worst = 0.0
    for t, position in enumerate(prompt.positions):
        expected = list(position.top)
        if position.next_logprob is not None and t + 1 < len(prompt.tokens):
            expected.append((prompt.tokens[t + 1], position.next_logprob))
        got = logprobs_of(logits[t], [token for token, _ in expected])
        for ours, (_, theirs) in zip(got, expected, strict=True):
            worst = _worse(worst, abs(ours - theirs))
    return worst


def logprobs_of(row: Float32, tokens: list[int]) -> list[float]:
    """Log-probabilities of some tokens, in float64, from the logits [V] of all."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    found: list[float] = (wide[tokens] - np.log(np.exp(wide).sum())).tolist()
    return found


def _worse(a: float, b: float) -> float:
    """The larger of two errors; a nan is the largest of all."""
    return inf if a != a or b != b else max(a, b)


def _mismatches(
    way: str, index: int, prompt: GoldenPrompt, logits: Float32, tolerance: float
) -> list[Mismatch]:
    found = []
    for t, position in enumerate(prompt.positions):
        expected, best = position.top[0]
        got = int(logits[t].argmax())
        if got != expected:
            # A token that the reference does not list is less likely than all that it lists.
            margin = best - dict(position.top).get(got, position.top[-1][1])
            near = margin <= 2 * tolerance  # each of the two may be off by the tolerance
            found.append(Mismatch(way, index, t, expected, got, margin, near))
    return found
