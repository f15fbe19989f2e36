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


def result(share: float, threads: int = 2, kv_dtype: str = "bfloat16") -> dict:
    return {
        "model": "m", "dtype": "bfloat16", "quantization": "none", "target": "cpu:portable",
        "kv_dtype": kv_dtype, "limits": {"threads": threads},
        "phases": [{"name": "decode", "share": share}],
    }  # fmt: skip


def run(tmp_path, share: float, *options: str, **values) -> int:
    now = tmp_path / "now.json"
    now.write_text(json.dumps(result(share, **values)))
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
    assert run(tmp_path, 0.8, kv_dtype="int8") == 2
    assert "this run is of m bfloat16 none cpu:portable, KV int8" in capsys.readouterr().err
    assert (tmp_path / "sub" / "history.json").read_text() == before


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (None, "No such file"),
        ("{", "not what `ingot bench --json` writes"),
        ("[]", "not what `ingot bench --json` writes"),
        ('{"error": {"found": "x"}}', "'phases' is missing"),
        ('{"phases": [{"name": "decode"}]}', "'share' is missing"),
        ('{"phases": [3]}', "not what `ingot bench --json` writes"),
    ],
)
def test_a_result_that_is_none_is_wrong_input_and_no_regression(tmp_path, capsys, written, named):
    now = tmp_path / "now.json"
    if written is not None:
        now.write_text(written)
    assert main([str(now), "--history", str(tmp_path / "history.json")]) == 2
    said = capsys.readouterr().err
    assert str(now) in said and named in said
    assert not (tmp_path / "history.json").exists()


@pytest.mark.parametrize(
    "written", ["", "{}", "[]", "3", '{"what": "x", "baseline": 3, "runs": []}']
)
def test_a_history_that_is_none_is_refused_and_left(tmp_path, capsys, written):
    path = tmp_path / "sub" / "history.json"
    path.parent.mkdir()
    path.write_text(written)
    assert run(tmp_path, 0.8) == 2
    assert f"{path} is not what bench/regress.py writes" in capsys.readouterr().err
    assert path.read_text() == written


def test_a_history_that_cannot_be_written_is_wrong_input(tmp_path, capsys):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "history.json").mkdir()
    assert run(tmp_path, 0.8) == 2  # a folder
    assert "history.json" in capsys.readouterr().err
    (tmp_path / "sub" / "history.json").rmdir()
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").write_text("a file")
    assert run(tmp_path, 0.8) == 2  # below a file
    assert str(tmp_path / "sub") in capsys.readouterr().err
