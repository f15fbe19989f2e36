"""docs/passes.md is what the pipeline and its docstrings say."""

import inspect

import pytest

from ingot.passes.pipeline import PIPELINE
from tools import passes_page


def test_page_is_current():
    assert passes_page.PAGE.read_text() == passes_page.page(), "run tools/passes_page.py"


def test_page_reads_counts_off_the_pipeline():
    page = passes_page.page()
    assert "| 2L + 1; 4L + 1 with norms of queries and keys | exact | 0 |" in page
    assert "| 0; L with gelu | exact | 0 |" in page


@pytest.mark.parametrize("step", PIPELINE, ids=lambda step: step.name)
def test_every_pass_shows_its_graphs_and_bears_its_files_name(step):
    doc = inspect.cleandoc(step.doc)
    first, *_ = doc.splitlines()
    assert first.endswith(".") and "\nBefore:\n" in doc and "\nAfter:\n" in doc
    assert step.function.__module__ == f"ingot.passes.{step.name}"
    module = inspect.getmodule(step.function)
    assert module is not None and (module.__doc__ or "").startswith(f"{step.name}: ")
