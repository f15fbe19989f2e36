"""What an artifact's goldens allow after targets were added to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingot.artifact.golden import GOLDEN, decode_golden
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import ArtifactWriter
from ingot.compiler.add import _keep_golden
from ingot.errors import UsageError
from tests.runtime.fake_model import golden, write_fake


def goldens(mean: float, shift: float = 0.0) -> bytes:
    """Of one number format."""
    value = json.loads(golden(shift))
    allowed = {"noise": mean / 1.5, "mean": mean, "largest": 10 * mean, "kl": mean**2}
    return json.dumps(value | {"tolerances": {"float32": allowed}}).encode()


@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        (0.1, 0.1),
        (0.05, 0.1),
        (0.109, 0.1),  # another host measures the noise a little differently
        (0.2, 0.2),  # the new target rounds more
    ],
)
def test_what_the_new_targets_need_is_allowed(tmp_path: Path, made: float, allowed: float) -> None:
    old = Artifact.open(write_fake(tmp_path / "old.ingot", files={GOLDEN: goldens(0.1)}))
    with ArtifactWriter(tmp_path / "new.ingot") as writer:
        writer.write(GOLDEN, goldens(made, shift=1e-5))
        assert _keep_golden(writer, old) == allowed
        data = writer.file(GOLDEN).read_bytes()
    kept = decode_golden(data, GOLDEN)
    assert kept.tolerances["float32"].largest == pytest.approx(10 * allowed)
    assert kept.prompts == decode_golden(old.read(GOLDEN), GOLDEN).prompts
    assert (data == old.read(GOLDEN)) == (allowed == 0.1)


def test_other_outputs_are_refused(tmp_path: Path) -> None:
    old = Artifact.open(write_fake(tmp_path / "old.ingot", files={GOLDEN: goldens(0.1)}))
    with ArtifactWriter(tmp_path / "new.ingot") as writer:
        writer.write(GOLDEN, goldens(0.1, shift=0.01))
        with pytest.raises(UsageError, match="other golden outputs"):
            _keep_golden(writer, old)
