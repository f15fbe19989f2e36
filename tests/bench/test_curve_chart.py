"""What the picture of the curve shows; the drawing itself is looked at by people."""

from __future__ import annotations

import json
import sys

import pytest

from bench.chart import KEY
from bench.curve_chart import described, is_current, main, series


def point(runtime, name, mb, kl, importance=True):
    nbytes = int(mb * 1e6)
    return {
        "runtime": runtime, "name": name, "bytes": nbytes, "kl": kl, "importance": importance,
    }  # fmt: skip


FIGURES = {
    "points": [
        point("ingot", "auto-6", 12.34, 0.01),
        point("ingot", "auto-4.5", 10.0, 0.02),
        point("ingot", "int5", 11.0, 0.015),
        point("ingot", "int8-g32", 15.0, 0.005),
        point("llama.cpp", "F16", 30.0, 0.0, importance=False),
        point("llama.cpp", "Q4_0", 9.0, 0.09, importance=False),
        point("llama.cpp", "Q4_0", 9.0, 0.04),
    ]
}


def test_series_are_sorted_by_bytes_and_leave_the_file_itself_out():
    assert dict(series(FIGURES)) == {
        "chosen": [("4.5", 10.0, 0.02), ("int5", 11.0, 0.015), ("6", 12.3, 0.01)],
        "one format": [("int8-g32", 15.0, 0.005)],
        "untold": [("Q4_0", 9.0, 0.09)],
        "told": [("Q4_0", 9.0, 0.04)],
    }


def test_a_picture_says_which_figures_it_shows(tmp_path):
    png, models = tmp_path / "a.png", {"m": FIGURES}
    assert not is_current(models, png)
    text = described(models).encode()
    png.write_bytes(b"PNG" + (len(KEY) - 4 + len(text)).to_bytes(4) + KEY + text + b"sum, more")
    assert is_current(models, png)
    assert not is_current({"n": FIGURES}, png)
    png.write_bytes(b"PNG, by somebody else")
    assert not is_current(models, png)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"m": FIGURES}, "pip install 'ingot-lm[chart]'"),
        ({"m": {"points": []}}, "there are no points to draw"),
        ({"m": []}, "has no figures of `bench.curve`"),
        ("[", "Expecting value"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, capsys, monkeypatch, figures, said):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "figures.json"
    path.write_text(figures if isinstance(figures, str) else json.dumps(figures))
    assert main([str(path), str(tmp_path / "out.png")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
