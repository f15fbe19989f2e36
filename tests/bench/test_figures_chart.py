"""The numbers of the picture of all runtimes; the drawing itself is looked at by people."""

from __future__ import annotations

import json
import sys

import pytest

from bench.chart import KEY
from bench.figures_chart import bars, described, is_current, main

FIGURES = {"parts": {
    "qwen3-0.6b/int8": {"prefill": {"share": 0.8}, "decode": {"share": 0.9}},
    "peers/int8": {"times": {"openvino": {"prefill": 2.0, "decode": 3.0}}},
    "peers/int4": {"times": {"openvino": {"prefill": 2.0, "decode": 3.0}}},
}}  # fmt: skip


def test_others_stand_at_our_share_divided_by_the_ratio():
    assert list(bars(FIGURES)) == [
        ("int8", "ingot", {"prefill": 0.8, "decode": 0.9}),
        ("int8", "openvino", {"prefill": 0.4, "decode": 0.3}),
    ]


def test_a_picture_says_which_figures_it_shows(tmp_path):
    png = tmp_path / "a.png"
    assert not is_current(FIGURES, png)
    text = described(FIGURES).encode()
    png.write_bytes(b"PNG" + (len(KEY) - 4 + len(text)).to_bytes(4) + KEY + text + b"sum, more")
    assert is_current(FIGURES, png)
    assert not is_current({"parts": {}}, png)
    png.write_bytes(b"PNG, by somebody else")
    assert not is_current(FIGURES, png)


@pytest.mark.parametrize(
    ("figures", "said"), [(FIGURES, "pip install 'ingot-lm[chart]'"), ("[", "Expecting value")]
)
def test_what_cannot_be_drawn_is_said(tmp_path, capsys, monkeypatch, figures, said):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "figures.json"
    path.write_text(figures if isinstance(figures, str) else json.dumps(figures))
    assert main([str(path), str(tmp_path / "out.png")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
