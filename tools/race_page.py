"""Writes the tables of docs/race.json into docs/quantization.md; `make docs` runs it.

`python -m bench.race` measures them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tools.curve_page import NONE, between, option

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "race.json"
PAGE = ROOT / "docs" / "quantization.md"
BEGIN, END = "<!-- race, written by `make docs` -->", "<!-- end of race -->"
HEAD = "| | mean KL | prefill, tok/s | ours | faster | decode, tok/s | ours | faster |"

Values = dict[str, Any]


def with_tables(page: str, models: Values) -> str:
    """The page with its tables as the file has them. Raises ValueError where it has no place."""
    return between(page, BEGIN, END, [_model(name, each) for name, each in models.items()])


def _model(name: str, figures: Values) -> str:
    says = f"**{name}**, a prompt of {figures['prompt']} tokens; {figures['date']}, "
    rows = [_row(point) for point in figures["points"] if "ours" in point]
    ruled = "|---" * (HEAD.count("|") - 1) + "|"
    return "\n".join([f"{says}{figures['machine']}.", "", HEAD, ruled, *rows])


def _row(point: Values) -> str:
    cells = [f"{point['runtime']} {point['name']}", f"{point['kl']:.4f}"]
    ours = point["ours"]
    for phase in ("prefill", "decode"):
        cells.append(f"{point[f'{phase}_tokens_per_second']:,.0f}")
        cells.append(option(ours[phase]) if ours else NONE)
        cells.append(f"{ours[f'{phase}_ratio']:.2f} x" if ours else NONE)
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Writes the page."""
    models: Values = json.loads(FIGURES.read_text())
    PAGE.write_text(with_tables(PAGE.read_text(), models))
    return 0


if __name__ == "__main__":
    sys.exit(main())
