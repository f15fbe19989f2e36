"""The numbers of the chart; the drawing itself is looked at by people."""

from __future__ import annotations

import json
import sys

import pytest

from bench.chart import bars, main

RESULT = {
    "model": "m", "dtype": "bfloat16", "quantization": "none",
    "limits": {"read_bytes_per_second": 1e9, "threads": 2},
    "phases": [{
        "name": "decode", "tokens": 4, "tokens_per_second": 20.0, "limit_seconds": 0.1,
        "share": 0.5, "bound": "memory",
    }],
}  # fmt: skip


def test_a_bar_is_its_share_of_the_limit():
    (bar,) = bars(RESULT)
    assert bar["limit"] == 40.0
    assert bar["speed"] / bar["limit"] == bar["share"]


@pytest.mark.parametrize("written", [None, "", "[]", '{"error": {}}', '{"phases": [3]}'])
def test_a_file_that_is_no_result_is_named(tmp_path, capsys, written):
    path = tmp_path / "now.json"
    if written is not None:
        path.write_text(written)
    assert main([str(tmp_path / "out.png"), str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and str(path) in said
    assert not (tmp_path / "out.png").exists()


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "now.json"
    path.write_text(json.dumps(RESULT))
    assert main([str(tmp_path / "out.png"), str(path)]) == 2
    assert "pip install 'ingot-lm[chart]'" in capsys.readouterr().err
