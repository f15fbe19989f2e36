"""The figures of what a user waits for, of compiles that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import waits


def test_every_wait_stands_beside_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seconds = {"shakespeare": (4.0, 1.0), "qwen3-0.6b": (12.0, 3.0)}
    deep = {"tiny-28": (2.0, 1.0), "tiny-80": (4.0, 1.0)}
    monkeypatch.setattr(waits, "help_seconds", lambda: 0.05)
    monkeypatch.setattr(waits, "made_model", lambda shape, work: work / shape)
    monkeypatch.setattr(
        waits, "compile_seconds", lambda model, _artifact: (seconds | deep)[model.name]
    )
    monkeypatch.setattr(
        waits, "run_script", lambda *_: {"first_token_seconds": 0.2, "open_seconds": 0.1}
    )
    found = {figure.name: figure for figure in waits.measure(tmp_path)}
    missed = {name for name, figure in found.items() if not figure.ok}
    assert missed == {"compile qwen3-0.6b, cold", "compile of 80 layers over 28"}
    assert found["compile of 80 layers over 28"].value == 2.0
    assert all(figure.limit is not None for figure in found.values())


def test_compiles_are_cold_and_then_again_in_a_cache_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caches: list[str] = []

    def seconds(_command: list[str], environment: dict[str, str]) -> float:
        caches.append(environment["INGOT_CACHE"])
        return 5.0 if caches.count(caches[-1]) == 1 else 1.0

    monkeypatch.setattr(waits, "_seconds", seconds)
    assert waits.compile_seconds(tmp_path, tmp_path / "out.ingot") == (5.0, 1.0)
    assert len(set(caches)) == waits.ROUNDS
