"""The numbers that docs/versions.md and the changelog name are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from ingot.artifact.manifest import FORMAT_VERSION
from ingot.artifact.select import ABI, CUDA_ABI
from ingot.version import __version__

ROOT = Path(__file__).resolve().parent.parent
FORMAT = ".".join(map(str, FORMAT_VERSION))


def test_the_page_of_versions_is_current():
    page = (ROOT / "docs" / "versions.md").read_text()
    rows = re.findall(r"^\| (package|format|kernel interface[a-zA-Z ]*) \| (\S+) \|", page, re.M)
    assert dict(rows) == {
        "package": __version__,
        "format": FORMAT,
        "kernel interface": str(ABI),
        "kernel interface of GPUs": str(CUDA_ABI),
    }


def test_the_page_of_the_artifact_names_the_format():
    assert f"now `{list(FORMAT_VERSION)}`" in (ROOT / "docs" / "artifact.md").read_text()


def test_the_newest_entry_of_the_changelog_names_the_format_and_the_interface():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith("Unreleased\n") or newest.startswith(f"{__version__} ")
    assert f"format {FORMAT}," in newest and f"interface {ABI}." in newest
    assert f"GPUs have interface {CUDA_ABI}." in newest
