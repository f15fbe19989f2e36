"""`make smoke` starts no compiler and exports nothing, and its list is of what is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import smoke

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "tests" / "smoke.txt").read_text().split()


@pytest.mark.parametrize("program", ["/usr/bin/g++", "cc", Path("/opt/clang++")])
def test_a_compiler_is_refused(program: object) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts no compiler: .*smoke\.txt"):
        smoke._refuse_compilers("subprocess.Popen", (program, [program], None, None))


def test_an_export_is_refused() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"exports nothing; see tests/smoke\.txt"):
        smoke._refuse_export(None, strict=True)


def test_everything_else_may_run() -> None:
    smoke._refuse_compilers("subprocess.Popen", ("/usr/bin/python3", [], None, None))
    smoke._refuse_compilers("open", ("cc", "r", 0))


def test_the_list_names_files_and_tests_that_are_there() -> None:
    assert {"tests/artifact", "tests/models", "tests/ops", "tests/passes"} < set(LINES)
    for line in LINES:
        path, _, test = line.removeprefix("--ignore=").removeprefix("--deselect=").partition("::")
        assert (ROOT / path).exists(), line
        if test:
            functions = ast.parse((ROOT / path).read_text()).body
            assert test in {getattr(each, "name", "") for each in functions}, line
