"""`bench/regress.py` on histories that are made up."""

from __future__ import annotations

import json

import pytest

from bench.regress import History, judge, main

BASELINE = 0.8


def verdict(*shares: float):
    runs = [{"decode": share} for share in shares]
    (found,) = judge(History("x", {"decode": BASELINE}, runs))
    return found


@pytest.mark.parametrize(
    ("shares", "worse", "failed"),
    [
        ((0.8,), 0, False),
        ((0.77, 0.765, 0.77), 0, False),  # within the tolerance
        ((0.7,), 1, False),
        ((0.7, 0.7), 2, False),
        ((0.7, 0.7, 0.7), 3, True),
        ((0.7, 0.1, 0.75, 0.7), 4, True),
        ((0.7, 0.7, 0.8, 0.7, 0.7), 2, False),  # a good run starts the count anew
        ((0.7, 0.7, 0.7, 0.9), 0, False),
    ],
)
def test_three_worse_runs_in_a_row_fail(shares, worse, failed):
    found = verdict(*shares)
    assert (found.worse_runs, found.failed) == (worse, failed)


def test_one_phase_does_not_excuse_another():
    runs = [{"decode": 0.5, "prefill": 0.6}] * 3
    found = {v.phase: v.failed for v in judge(History("x", {"decode": 0.8, "prefill": 0.6}, runs))}
    assert found == {"decode": True, "prefill": False}


def test_a_phase_that_was_not_run_is_not_judged():
    history = History("x", {"decode": 0.8, "prefill": 0.6}, [{"prefill": 0.6}])
    assert [v.phase for v in judge(history)] == ["prefill"]
    assert judge(History("x", {"decode": 0.8})) == []


def result(share: float, threads: int = 2) -> dict:
    return {
        "model": "m", "dtype": "bfloat16", "quantization": "none", "target": "cpu:portable",
        "limits": {"threads": threads},
        "phases": [{"name": "decode", "share": share}],
    }  # fmt: skip


def run(tmp_path, share: float, *options: str, threads: int = 2) -> int:
    now = tmp_path / "now.json"
    now.write_text(json.dumps(result(share, threads)))
    return main([str(now), "--history", str(tmp_path / "sub" / "history.json"), *options])


def test_the_history_grows_until_it_fails_and_a_new_baseline_ends_that(tmp_path, capsys):
    codes = [run(tmp_path, share) for share in (0.8, 0.5, 0.5, 0.5)]
    assert codes == [0, 0, 0, 1]
    assert "FAILED" in capsys.readouterr().out.splitlines()[-1]
    assert run(tmp_path, 0.5, "--accept") == 0
    assert run(tmp_path, 0.5) == 0


def test_another_benchmark_is_refused_and_leaves_the_history(tmp_path, capsys):
    assert run(tmp_path, 0.8) == 0
    before = (tmp_path / "sub" / "history.json").read_text()
    assert run(tmp_path, 0.8, threads=4) == 2
    assert "4 threads" in capsys.readouterr().err
    assert (tmp_path / "sub" / "history.json").read_text() == before
