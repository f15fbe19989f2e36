"""The race at equal quality: who is whose equal, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.curve import Figures
from bench.peers import Contender
from bench.race import Point, against, curve_of, line, lost, main, raced
from tools.race_page import BEGIN, END, with_tables


def point(runtime: str, name: str, kl: float, *rounds: list[float]) -> Point:
    return Point(runtime, name, kl, Contender(runtime, name, [], [*rounds]))


# Two rounds each: seconds of the prompt, and of two tokens that follow.
COARSE = point("ingot", "int4", 0.05, [1.0, 0.1, 0.1], [1.0, 0.1, 0.1])
FINE = point("ingot", "int8", 0.003, [2.0, 0.3, 0.3], [2.0, 0.3, 0.3])
FINER = point("ingot", "auto-8", 0.002, [1.5, 0.4, 0.4], [1.5, 0.4, 0.4])
PEER = point("llama.cpp", "Q8_0", 0.004, [3.0, 0.6, 0.6], [6.0, 0.6, 0.6])
OURS = (COARSE, FINE, FINER)


def test_our_fastest_is_taken_among_those_that_lose_no_more():
    assert against(PEER, OURS) == {
        "prefill": "auto-8", "prefill_ratio": 3.0,  # of 2 and 4, round by round
        "decode": "int8", "decode_ratio": 2.0,
    }  # fmt: skip
    assert against(point("llama.cpp", "Q4_0", 0.05, *PEER.contender.rounds), OURS) == {
        "prefill": "int4", "prefill_ratio": 4.5, "decode": "int4", "decode_ratio": 6.0,
    }  # fmt: skip
    assert against(point("llama.cpp", "F16", 0.0, *PEER.contender.rounds), OURS) == {}


def test_points_that_failed_take_no_part():
    failed = point("ingot", "int6", 0.001)
    found = raced([*OURS, failed, PEER], 512)
    assert [each["name"] for each in found] == ["int4", "int8", "auto-8", "Q8_0"]
    assert [("ours" in each) for each in found] == [False, False, False, True]
    assert found[0]["prefill_tokens_per_second"] == 512.0
    assert found[0]["decode_tokens_per_second"] == 10.0
    assert "ours: auto-8 3.00x prefill, int8 2.00x decode" in line(found[-1])
    assert "ours" not in line(found[0])


def test_a_type_that_an_importance_matrix_helps_races_with_one():
    def measured(runtime: str, name: str, kl: float, importance: bool) -> dict[str, object]:
        return {"runtime": runtime, "name": name, "kl": kl, "importance": importance}

    points = [
        measured("ingot", "int4", 0.05, True),
        measured("llama.cpp", "Q8_0", 0.005, False),
        measured("llama.cpp", "Q4_0", 0.4, False),
        measured("llama.cpp", "Q4_0", 0.2, True),
    ]
    assert lost(points) == {
        ("ingot", "int4"): 0.05, ("llama.cpp", "Q8_0"): 0.005, ("llama.cpp", "Q4_0"): 0.2,
    }  # fmt: skip


def test_the_page_shows_what_was_measured():
    points = raced([*OURS, PEER, point("llama.cpp", "F16", 0.0, [1.0, 1.0])], 512)
    models = {"m": {"date": "today", "machine": "here", "prompt": 512, "points": points}}
    page = with_tables(f"a\n{BEGIN} old {END}\nb", models)
    assert (
        "| llama.cpp Q8_0 | 0.0040 | 114 | `auto --bits 8` | 3.00 x | 2 | `int8` | 2.00 x |" in page
    )
    assert "| llama.cpp F16 | 0.0000 | 512 | – | – | 1 | – | – |" in page
    assert "old" not in page
    with pytest.raises(ValueError, match="no place for tables"):
        with_tables("a page", models)


def test_a_model_without_a_curve_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    curve, out = tmp_path / "curve.json", tmp_path / "race.json"
    curve.write_text(json.dumps({"other": {"points": []}}))
    given = ["--name", "m", "--json", str(out), "--curve", str(curve), "--llama", "python"]
    assert main(["m.gguf", *given]) == 2
    assert f"{curve} has no curve of m" in capsys.readouterr().err
    assert not out.exists()


def test_a_curve_without_a_type_that_races_is_told(tmp_path: Path):
    file = tmp_path / "curve.json"
    point = {"runtime": "llama.cpp", "name": "Q8_0", "kl": 0.005, "importance": False}
    file.write_text(json.dumps({"m": {"points": [point]}}))
    assert curve_of(Figures(file, "m"), ["Q8_0"]) == {("llama.cpp", "Q8_0"): 0.005}
    with pytest.raises(ValueError, match=r"the curve of m lacks Q4_0 of llama\.cpp"):
        curve_of(Figures(file, "m"), ["Q8_0", "Q4_0"])
