"""docs/passes.md is what the pipeline and its docstrings say."""

import inspect

import pytest

from ingot.passes.pipeline import PIPELINE
from tools import passes_page


def test_page_is_current():
    assert passes_page.PAGE.read_text() == passes_page.page(), "run tools/passes_page.py"


def test_page_says_what_is_expected():
    page = passes_page.page()
    assert "| as many as `rms_norm` | exact | 0 |" in page
    assert "| 1 | exact | 1e-05 |" in page  # select_logit_rows
    assert "| | exact | 0 |" in page  # canonicalize_views


@pytest.mark.parametrize("step", PIPELINE, ids=lambda step: step.name)
def test_every_pass_shows_its_graphs_and_bears_its_files_name(step):
    doc = inspect.cleandoc(step.doc)
    first, *_ = doc.splitlines()
    assert first.endswith(".") and "\nBefore:\n" in doc and "\nAfter:\n" in doc
    assert step.function.__module__ == f"ingot.passes.{step.name}"
    module = inspect.getmodule(step.function)
    assert module is not None and (module.__doc__ or "").startswith(f"{step.name}: ")
