"""Wrong input ends a benchmark before anything is measured, with a line that says what is known."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bench.families nope", "'nope' is none of cohere"),
        ("bench --shape foo", "'foo' is none of tiny"),
        ("bench.tune_cpu --sizes foo", "'foo' is none of core_cache"),
        ("bench.tune_cpu --rounds 0", "0 is no integer of 1 or more"),
        ("bench.engine --only batching", "--only batching: with these artifacts there are"),
        ("bench.speculation --artifact nowhere", "nowhere"),
        ("bench.sitting OTHER.json", "has no figures of a sitting"),
        ("bench.sitting NEW.json --binary foo", "is no ik_llama.cpp=PATH of a file"),
        ("bench.figures_chart OTHER.json OUT.png", "has no figures of a sitting"),
    ],
)
def test_wrong_input_is_refused_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    said: str,
) -> None:
    (tmp_path / "OTHER.json").write_text(json.dumps({"a": 1}))
    words = [
        str(tmp_path / word) if word.endswith((".json", ".png")) else word
        for word in command.split()
    ]
    monkeypatch.setattr(sys, "argv", words)
    # As `python -m` runs it, but in a process that has imported what it needs.
    for name in (words[0], f"{words[0]}.__main__"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told and "Traceback" not in told
    assert not (tmp_path / "NEW.json").exists()
