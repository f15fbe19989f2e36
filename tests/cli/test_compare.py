"""`ingot compare` around comparisons that are made up, and on the bundled model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import inf

import pytest

import ingot.compare.compare
from ingot.cli.main import main
from ingot.compare.compare import Comparison, GreedyDifference, PromptResult
from ingot.compare.measure import Measures

MEASURES = Measures(
    num_positions=57,
    max_error=0.25,
    relative_error=2e-3,
    mean_kl=1.5e-5,
    tail_kl=3e-4,
    top1=0.9825,
    top5=1.0,
    identical=False,
    num_not_finite=0,
)
DIFFERENCE = GreedyDifference(
    where="golden prompt 2", index=3, chosen=(17, 5), texts=(" a", ""), margins=(0.25, 0.125)
)
PROMPTS = tuple(
    PromptResult(
        where=f"golden prompt {number}",
        num_tokens=number,
        num_greedy=16,
        measures=replace(MEASURES, mean_kl=number * 1e-6),
        difference=None,
    )
    for number in range(1, 4)
)
SAME = Comparison(names=("a", "b"), whats=("artifact", "ONNX"), measures=MEASURES, prompts=PROMPTS)
PARTED = replace(
    SAME,
    prompts=(PROMPTS[0], replace(PROMPTS[1], num_greedy=3, difference=DIFFERENCE), PROMPTS[2]),
)


@pytest.fixture
def compare(monkeypatch, tmp_path):
    """Runs the verb, which finds what it is given."""

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    def run(found: Comparison, *options: str) -> int:
        monkeypatch.setattr(ingot.compare.compare, "compare_pair", lambda *_, **given: found)
        return main(["compare", "a", "b", *options])

    return run


def test_all_measures_are_shown(compare, capsys):
    assert compare(SAME) == 0
    assert capsys.readouterr().out == (
        "  A  a: artifact\n"
        "  B  b: ONNX\n"
        "\n"
        "  compared     57 positions of 3 prompts\n"
        "  logit error  largest 2.50e-01, relative 2.00e-03\n"
        "  KL           mean 1.50e-05, 99.9th percentile 3.00e-04 nats\n"
        "  likeliest    top-1 98.2%, top-5 100.0% the same\n"
        "  greedy       all 48 tokens the same\n"
        "\n"
        "  prompt           tokens   largest  relative        KL  top-1  greedy\n"
        "  golden prompt 3       3  2.50e-01  2.00e-03  3.00e-06  98.2%      16\n"
        "  golden prompt 2       2  2.50e-01  2.00e-03  2.00e-06  98.2%      16\n"
        "  golden prompt 1       1  2.50e-01  2.00e-03  1.00e-06  98.2%      16\n"
    )


def test_the_token_that_differs_is_shown_with_both_margins(compare, capsys):
    assert compare(PARTED) == 0
    out = capsys.readouterr().out
    assert "token 4 after golden prompt 2 differs: A says 17 ' a' by 0.25, B says 5 by 0.12" in out
    assert "3, then not" in out


@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_is_longer_than_the_terminal(compare, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    level = "artifact, cpu:x86-64-v4+avx512_bf16+avx512_vnni, bfloat16, int4-g32"
    assert compare(replace(PARTED, names=("a" * 90, "b/" * 50), whats=(level, level))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 12 and [line for line in lines if len(line) > columns] == []


def test_of_many_prompts_the_worst_are_shown(compare, capsys):
    many = tuple(replace(PROMPTS[0], where=f"line {i} of p") for i in range(20))
    assert compare(replace(SAME, prompts=(*many, PROMPTS[2]))) == 0
    out = capsys.readouterr().out
    assert out.count(" of p ") == 7 and "golden prompt 3" in out
    assert out.endswith("  and 13 more prompts, which differ less\n")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--max-kl", "2e-5", "--max-error", "0.01"), 0, ""),
        (("--max-kl", "1e-5"), 4, "error: the mean KL is 1.5e-05, and --max-kl allows 1e-05\n"),
        (("--max-error", "0"), 4, "error: the relative error is 0.002, and --max-error allows 0\n"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_limits_that_do_not_hold_are_an_exit_code(compare, capsys, options, code, said, as_json):
    assert compare(SAME, *options, *as_json) == code
    captured = capsys.readouterr()
    assert captured.err == said
    assert not as_json or json.loads(captured.out)["passed"] == (code == 0)


def test_what_is_not_finite_exceeds_every_limit(compare, capsys):
    worst = replace(MEASURES, mean_kl=inf, max_error=inf, num_not_finite=2)
    assert compare(replace(SAME, measures=worst), "--max-kl", "1e9") == 4
    captured = capsys.readouterr()
    assert "not finite   2 positions" in captured.out
    assert "the mean KL is inf" in captured.err


def test_json_holds_all_and_is_json(compare, capsys):
    worst = replace(MEASURES, max_error=inf)
    assert compare(replace(PARTED, measures=worst), "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found["measures"]["max_error"] is None and found["measures"]["top1"] == 0.9825
    assert found["sides"][1] == {"name": "b", "what": "ONNX"}
    assert found["difference"]["margins"] == [0.25, 0.125]
    assert [prompt["num_tokens"] for prompt in found["prompts"]] == [1, 2, 3]
    assert (found["identical"], found["same_files"], found["passed"]) == (False, False, True)


def test_identical_sides_need_no_table(compare, capsys):
    same = replace(MEASURES, identical=True)
    assert compare(replace(SAME, measures=same)) == 0
    assert capsys.readouterr().out.endswith(
        "  compared  57 positions of 3 prompts\n  logits    identical, bit by bit\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompts", "p", "--random", "3"), "--prompts and --random are both given"),
        (("--random", "0"), "not a positive number"),
        (("--max-kl", "nan"), "is no number from 0 on"),
        (("--max-error", "-1"), "is no number from 0 on"),
        (("--target", "a,b,c"), "name one target, or two"),
        (("--hf-dtype", "int8"), "--hf-dtype is 'int8'"),
    ],
)
def test_options_that_cannot_be_are_refused(compare, capsys, options, said):
    assert compare(SAME, *options) == 2
    assert said in capsys.readouterr().err


def test_an_artifact_beside_itself_is_identical(shakespeare_artifact, tmp_path, capsys):
    copied = shutil.copytree(shakespeare_artifact, tmp_path / "copy.ingot")
    assert main(["compare", str(copied), str(shakespeare_artifact), "--max-error", "0"]) == 0
    captured = capsys.readouterr()
    assert "files     the same, byte for byte" in captured.out
    assert "logits    identical, bit by bit" in captured.out
    assert captured.err.splitlines()[0].startswith("open ")


def test_artifacts_for_other_hosts_are_identical_by_their_files(
    shakespeare_artifact, tmp_path, capsys, monkeypatch
):
    copied = shutil.copytree(shakespeare_artifact, tmp_path / "copy.ingot")
    monkeypatch.setattr("ingot.artifact.reader.flags_and_gpu", lambda *_: (frozenset(), 0))
    assert main(["compare", str(copied), str(shakespeare_artifact)]) == 0
    assert "identical; not run, as this host has none of the targets" in capsys.readouterr().out
    assert main(["compare", str(copied), str(shakespeare_artifact), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] and found["same_files"] and not found["prompts"]
    manifest = copied / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    assert main(["compare", str(copied), str(shakespeare_artifact)]) == 3


def test_the_bundled_model_is_near_its_reference(
    shakespeare_artifact, shakespeare_dir, capsys, tmp_path
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("First Citizen:\nWho goes there?\n")
    line = ["compare", str(shakespeare_artifact), str(shakespeare_dir), "--json", "--tokens", "8"]
    assert main([*line, "--prompts", str(prompts), "--max-error", "1e-5", "--max-kl", "1e-3"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert not found["identical"] and 1e-5 < found["measures"]["relative_error"] < 3e-2
    assert found["measures"]["mean_kl"] < 1e-3
    assert [p["where"] for p in found["prompts"]] == [f"line {i} of {prompts}" for i in (1, 2)]
    assert all(prompt["num_greedy"] == 8 for prompt in found["prompts"])
