"""What `ingot compare --bisect` prints, of kernels that are right and of one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingot.cli.bisect_report import as_object, summary
from ingot.cli.main import main
from ingot.cli.output import json_text
from ingot.compare.bisect import Walk
from ingot.compare.bisect_sides import Bisection
from ingot.compare.drift import Drift
from tests.compare.test_kernel_check import Machine, no_tail, number_of, placed, read

MLP = "model.layers.1.mlp"


def bisection(*, spoilt: bool) -> Bisection:
    plan = placed("bfloat16")
    machine = (
        Machine(plan, number_of(plan, "gated_linear", MLP), no_tail) if spoilt else Machine(plan)
    )
    kernels = machine.run()
    drift = [Drift(number=3, kernel="add", origin="model.layers.0", output="add", relative=0.25)]
    found = list(Walk(kernels, read=read).findings())
    return Bisection("a.ingot", "model", kernels, found, drift, ["a note"])


def test_the_first_fault_is_shown_with_all_that_is_known() -> None:
    found = bisection(spoilt=True)
    text, there = summary(found), found.found[0].finding.difference
    assert "Bisected a.ingot, cpu:portable, against model" in text and "note: a note" in text
    assert f"gated_linear of {MLP}" in text and "linear+gate" in text
    assert f"{there.num_wrong} of {there.count} numbers; relative error" in text
    assert f"at {list(there.place)}: 0, expected {there.right:.6g}" in text
    assert all(word in text for word in ("got", "expected", "smallest", "not finite"))
    assert "model.layers.0" in text and "2.50e-01" in text


def test_right_kernels_are_counted() -> None:
    found = bisection(spoilt=False)
    plan = found.kernels.plan
    assert f"No fault: {len(plan.kernels)} kernels" in summary(found)
    assert as_object(found)["findings"] == []


def test_it_has_a_json_form() -> None:
    found = json.loads(json_text(as_object(bisection(spoilt=True))))
    (finding,) = found["findings"]
    assert (finding["where"], finding["origin"]) == ("kernel", MLP)
    assert finding["difference"]["output"] == "gate_1"
    assert found["layers"] == {"model.layers.0": 0.25}


def test_what_cannot_be_saved_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["compare", "a", "b", "--save", str(tmp_path / "new")]) == 2
    assert "--save is given without --bisect" in capsys.readouterr().err
    assert main(["compare", "a", "b", "--bisect", "--save", str(tmp_path / "full")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
