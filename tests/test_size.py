"""Functions keep to the budget of parameters."""

from __future__ import annotations

import pytest

from tools.size import ROOT, many_parameters

NINE = ", ".join("abcdefghi")


def test_no_function_takes_more_parameters_than_the_budget() -> None:
    assert many_parameters(ROOT / "ingot") == []


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("cli/run.py", f"def f({NINE}): pass", ["ingot/cli/run.py:1: f has 9 parameters"]),
        ("ops/a.py", f"def f(*, {NINE}): pass", ["ingot/ops/a.py:1: f has 9 parameters"]),
        ("cli/run.py", "class A:\n  def f(self, b, c, d, e, f, g, h, *, i): pass", []),
        ("ops/a.py", f"def reference({NINE}): pass", []),
        ("targets/cuda/kernels/a.py", f"def f({NINE}, j, k, l): pass", []),
        (
            "targets/cuda/kernels/a.py",
            f"def f({NINE}, j, k, l, *, m): pass",
            ["ingot/targets/cuda/kernels/a.py:1: f has 13 parameters"],
        ),
    ],
)
def test_what_counts(tmp_path, file: str, source: str, found: list[str]) -> None:
    path = tmp_path / "ingot" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert many_parameters(tmp_path / "ingot") == found
