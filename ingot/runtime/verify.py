"""Replays an artifact's golden prompts on this host, in several ways that must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from ingot.artifact.golden import GOLDEN, Golden, GoldenPrompt, Tolerance, tolerance_of
from ingot.artifact.golden_error import GoldenDifference, difference
from ingot.artifact.golden_rows import GoldenRow, GoldenRows, rows_error
from ingot.artifact.programs import STEP, TOKENS
from ingot.artifact.reader import Artifact
from ingot.errors import VerificationError
from ingot.runtime.arrays import Float32
from ingot.runtime.embedding import PooledRows, RunsTexts
from ingot.runtime.encoder import EncodedText, TextEncoder
from ingot.runtime.goldens import AnyGolden, number_format, read_golden, read_rows
from ingot.runtime.llm import LLM
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles

# Tokens of a chunk: one prefill as large as fits, odd chunks, token by token. Prompts in chunks run
# side by side, those in one piece one after the other.
WAYS: dict[str, int | None] = {"prefill": None, "chunks": 7, "tokens": 1}
SHOWN = 5
# What to do about a failed replay of an artifact, and, in a compile, about that of a new one.
CHECK_FILES = "Check the files with `ingot verify`; if they are intact, compile the model again."
FAULT = "This is a fault of ingot: please report it, with the model and the options."
OVERFLOW = "Numbers of float16 end at 65504, and this model has larger ones.\nTry --dtype bfloat16."


OF_ONE_ROW, LEAST = 8.0, 1e-5
NO_LOGITS = Tolerance(0.0, 0.0, 0.0, 0.0)  # of models that give none


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
class RowsDifference:
    """Error of a program's rows against the golden ones, and its tolerance.

    `error` is the relative one, which is judged; `largest` and `cosine` are as of `RowsError`.
    """

    error: float
    allowed: float
    bitwise_equal: bool
    largest: float = 0.0
    cosine: float = 1.0

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed and self.bitwise_equal

    def told(self, program: str) -> str:
        """Describes the difference in words."""
        error = (
            f"relative error {self.error:.3g}, tolerance {self.allowed:.3g}; "
            f"largest error {self.largest:.3g}, cosine {self.cosine:.6f}"
        )
        return f"{program}: {error}" + ("" if self.bitwise_equal else "; the ways differ")


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a replay.

    Attributes:
        number_format: of the artifact, see `format_name`.
        allowed: what that format may be off by.
        differences: how far each way is from the goldens.
        bitwise_equal: all ways gave the same bits.
        other_tokens: the prompts whose text this artifact's tokenizer turns into other tokens.
        programs: how far the rows are of each program that gives no logits, by its name.
    """

    num_prompts: int
    num_positions: int
    number_format: str
    allowed: Tolerance
    differences: dict[str, GoldenDifference]
    mismatches: tuple[Mismatch, ...]
    bitwise_equal: bool
    other_tokens: tuple[int, ...] = ()
    programs: dict[str, RowsDifference] = field(default_factory=dict)

    @property
    def mean_error(self) -> float:
        """The mean |error| of a log-probability, in the way where it is largest."""
        return max((each.mean for each in self.differences.values()), default=0.0)

    @property
    def error(self) -> float:
        """What tells best how far it is off: the mean error, or the relative one of rows."""
        rows = [each.error for each in self.programs.values()]
        return self.mean_error if self.differences else max(rows, default=0.0)

    @property
    def max_errors(self) -> dict[str, float]:
        """The largest |error| of a log-probability, by way."""
        return {way: each.largest for way, each in self.differences.items()}

    @property
    def max_error(self) -> float:
        return max(self.max_errors.values(), default=0.0)

    @property
    def tolerance(self) -> float:
        """The largest |error| that is allowed."""
        return self.allowed.largest

    @property
    def kl(self) -> float:
        """The mean divergence from the reference, in nats, in the way where it is largest."""
        return max((each.kl for each in self.differences.values()), default=0.0)

    @property
    def faults(self) -> tuple[Mismatch, ...]:
        return tuple(m for m in self.mismatches if not m.near_tie)

    @property
    def passed(self) -> bool:
        within = all(each.within(self.allowed) for each in self.differences.values())
        rows_are_right = all(each.passed for each in self.programs.values())
        is_right = within and rows_are_right and self.bitwise_equal
        return is_right and not self.faults and not self.other_tokens

    def raise_if_failed(self, hint: str = CHECK_FILES) -> None:
        """Raises VerificationError if the replay failed, and says what differs by how much."""
        if self.passed:
            return
        lines = [_told(way, each, self.allowed) for way, each in self.differences.items()]
        lines += [] if self.bitwise_equal else ["the ways differ from each other"]
        lines += [each.told(name) for name, each in self.programs.items() if not each.passed]
        lines += [
            f"prompt {m.prompt} position {m.position} ({m.way}): token {m.got}, "
            f"expected {m.expected} by a margin of {m.margin:.3g}"
            for m in self.faults[:SHOWN]
        ]
        lines += [
            f"prompt {index}: the tokenizer gives other tokens for its text"
            for index in self.other_tokens[:SHOWN]
        ]
        raise VerificationError(
            f"the golden outputs are not reproduced on this host ({self.number_format})\n  "
            + "\n  ".join(lines),
            hint=hint,
        )


