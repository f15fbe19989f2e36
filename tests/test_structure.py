"""What `make size` counts of how a package is divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.structure import Structure, table

FILES = {
    "__init__.py": "",
    "a/__init__.py": "",
    "a/low.py": "class Thing: pass\ndef short():\n    'Says why.'\n    return 1\n",
    "a/middle.py": "from pkg.a.low import short\ndef used():\n    return short()\n",
    "a/high.py": "from pkg.a import low, middle\nmiddle.used()\nmiddle.used()\n",
    "b/other.py": "import pkg.a.low\nclass Thing: pass\nclass Own: pass\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pkg"


def test_imports_are_of_modules_whichever_way_they_are_spelled(package: Path) -> None:
    imports = Structure.of(package).imports
    assert imports["pkg.a.high"] == {"pkg.a.low", "pkg.a.middle"}
    assert imports["pkg.a.middle"] == imports["pkg.b.other"] == {"pkg.a.low"}


def test_every_measure_counts_what_it_says(package: Path) -> None:
    found = Structure.of(package)
    assert found.with_one_importer == ["pkg.a.middle"]
    assert found.short_helpers == ["short"]  # `used` is named twice
    assert found.doubled_classes == ["Thing"]
    assert found.floors("pkg.a") == 3 and found.floors("pkg.b") == 1
    assert dict(table(found, "pkg.a"))["floors in pkg.a"] == 3


def test_a_longer_helper_and_one_with_two_callers_do_not_count(package: Path) -> None:
    long = "def short():\n    a = 1\n    b = 2\n    c = 3\n    return a + b + c\n"
    (package / "a" / "low.py").write_text(long)
    assert Structure.of(package).short_helpers == []


def test_modules_that_import_each_other_have_an_end(package: Path) -> None:
    (package / "a" / "low.py").write_text("import pkg.a.high\n")
    assert Structure.of(package).floors("pkg.a") == 3
