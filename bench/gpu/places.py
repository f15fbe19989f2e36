"""Where a run keeps things. Imports nothing that may be missing."""

from __future__ import annotations

from pathlib import Path

LIMITS = "limits"  # the part that measures the card


def artifact_path(name: str, given: Path, work: Path) -> Path:
    """Where an artifact is, or is to be."""
    path = given / f"{name}.ingot"
    return path if path.is_dir() else work / f"{name}.ingot"


def report_file(work: Path, part: str) -> Path:
    return work / "parts" / f"{part.replace(' ', '-')}.json"