def _told(way: str, found: GoldenDifference, allowed: Tolerance) -> str:
    parts = (
        f"mean error {found.mean:.3g}, tolerance {allowed.mean:.3g}",
        f"largest error {found.largest:.3g}, tolerance {allowed.largest:.3g}",
        f"KL {found.kl:.3g}, tolerance {allowed.kl:.3g}",
    )
    return f"{way}: {'; '.join(parts)}"


def compile_hint(artifact: Artifact, found: Verification) -> str:
    """Hint for a new artifact whose replay fails."""
    if artifact.manifest.numerics.dtype == "float16" and found.max_error == inf:
        return OVERFLOW
    return FAULT


def replay(artifact: Artifact, golden: AnyGolden | None = None) -> Verification:
    """Opens an artifact with room for the golden prompts only, and replays them.

    They are those in the artifact, or `golden`, which fits it; see `check_fit`. Raises
    ArtifactError if it has none, and what `LLM` raises.
    """
    if isinstance(golden, GoldenRows) or artifact.manifest.encodes:
        assert not isinstance(golden, Golden), "it was checked"
        return replay_texts(artifact, golden)
    golden = golden or read_golden(artifact)
    longest = max(len(prompt.positions) for prompt in golden.prompts)
    with LLM(artifact, max_model_len=longest) as llm:
        return verify(llm, golden)


def replay_text(model: LLM) -> None:
    """Replays the shortest golden text. Raises VerificationError where its row is far off."""
    main = model.artifact.manifest.main
    golden = read_rows(model.artifact, main)
    prompt = min(golden.prompts, key=lambda prompt: len(prompt.tokens))
    assert model.texts is not None, "it reads texts"
    row = _golden_rows(model.texts, main, [EncodedText(prompt.tokens)])[0].astype(np.float64)
    error = float(np.abs(row - prompt.row).max() / np.abs(prompt.row).max())
    # What is allowed is of all rows together; a number of one of them may be further off.
    most = OF_ONE_ROW * max(allowed_of(golden, model.artifact), LEAST)
    if not error <= most:
        raise VerificationError(
            f"a golden text is not reproduced on this host ({number_format(model.artifact)}): "
            f"largest error {error:.3g}, tolerance {most:.3g}",
            hint=CHECK_FILES,
        )


