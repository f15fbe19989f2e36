"""Output of an export: its files, and what is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.folder import ANOTHER, check_writable, names_at
from ingot.artifact.folder import refuse_existing as refuse_existing_folder
from ingot.errors import UsageError
from ingot.models.file_names import CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_FILES

MODEL, PLAIN = "model.onnx", "plain.onnx"
DATA = f"{MODEL}.data"
GENAI_CONFIG = "genai_config.json"
NAMES = {MODEL, PLAIN, DATA, GENAI_CONFIG, CONFIG, SPECIAL_TOKENS_MAP, *TOKENIZER_FILES}


def check_output(out: Path, *, force: bool) -> None:
    """Raises UsageError if no export can be written to `out`, or one is there and not to be
    replaced."""
    check_writable(out, refuse_foreign)
    if not force:
        refuse_existing_folder(out)


def refuse_foreign(path: Path) -> None:
    """Raises UsageError if anything but an export is at `path`: it could be the user's own."""
    names = names_at(path)
    foreign = sorted(names - NAMES)
    if foreign or (names and MODEL not in names):
        what = f"holds {foreign[0]}" if foreign and foreign[0] else "exists"
        raise UsageError(f"{path} {what}, and is not an export to ONNX", hint=ANOTHER)
