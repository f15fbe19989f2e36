"""A bench is taken for the artifact that it measured, and for no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.cli.bench.report import as_object
from ingot.cli.inspect.measured import read_measured
from ingot.cli.main import main
from ingot.cli.output import json_text
from ingot.errors import UsageError
from tests.cli.bench.test_report import artifact, result
from tests.cli.sample_artifact import sample_manifest

MANIFEST = replace(sample_manifest(), digest="ab" * 32)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """What `ingot bench --json` prints of the sample."""
    measured = artifact()
    measured.manifest = MANIFEST
    file = tmp_path / "bench.json"
    file.write_text(json_text(as_object(measured, [result()])))
    return file


def test_what_bench_prints_is_read(bench: Path) -> None:
    found = read_measured(bench, MANIFEST)
    assert (found.target, found.limits.threads) == ("cpu:portable", 3)
    (phase,) = found.phases
    assert (phase.name, phase.tokens_per_second, phase.bound) == (
        "decode 2 at once, context 8", 1000, "memory",
    )  # fmt: skip
    assert phase.share == pytest.approx(0.4)


def test_a_bench_of_another_artifact_is_refused(bench: Path) -> None:
    other = replace(MANIFEST, digest="cd" * 32)
    with pytest.raises(UsageError, match=r"of another artifact: abababababab, .* cdcdcdcdcdcd"):
        read_measured(bench, other)


def without(name: str) -> str:
    return json.dumps({key: 1 for key in ("digest", "target", "limits") if key != name})


@pytest.mark.parametrize("text", ["", "[]", "{}", without("digest"), "\x00", '{"digest": 3}'])
def test_what_is_no_bench_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="is not what `ingot bench --json` prints") as caught:
        read_measured(file, MANIFEST)
    assert "ingot bench ARTIFACT --json" in caught.value.hint


def test_a_file_that_is_not_there_leaves_no_page(tmp_path: Path, model_dir, capsys) -> None:
    page, file = tmp_path / "page.html", tmp_path / "none.json"
    assert main(["inspect", str(model_dir), "--html", str(page), "--bench", str(file)]) == 2
    assert f"error: {file}: No such file" in capsys.readouterr().err
    assert not page.exists()