def replay_texts(artifact: Artifact, golden: GoldenRows | None = None) -> Verification:
    """Replays golden texts with an artifact that reads whole texts: alone and in company. They are
    those of all its programs, or `golden`."""
    programs = artifact.target.programs
    goldens = [golden] if golden else [read_rows(artifact, name) for name in programs]
    encoder = TextEncoder(artifact)
    try:
        found = {each.program: _texts_difference(encoder, each, artifact) for each in goldens}
    finally:
        encoder.close()
    prompts = next(each.prompts for each in goldens)
    tokenizer = TokenizerFiles(artifact).tokenizer if any_text(prompts) else None
    return Verification(
        num_prompts=len(prompts),
        num_positions=len(prompts),
        number_format=number_format(artifact),
        allowed=NO_LOGITS,
        differences={},
        mismatches=(),
        bitwise_equal=all(each.bitwise_equal for each in found.values()),
        other_tokens=_other_tokens(tokenizer, prompts),
        programs=found,
    )


def _texts_difference(
    encoder: TextEncoder, golden: GoldenRows, artifact: Artifact
) -> RowsDifference:
    """Compares a program's rows of golden texts, computed in ways that must agree."""
    texts = [EncodedText(prompt.tokens) for prompt in golden.prompts]
    rows = partial(_golden_rows, encoder, golden.program)
    alone = [rows([text])[0] for text in texts]
    same = all(
        row.tobytes() == other.tobytes()
        for each in (rows(texts), rows(texts[::-1])[::-1])
        for row, other in zip(alone, each, strict=True)
    )
    return rows_difference(alone, golden, artifact, same)


def _golden_rows(texts: RunsTexts, program: str, given: Sequence[EncodedText]) -> Sequence[Float32]:
    """The row that goldens hold of each text: its own, or that of its last token."""
    if program == TOKENS.name:
        return [rows[-1] for rows in texts.run_tokens(given)]
    return [*texts.run(given)]


def rows_difference(
    found: Sequence[Float32], golden: GoldenRows, artifact: Artifact, same: bool
) -> RowsDifference:
    """Compares rows with the golden ones; `same` tells whether all ways gave the same bits."""
    error = rows_error(found, golden)
    allowed = allowed_of(golden, artifact)
    return RowsDifference(error.relative, allowed, same, error.largest, error.cosine)


def allowed_of(golden: GoldenRows, artifact: Artifact) -> float:
    """The relative error that golden rows allow an artifact."""
    return tolerance_of(golden.tolerances, number_format(artifact), "the file").allowed


def verify(llm: LLM, golden: Golden | None = None) -> Verification:
    """Replays golden prompts with an opened artifact; by default those in the artifact.

    Raises ArtifactError if it has none, and GoldenError for goldens without its number format.
    """
    golden = golden or read_golden(llm.artifact)
    name = number_format(llm.artifact)
    allowed = tolerance_of(golden.tolerances, name, "the file")
    first = _logits(llm, golden, None)
    # No more than two ways at a time: logits of long prompts are gigabytes.
    found = {
        way: _compare(
            way, golden, first if size is None else _logits(llm, golden, size), first, allowed
        )
        for way, size in WAYS.items()
    }
    return Verification(
        num_prompts=len(golden.prompts),
        num_positions=sum(len(prompt.scored) for prompt in golden.prompts),
        number_format=name,
        allowed=allowed,
        differences={way: each.difference for way, each in found.items()},
        mismatches=tuple(mismatch for each in found.values() for mismatch in each.mismatches),
        bitwise_equal=all(each.bitwise_equal for each in found.values()),
        other_tokens=_other_tokens(
            llm.get_tokenizer() if any_text(golden.prompts) else None, golden.prompts
        ),
        programs={name: _rows_difference(llm, name) for name in _programs_of_rows(llm)},
    )


def _programs_of_rows(llm: LLM) -> list[str]:
    """The programs whose golden rows fit into the model that is open."""
    names = [name for name in llm.artifact.target.programs if name != STEP.name]
    fitting = []
    for name in names:
        longest = max(len(prompt.tokens) for prompt in read_rows(llm.artifact, name).prompts)
        fitting += [name] if longest <= llm.max_model_len else []
    return fitting


