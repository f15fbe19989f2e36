"""How the curve of quality becomes tables, and that the page has those of its file."""

from __future__ import annotations

import pytest

from bench.curve_chart import is_current
from tools import curve_page
from tools.curve_page import BEGIN, END, with_tables

SCORES = {"kl": 0.01234, "kl_error": 0.0004, "same_top": 0.954, "perplexity": 20.5}
FIGURES = {
    "date": "2026-03-01", "machine": "2 x abacus", "positions": 1234,
    "points": [
        {"runtime": runtime, "name": name, "importance": told, "bytes": nbytes, "version": "1",
         "base_perplexity": 20.0, **SCORES, "kl": kl}
        for runtime, name, told, nbytes, kl in (
            ("ingot", "auto-4.5", True, 10_040_000, 0.05),
            ("ingot", "int8-g32", True, 20_000_000, 0.004),
            ("llama.cpp", "F16", False, 40_000_000, 0.0),
            ("llama.cpp", "Q4_0", False, 9_000_000, 0.2),
            ("llama.cpp", "Q4_0", True, 9_000_000, 0.1),
        )
    ],
}  # fmt: skip
PAGE = f"""a

{BEGIN}

**m**, dithered: 1,234 positions, perplexity 20.00 in float32; 2026-03-01, 2 x abacus.

| ingot | MB | mean KL | same top token | perplexity |
|---|---|---|---|---|
| `int8 --group-size 32` | 20.0 | 0.0040 ± 0.0004 | 95.4 % | 20.50 |
| `auto --bits 4.5` | 10.0 | 0.0500 ± 0.0004 | 95.4 % | 20.50 |

| llama.cpp 1 | MB | mean KL | with importance matrix | same top token | perplexity |
|---|---|---|---|---|---|
| the file itself, F16 | 40.0 | 0.0000 ± 0.0004 | – | 95.4 % | 20.50 |
| Q4_0 | 9.0 | 0.2000 ± 0.0004 | 0.1000 ± 0.0004 | 95.4 % | 20.50 |

{END}

b
"""


def test_figures_become_tables():
    assert with_tables(f"a\n\n{BEGIN} old {END}\n\nb\n", {"m": FIGURES}) == PAGE
    assert with_tables(PAGE, {"m": FIGURES}) == PAGE


def test_a_model_may_have_no_peer():
    ours = {**FIGURES, "points": FIGURES["points"][:2]}
    page = with_tables(f"{BEGIN}{END}", {"m": ours})
    assert "auto --bits 4.5" in page
    assert "llama" not in page


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for tables"):
        with_tables("a page", {"m": FIGURES})


def test_page_and_picture_show_the_figures_of_the_file():
    models, page = curve_page.read(), curve_page.PAGE.read_text()
    assert page == with_tables(page, models), "run `make docs`"
    assert is_current(models, curve_page.PICTURE), "run `make docs`"
