"""Pages that are made from the code are current, and every link in a page leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.figures_chart import is_current
from ingot.models.registry import supported_architectures
from tools import api_page, cli_page, coming_from_page, figures_page, layout_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(
        page
        for folder in ("examples", "deploy", "docs")
        for page in sorted((ROOT / folder).glob("**/*.md"))
    ),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_page_of_the_command_line_is_current():
    assert cli_page.PAGE.read_text() == cli_page.page(), "run `make docs`"


def test_the_page_of_the_python_api_is_current():
    assert api_page.PAGE.read_text() == api_page.page(), "run `make docs`"


@pytest.mark.parametrize(
    ("doc", "page"),
    [
        ("Two\nlines.\n\nMore.", "Two lines.\n\nMore."),
        (
            "Args:\n    a: one\n        more: of it.\n    b: a | b",
            "| argument | meaning |\n|---|---|\n| `a` | one more: of it. |\n| `b` | a \\| b |",
        ),
        (
            "n      how many\n       of it\nlong_name\n       below",
            "| field | meaning |\n|---|---|\n| `n` | how many of it |\n| `long_name` | below |",
        ),
    ],
)
def test_a_docstring_is_shown_as_markdown(doc, page):
    assert api_page.markdown(doc) == page


def test_the_page_for_those_who_come_from_vllm_is_current():
    assert coming_from_page.PAGE.read_text() == coming_from_page.page(), "run `make docs`"


def test_quotations_in_the_layout_are_current():
    page = layout_page.PAGE.read_text()
    assert page == layout_page.page(page), "run `make docs`"


def architectures_of(page: str) -> list[str]:
    """The class names in the table of a page under "Models and targets"."""
    table = page.partition("## Models and targets\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row) if name[0].isupper()]


def test_the_readme_lists_every_architecture_once():
    page = (ROOT / "README.md").read_text()
    assert sorted(architectures_of(page)) == sorted(supported_architectures())
    assert architectures_of(page.replace("| `LlamaFor", "| `XFor"))[0] == "XForCausalLM"


@pytest.mark.parametrize("path", figures_page.PAGES, ids=lambda path: path.name)
def test_figures_are_those_of_the_file(path):
    page = path.read_text()
    assert page == figures_page.with_figures(page, figures_page.read()), "run `make docs`"


def test_the_picture_shows_the_figures_of_the_file():
    assert is_current(figures_page.read(), figures_page.PICTURE), "run `make docs`"


def test_a_quotation_is_the_lines_that_are_searched_for(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree one\n")
    assert layout_page.quotation(tmp_path / "a.txt", "one$") == "one\nthree one\n"
    (tmp_path / "a.cpp").write_text("int a;\nint b;\n\nint c;\n")
    assert layout_page.quotation(tmp_path / "a.cpp", "b") == "int a;\nint b;\n"
    with pytest.raises(ValueError, match="nothing like four"):
        layout_page.quotation(tmp_path / "a.txt", "four")


def broken_links(page: Path) -> list[str]:
    """Links of a page to files that do not exist; addresses on the web are not followed."""
    targets = [t for t in LINK.findall(page.read_text()) if not t.startswith(("http", "mailto:"))]
    return [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](page.md) [b](https://example.org) [c](none.md#part)")
    assert broken_links(page) == ["none.md"]


def test_the_index_lists_every_page_once():
    index = ROOT / "docs" / "README.md"
    pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
    assert sorted(re.findall(r"^\| \[[^]]*\]\((\w+\.md)\) \|", index.read_text(), re.M)) == sorted(
        pages
    )


def test_the_contract_and_the_page_on_numerics_name_the_same_tolerances():
    contract = (ROOT / "docs" / "design.md").read_text().partition("## 10. Numerics")[2]
    page = (ROOT / "docs" / "numerics.md").read_text().partition("## How far results may be off")[2]
    named = re.findall(r"≤ (\de-\d)", contract.partition("\n## ")[0])
    table = page.partition("\n## ")[0]
    assert len(named) == 6 and named == re.findall(r"^\| [^|]+ \| (\de-\d) \|", table, re.M)


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_that_pages_name_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= targets