def _rows_difference(llm: LLM, program: str) -> RowsDifference:
    """Compares a program's rows for its golden prompts, computed in ways that must agree."""
    golden = read_rows(llm.artifact, program)
    prompts = [prompt.tokens for prompt in golden.prompts]
    found = {}
    for way, size in WAYS.items():
        pools = [PooledRows(("last",), len(tokens)) for tokens in prompts]
        llm.run_pools(program, prompts, pools, chunk_tokens=size)
        found[way] = [pool.vector(normalize=False) for pool in pools]
    first, *others = found.values()
    same = all(
        row.tobytes() == other.tobytes()
        for each in others
        for row, other in zip(first, each, strict=True)
    )
    return rows_difference(first, golden, llm.artifact, same)


def replay_shortest(llm: LLM) -> None:
    """Replays the shortest golden prompt as one prefill: a quick look at a model just opened.

    Does nothing where no golden prompt fits. Raises VerificationError for a log-probability that is
    further off than any may be, and ArtifactError for goldens that are malformed.
    """
    if llm.artifact.manifest.encodes:
        replay_text(llm)
        return
    if GOLDEN not in llm.artifact.manifest.files:
        return
    golden = read_golden(llm.artifact)
    prompt = min(golden.prompts, key=lambda prompt: len(prompt.positions))
    if len(prompt.positions) > llm.max_model_len:
        return
    name = number_format(llm.artifact)
    allowed = tolerance_of(golden.tolerances, name, GOLDEN)
    found = difference([prompt], [llm.logits(prompt.tokens, first=prompt.first)])
    # Its mean says little: the mean that is allowed is one over many prompts.
    if not found.largest <= allowed.largest:
        raise VerificationError(
            f"a golden prompt is not reproduced on this host ({name}): largest error "
            f"{found.largest:.3g}, tolerance {allowed.largest:.3g}",
            hint=CHECK_FILES,
        )


def any_text(prompts: Sequence[GoldenPrompt | GoldenRow]) -> bool:
    """Tells whether a prompt was given as text."""
    return any(prompt.text is not None for prompt in prompts)


def _other_tokens(
    tokenizer: Tokenizer | None, prompts: Sequence[GoldenPrompt | GoldenRow]
) -> tuple[int, ...]:
    """The prompts with a text that gives other tokens than theirs."""
    if tokenizer is None:
        return ()
    return tuple(
        index
        for index, prompt in enumerate(prompts)
        if prompt.text is not None and tokenizer.encode(prompt.text) != prompt.given_tokens
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Result of one way, beside the golden outputs and beside the first way."""

    difference: GoldenDifference
    mismatches: list[Mismatch]
    bitwise_equal: bool


def _compare(
    way: str, golden: Golden, found: list[Float32], first: list[Float32], allowed: Tolerance
) -> _Compared:
    mismatches, equal = list[Mismatch](), True
    for index, (prompt, logits) in enumerate(zip(golden.prompts, found, strict=True)):
        # Not np.array_equal: a nan must not be taken for a difference between the ways.
        equal &= first[index].tobytes() == logits.tobytes()
        mismatches += _mismatches(way, index, prompt, logits, allowed.largest)
    return _Compared(difference(golden.prompts, found), mismatches, equal)


def _logits(llm: LLM, golden: Golden, chunk_tokens: int | None) -> list[Float32]:
    """Logits of the scored positions of each prompt."""
    prompts = [prompt.tokens for prompt in golden.prompts]
    first = [prompt.first for prompt in golden.prompts]
    if chunk_tokens is None:
        return [llm.logits(tokens, first=n) for tokens, n in zip(prompts, first, strict=True)]
    return llm.batch_logits(prompts, chunk_tokens=chunk_tokens, first=first)


def _mismatches(
    way: str, index: int, prompt: GoldenPrompt, logits: Float32, tolerance: float
) -> list[Mismatch]:
    found = []
    for t, (position, row) in enumerate(zip(prompt.scored, logits, strict=True), prompt.first):
        expected, best = position.top[0]
        got = int(row.argmax())
        if got != expected:
            # A token that the reference does not list is less likely than all that it lists.
            margin = best - dict(position.top).get(got, position.top[-1][1])
            near = margin <= 2 * tolerance  # each of the two may be off by the tolerance
            found.append(Mismatch(way, index, t, expected, got, margin, near))
    return found
