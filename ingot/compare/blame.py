"""Finds the part of a new artifact that makes its code gate fail."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.reader import Artifact
from ingot.compare.artifact_side import ArtifactSide
from ingot.compare.bisect_sides import bisect
from ingot.compare.reference_side import ReferenceSide
from ingot.errors import IngotError
from ingot.runtime.goldens import read_golden

WHAT = {
    "weights": "was given other weights than the model's",
    "plan": "computes something else than the model does",
    "kernel": "does not leave what its instructions make of its inputs",
    "memory": "reads what was overwritten",
}


def blame(folder: Path, model_dir: Path) -> str:
    """The first kernel of an artifact in its unfinished folder that is at fault, in words; "" where
    none can be found."""
    try:
        artifact = Artifact.open(folder, unfinished=True)
        subject = ArtifactSide(str(folder), artifact)
        longest = artifact.manifest.limits.max_model_len
        reference = ReferenceSide(str(model_dir), model_dir, longest)
        prompts = [prompt.tokens for prompt in read_golden(artifact).prompts]
        try:
            (bisection,) = bisect(subject, reference, prompts)
        finally:
            subject.close()
            reference.close()
    except IngotError:  # what failed before is told
        return ""
    if not bisection.found:
        return ""
    first = bisection.found[0].finding
    by = f", made by {first.made_by}" if first.made_by else ""
    return f"kernel {first.number}, {first.kernel} of {first.origin}{by}, {WHAT[first.where]}"
