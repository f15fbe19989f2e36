"""The goldens that an artifact is held against: its own, or those in a file."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.golden import (
    GOLDEN,
    Golden,
    check_model,
    decode_golden,
    format_name,
    tolerance_of,
)
from ingot.artifact.golden_rows import GoldenRows, decode_rows, rows_file
from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, GoldenError, TokenizerError, UsageError
from ingot.files import read_regular

MAX_BYTES = 1 << 30  # of a file of goldens
TOKENIZER = "tokenizer/tokenizer.json"


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
    if GOLDEN not in artifact.manifest.files:
        raise ArtifactError(f"{artifact.path} has no {GOLDEN}", hint="Compile it again.")
    try:
        golden = decode_golden(artifact.read(GOLDEN), GOLDEN)
        check_model(golden, artifact.manifest, GOLDEN)
        tolerance_of(golden.tolerances, number_format(artifact), GOLDEN)
    except GoldenError as error:
        raise ArtifactError(error.found, hint="Compile it again.") from error
    return golden


def read_rows(artifact: Artifact, program: str) -> GoldenRows:
    """The golden rows of a program. Raises ArtifactError when they are missing or malformed."""
    name = rows_file(program)
    if name not in artifact.manifest.files:
        raise ArtifactError(f"{artifact.path} has no {name}", hint="Compile it again.")
    try:
        return decode_rows(artifact.read(name), name)
    except GoldenError as error:
        raise ArtifactError(error.found, hint="Compile it again.") from error


def golden_file(path: Path) -> Golden:
    """The goldens in a file. Raises GoldenError if it cannot be read or is no file of goldens."""
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise GoldenError(
            f"{path} cannot be read: {error.strerror}",
            hint="Give a file that `ingot golden record` wrote.",
        ) from error
    return decode_golden(data, str(path))


def check_fit(golden: Golden, path: Path, artifact: Artifact) -> None:
    """Checks that the goldens of a file can be replayed with an artifact.

    Raises:
        GoldenError: they are of another model; the artifact is of a number format that they lack,
            or too short for their prompts.
        TokenizerError: a prompt has a text, and the artifact no tokenizer.
    """
    manifest = artifact.manifest
    check_model(golden, manifest, str(path))
    tolerance_of(golden.tolerances, number_format(artifact), str(path))
    for index, prompt in enumerate(golden.prompts):
        if len(prompt.positions) > manifest.limits.max_model_len:
            raise GoldenError(
                f"prompt {index} of {path} has {len(prompt.positions)} tokens, and {artifact.path} "
                f"takes {manifest.limits.max_model_len}",
                hint="Compile with a larger --max-model-len, or record shorter prompts.",
            )
    if TOKENIZER not in manifest.files and any(
        prompt.text is not None for prompt in golden.prompts
    ):
        raise TokenizerError(
            f"{artifact.path} has no tokenizer, and {path} has prompts as text",
            hint="Compile from a directory with tokenizer.json, or record prompts as tokens.",
        )
