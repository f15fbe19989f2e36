"""The goldens that an artifact is held against: its own, or those in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingot.artifact.golden import (
    GOLDEN,
    Golden,
    GoldenPrompt,
    check_model,
    decode_golden,
    format_name,
    tolerance_of,
)
from ingot.artifact.golden_rows import GoldenRow, GoldenRows, are_rows, decode_rows, rows_file
from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, GoldenError, TokenizerError, UsageError
from ingot.files import read_regular

MAX_BYTES = 1 << 30  # of a file of goldens
TOKENIZER = "tokenizer/tokenizer.json"
AnyGolden = Golden | GoldenRows


def number_format(artifact: Artifact) -> str:
    """The name by which goldens know how an artifact stores numbers."""
    return format_name(artifact.manifest.numerics, int8_cache=artifact.plan.kv_dtype == "int8")


def read_golden(artifact: Artifact) -> Golden:
    """The artifact's golden outputs. Raises ArtifactError when they are missing or malformed."""
    if artifact.manifest.encodes:
        raise UsageError(
            f"{artifact.path} reads whole texts, and gives no logits",
            hint="`ingot verify` replays its golden texts.",
        )
    with _of_artifact(artifact, GOLDEN):
        golden = decode_golden(artifact.read(GOLDEN), GOLDEN)
        _check(golden, artifact, GOLDEN)
    return golden


def read_rows(artifact: Artifact, program: str) -> GoldenRows:
    """The golden rows of a program. Raises ArtifactError when they are missing or malformed."""
    name = rows_file(program)
    with _of_artifact(artifact, name):
        golden = decode_rows(artifact.read(name), name)
        _check(golden, artifact, name)
    return golden


@contextmanager
def _of_artifact(artifact: Artifact, name: str) -> Iterator[None]:
    """Reads goldens of an artifact inside. Raises ArtifactError for what is wrong with them."""
    if name not in artifact.manifest.files:
        raise ArtifactError(f"{artifact.path} has no {name}", hint="Compile it again.")
    try:
        yield
    except GoldenError as error:
        raise ArtifactError(error.found, hint="Compile it again.") from error


def golden_file(path: Path) -> AnyGolden:
    """The goldens in a file. Raises GoldenError if it cannot be read or is no file of goldens."""
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise GoldenError(
            f"{path} cannot be read: {error.strerror}",
            hint="Give a file that `ingot golden record` wrote.",
        ) from error
    return decode_any(data, str(path))


def decode_any(data: bytes, where: str) -> AnyGolden:
    """Goldens of a model that generates, or of one that reads whole texts. Raises GoldenError."""
    return decode_rows(data, where) if are_rows(data) else decode_golden(data, where)


def _check(golden: AnyGolden, artifact: Artifact, where: str) -> None:
    """Raises GoldenError for goldens of another model, or without the artifact's number format."""
    check_model(golden.model, artifact.manifest, where)
    tolerance_of(golden.tolerances, number_format(artifact), where)


def check_fit(golden: AnyGolden, path: Path, artifact: Artifact) -> None:
    """Checks that the goldens of a file can be replayed with an artifact.

    Raises:
        GoldenError: they are of another model; the artifact is of a number format that they lack,
            or too short for their prompts.
        TokenizerError: a prompt has a text, and the artifact no tokenizer.
    """
    manifest, limits = artifact.manifest, artifact.manifest.limits
    _check(golden, artifact, str(path))
    if isinstance(golden, GoldenRows) != manifest.encodes:
        does = "reads whole texts" if manifest.encodes else "generates"
        raise GoldenError(
            f"{path} has goldens of another kind of model, and {artifact.path} {does}",
            hint="Record goldens of it: ingot golden record MODEL_DIR -o FILE",
        )
    if isinstance(golden, GoldenRows) and golden.program not in artifact.target.programs:
        raise GoldenError(
            f"{path} has goldens of the program {golden.program}, and {artifact.path} has "
            f"{' and '.join(artifact.target.programs)}",
            hint="Compile it with that program, or record goldens of the model as it is now.",
        )
    longest = limits.max_model_len
    if manifest.encodes:
        longest = min(longest, limits.max_num_batched_tokens)
    prompts: Sequence[GoldenPrompt | GoldenRow] = golden.prompts
    for index, prompt in enumerate(prompts):
        if len(prompt.tokens) > longest:
            raise GoldenError(
                f"prompt {index} of {path} has {len(prompt.tokens)} tokens, and {artifact.path} "
                f"takes {longest}",
                hint="Compile with a larger --max-model-len, or record shorter prompts.",
            )
    if TOKENIZER not in manifest.files and any(prompt.text is not None for prompt in prompts):
        raise TokenizerError(
            f"{artifact.path} has no tokenizer, and {path} has prompts as text",
            hint="Compile from a directory with tokenizer.json, or record prompts as tokens.",
        )
