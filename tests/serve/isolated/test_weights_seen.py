"""Which artifacts are checked in full when they are opened again."""

from __future__ import annotations

from pathlib import Path

from ingot.serve.isolated.weights_seen import WeightsSeen, look


def test_weights_are_hashed_if_they_were_written_to_since_they_were_opened(tmp_path: Path) -> None:
    weights = tmp_path / "weights" / "a.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    seen, path = WeightsSeen(), str(tmp_path)
    assert seen.check_of(path, look(path)) == "fast"  # nothing is known of them
    seen.trust(path, look(path))
    assert seen.check_of(path, look(path)) == "fast"
    weights.write_bytes(b"others")
    assert seen.check_of(path, look(path)) == "full"
    assert seen.check_of("elsewhere", look(path)) == "fast"
    seen.trust(path, look(path))
    assert seen.check_of(path, look(path)) == "fast"
    assert look(f"{path}/missing") == frozenset()
